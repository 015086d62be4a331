"""Private parts of transformers that loading and quantizing rely on."""

from datetime import datetime
from functools import cache, lru_cache
from typing import Any

from countdown_rl.core import sandbox

PRIVATE = (
    "transformers.PreTrainedModel._keep_in_fp32_modules",
    "transformers.PreTrainedConfig._attn_implementation",
    "transformers.utils.chat_template_utils._compile_jinja_template",
    "accelerate.state.AcceleratorState._shared_state",
)

#: The day on which every chat template is rendered: the one that Llama 3 templates print where they know no date.
DAY = datetime(2024, 7, 26)


def accelerate_states() -> list[dict[str, Any]]:
    """Return what Accelerate remembers of a process: devices, precision and gradient accumulation."""
    from accelerate import state

    return [
        shared._shared_state
        for shared in (state.PartialState, state.AcceleratorState, state.GradientState)
    ]


def modules_left_in_16_bits(model: Any) -> list[str]:
    """Return the names of the modules of *model* that transformers does not quantize to 4 bits.

    These are the modules that a 4-bit checkpoint lists, else output heads, and a few kept in fp32. The public way to
    ask a quantizer needs the weights.
    """
    from transformers.quantizers.base import HfQuantizer

    stored = getattr(model.config, "quantization_config", None) or {}
    listed = (stored if isinstance(stored, dict) else stored.to_dict()).get("llm_int8_skip_modules")
    return list(HfQuantizer.get_modules_to_not_convert(model, listed, model._keep_in_fp32_modules))


@lru_cache(maxsize=16)
def compile_chat_template(template: str) -> Any:
    """Compile the chat *template* in transformers' sandbox, within limits, without what differs between two calls."""
    return _environment().from_string(template)


@cache
def _environment() -> Any:
    """Return the sandbox of transformers, that of the empty template; there is no public way to it. ``strftime_now``
    tells a fixed day, and random choices fail."""
    from transformers.utils.chat_template_utils import _compile_jinja_template

    environment = _compile_jinja_template("").environment
    environment.globals["strftime_now"] = DAY.strftime
    environment.globals.pop("lipsum", None)
    environment.filters.pop("random", None)
    return sandbox.Limits.limit(environment)


def attention_of(model: Any) -> str:
    """Return the name of the attention of *model*, such as ``sdpa``; ``set_attn_implementation`` sets it in public."""
    return str(model.config._attn_implementation)


def has_static_cache(model: Any) -> bool:
    """Return True if *model* can be compiled as one graph over a static cache, by the attribute that transformers
    documents for that; there is no other way to ask."""
    return bool(model._can_compile_fullgraph)
