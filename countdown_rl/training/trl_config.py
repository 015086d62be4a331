"""TRL's ``GRPOConfig``: the fields that follow from the options of ``train``, and those of ``--trl key=value``."""

import dataclasses
import json
import types
import typing
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from countdown_rl import processes
from countdown_rl.errors import UsageError
from countdown_rl.models.load import Loaded
from countdown_rl.models.torch_internals import has_bf16_products
from countdown_rl.options import MAX_FLOAT
from countdown_rl.runlog import trackers
from countdown_rl.training.config import TrainOptions

#: The flag for fields that follow from an option of another name.
_FLAGS = {
    "num_train_epochs": "--max-steps",
    "per_device_train_batch_size": "--micro-batch",
    "gradient_accumulation_steps": "--prompts",
    "generation_batch_size": "--prompts",
    "reward_weights": "--reward",
    "bf16": "--precision",
    "fp16": "--precision",
    "data_seed": "--seed",
    "output_dir": "--checkpoints",
    "save_strategy": "--save-steps",
    "resume_from_checkpoint": "--restart",
    "trust_remote_code": "--trust-remote-code",
    "use_vllm": "--rollouts",
    "vllm_mode": "--rollouts",
    "vllm_max_model_length": "--max-completion-length",
}
#: Fields that are fixed or have no effect here: the model is loaded and the prompt rendered before TRL sees them,
#: --eval-every evaluates without TRL's own loop, and only `publish` uploads.
_FIXED = {
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
    "transformers_continuous_batching_config",
    "use_transformers_continuous_batching",  # TRL casts the trained weights to bf16 for it
    "use_transformers_paged",
    "vllm_importance_sampling_cap",
}
_FIXED_PREFIXES = ("do_", "eval_", "hub_", "log_", "logging_", "per_device_eval", "push_to_", "save_", "trackio_")


def grpo_config(options: TrainOptions, loaded: Loaded, weights: Sequence[float], directory: Path) -> Any:
    """The ``GRPOConfig`` of a run with checkpoints in *directory*.

    Args:
        weights: of the reward functions, in their order.

    Raises:
        UsageError: a ``--trl`` field is refused, or the processes cannot share a step evenly.
    """
    from trl import GRPOConfig

    accumulation = options.micro_batches(processes.world_size())
    known = {field.name for field in dataclasses.fields(GRPOConfig)}
    fields = {name: value for name, value in dataclasses.asdict(options).items() if name in known} | {
        "output_dir": str(directory),
        "per_device_train_batch_size": options.micro_batch,
        "gradient_accumulation_steps": accumulation,
        "steps_per_generation": accumulation * options.steps_per_generation,
        "reward_weights": list(weights),
        "mask_truncated_completions": False,  # by the trainer itself, which also knows ends that are not one token
        "bf16": _computes_in_bf16(loaded),
        "use_cpu": loaded.device == "cpu",
        "ddp_find_unused_parameters": False,  # every part of the adapter is used
        "shuffle_dataset": False,  # the data set has its own order, so that a resumed run can start in its middle
        "ignore_data_skip": True,
        "save_strategy": "no",  # the callback decides
        "logging_steps": 1,
        "logging_nan_inf_filter": False,  # training stops there
        "report_to": list(options.report_to) or "none",
        "project": trackers.PROJECT,
        "disable_tqdm": True,
    }
    return build(fields, options.trl)


def _computes_in_bf16(loaded: Loaded) -> bool:
    """Return True if autocast computes matrix products in bf16: on CUDA GPUs, and on CPUs that have such products,
    unless the precision is fp32."""
    return loaded.precision != "fp32" and (
        has_bf16_products() if loaded.device == "cpu" else loaded.device.startswith("cuda")
    )


def build(fields: Mapping[str, Any], trl: Sequence[str]) -> Any:
    """The ``GRPOConfig`` of *fields* and of *trl*, the values of ``--trl``.

    Raises:
        UsageError: *trl* is not valid, by itself or together with *fields*.
    """
    from trl import GRPOConfig

    values = parse(trl, fields)
    try:
        config = GRPOConfig(**fields, **values)
    except (ValueError, TypeError, ImportError, NotImplementedError) as error:
        if not values:
            raise
        reason = " ".join(str(error).split())
        raise UsageError(f"--trl {' --trl '.join(trl)}: TRL refuses this: {reason[:200]}") from error
    if config.n_gpu > 1:
        raise UsageError(f"one process trains on one GPU, and {config.n_gpu} are visible; set CUDA_VISIBLE_DEVICES=0.")
    return config


def parse(trl: Sequence[str], owned: Collection[str]) -> dict[str, Any]:
    """The values of *trl* ("key=value"), converted to the types of the fields of ``GRPOConfig``.

    Args:
        owned: names of the fields that follow from options.

    Raises:
        UsageError: a key is unknown, owned, fixed or given twice, or a value is of the wrong type.
    """
    from trl import GRPOConfig

    known = {field.name for field in dataclasses.fields(GRPOConfig)}
    hints = typing.get_type_hints(GRPOConfig)
    values: dict[str, Any] = {}
    for item in trl:
        key, _, text = item.partition("=")
        if key not in known:
            raise UsageError(f"--trl {key}: TRL's GRPOConfig has no such field.")
        if key in _FLAGS:
            raise UsageError(f"--trl {key}: use {_FLAGS[key]}.")
        if key in owned:
            raise UsageError(f"--trl {key}: use --{key.replace('_', '-')}, or the option it follows from.")
        if key in _FIXED or key.startswith(_FIXED_PREFIXES):
            raise UsageError(f"--trl {key}: countdown-rl fixes this field.")
        if key in values:
            raise UsageError(f"--trl {key} is given twice.")
        values[key] = _value(key, text, hints[key])
    return values


def _value(key: str, text: str, hint: Any) -> Any:
    """*text* as a value of type *hint*."""
    types_ = _plain_types(hint)
    try:
        value = json.loads(text)
    except ValueError:
        value = {"True": True, "False": False, "None": None}.get(text, text)
    if isinstance(value, float) and not abs(value) <= MAX_FLOAT:
        raise UsageError(f"--trl {key}={text} is not a finite number of at most {MAX_FLOAT:.0f}.")
    if type(value) in types_:
        return value
    if type(value) is int and float in types_:
        return float(value)
    if str in types_ and not isinstance(value, (dict, list)):
        return text
    names = ", ".join(sorted("nothing (null)" if kind is type(None) else kind.__name__ for kind in types_))
    raise UsageError(f"--trl {key}={text}: the field takes {names}.")


def _plain_types(hint: Any) -> set[type]:
    """The plain types of the values that the annotation *hint* allows."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return set().union(*(_plain_types(part) for part in typing.get_args(hint)))
    origin = typing.get_origin(hint) or hint
    if origin is typing.Literal:
        return {type(value) for value in typing.get_args(hint)}
    if isinstance(origin, type) and origin in (bool, int, float, str, dict, list, type(None)):
        return {origin}
    return {str}
