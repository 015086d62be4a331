"""Private parts of transformers that loading and quantizing rely on."""

from typing import Any

PRIVATE = (
    "transformers.PreTrainedModel._keep_in_fp32_modules",
    "transformers.PreTrainedConfig._attn_implementation",
    "accelerate.state.AcceleratorState._shared_state",
)


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


def attention_of(model: Any) -> str:
    """Return the name of the attention of *model*, such as ``sdpa``; ``set_attn_implementation`` sets it in public."""
    return str(model.config._attn_implementation)


def has_static_cache(model: Any) -> bool:
    """Return True if *model* can be compiled as one graph over a static cache, by the attribute that transformers
    documents for that; there is no other way to ask."""
    return bool(model._can_compile_fullgraph)
