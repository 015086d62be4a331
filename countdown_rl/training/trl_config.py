"""Options of TRL's ``GRPOConfig`` that this tool has no flag for, given as ``--trl key=value``."""

import dataclasses
import json
import types
import typing
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from countdown_rl.errors import UsageError

#: The flag for what TRL calls otherwise.
_FLAGS = {
    "max_steps": "--max-steps",
    "num_train_epochs": "--max-steps",
    "per_device_train_batch_size": "--micro-batch",
    "gradient_accumulation_steps": "--prompts",
    "generation_batch_size": "--prompts",
    "num_generations": "--num-generations",
    "num_iterations": "--num-iterations",
    "reward_weights": "--reward",
    "lr_scheduler_type": "--lr-scheduler-type",
    "importance_sampling_level": "--importance-sampling-level",
    "mask_truncated_completions": "--mask-truncated-completions",
    "bf16": "--precision",
    "fp16": "--precision",
    "data_seed": "--seed",
    "output_dir": "--checkpoints",
    "save_strategy": "--save-steps",
    "save_steps": "--save-steps",
    "logging_steps": "--logging-steps",
    "resume_from_checkpoint": "--restart",
    "trust_remote_code": "--trust-remote-code",
}
#: Fields that this tool settles, or that would do nothing here: the model is loaded and the prompt written
#: before TRL sees them, nothing is evaluated during training, and a Hub is written to by `publish` alone.
_SETTLED = {
    "auto_find_batch_size",
    "batch_eval_metrics",
    "chat_template_kwargs",
    "debug",
    "include_for_metrics",
    "load_best_model_at_end",
    "local_rank",
    "max_tool_calling_iterations",
    "model_init_kwargs",
    "num_completions_to_print",
    "num_generations_eval",
    "prediction_loss_only",
    "remove_unused_columns",
    "restore_callback_states_from_checkpoint",
    "use_transformers_paged",
    "vllm_importance_sampling_cap",
}
_SETTLED_FAMILIES = ("do_", "eval_", "hub_", "log_", "logging_", "per_device_eval", "push_to_", "save_", "trackio_")


def read(given: Sequence[str], owned: Collection[str]) -> dict[str, Any]:
    """The values of *given* ("key=value"), each of the type that the field of ``GRPOConfig`` has.

    Args:
        owned: the fields that this tool sets itself.

    Raises:
        UsageError: a key is unknown, given twice or this tool's own, or a value is of another type.
    """
    from trl import GRPOConfig

    known = {field.name for field in dataclasses.fields(GRPOConfig)}
    hints = typing.get_type_hints(GRPOConfig)
    values: dict[str, Any] = {}
    for one in given:
        key, _, text = one.partition("=")
        if key not in known:
            raise UsageError(f"--trl {key}: TRL's GRPOConfig has no such field.")
        if key in _FLAGS:
            raise UsageError(f"--trl {key}: this is what {_FLAGS[key]} is for.")
        if key in owned:
            raise UsageError(f"--trl {key}: this is what --{key.replace('_', '-')} is for, or what it follows from.")
        if key in _SETTLED or key.startswith(_SETTLED_FAMILIES):
            raise UsageError(f"--trl {key}: this is not for a run of countdown-rl to choose.")
        if key in values:
            raise UsageError(f"--trl {key} is given twice.")
        values[key] = _value(key, text, hints[key])
    return values


def _value(key: str, text: str, hint: Any) -> Any:
    kinds = _kinds(hint)
    try:
        value = json.loads(text)
    except ValueError:
        value = {"True": True, "False": False, "None": None}.get(text, text)
    if type(value) in kinds:
        return value
    if type(value) is int and float in kinds:
        return float(value)
    if str in kinds and not isinstance(value, (dict, list)):
        return text
    names = ", ".join(sorted("nothing (null)" if kind is type(None) else kind.__name__ for kind in kinds))
    raise UsageError(f"--trl {key}={text}: the field takes {names}.")


def _kinds(hint: Any) -> set[type]:
    """The plain types that a value of type *hint* may have."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return set().union(*(_kinds(part) for part in typing.get_args(hint)))
    origin = typing.get_origin(hint) or hint
    if origin is typing.Literal:
        return {type(value) for value in typing.get_args(hint)}
    if isinstance(origin, type) and origin in (bool, int, float, str, dict, list, type(None)):
        return {origin}
    return {str}


def whole(own: Mapping[str, Any], given: Sequence[str]) -> Any:
    """The ``GRPOConfig`` of *own* and what was *given* beside it.

    Raises:
        UsageError: what was given is not as it should be, alone or together with the rest.
    """
    from trl import GRPOConfig

    values = read(given, own)
    try:
        return GRPOConfig(**own, **values)
    except (ValueError, TypeError, ImportError, NotImplementedError) as error:
        if not values:
            raise
        said = " ".join(str(error).split())
        raise UsageError(f"--trl {' --trl '.join(given)}: TRL refuses this: {said[:200]}") from error
