"""Private parts of transformers that loading and quantizing rely on."""

from typing import Any

PRIVATE = (
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


def attention_of(model: Any) -> str:
    """Return the name of the attention of *model*, such as ``sdpa``; ``set_attn_implementation`` sets it in public."""
    return str(model.config._attn_implementation)


def has_static_cache(model: Any) -> bool:
    """Return True if *model* can be compiled as one graph over a static cache, by the attribute that transformers
    documents for that; there is no other way to ask."""
    return bool(model._can_compile_fullgraph)
