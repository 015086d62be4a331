"""TRL's configuration of GRPO: the fields that follow from the options, and those of ``--trl key=value``."""

import argparse
from collections.abc import Collection, Sequence
from math import inf
from pathlib import Path
from typing import Any

from countdown_rl.core.errors import UsageError, first_line
from countdown_rl.models.load import Loaded
from countdown_rl.training import weights
from countdown_rl.training.options import TrainOptions

#: Fields that follow from options of another name, or would have no effect: the model is loaded and the prompt rendered
#: before TRL sees them, --eval-every evaluates without TRL's own loop, and only `publish` uploads.
_FIXED = {
    *("auto_find_batch_size", "chat_template_kwargs", "data_seed", "fp16", "generation_batch_size"),
    *("load_best_model_at_end", "model_init_kwargs", "num_generations_eval", "num_train_epochs"),
    *("remove_unused_columns", "resume_from_checkpoint", "trust_remote_code"),
    *(
        "use_transformers_continuous_batching",
        "use_transformers_paged",
    ),  # the first casts trained weights to bf16
    *("use_vllm", "vllm_importance_sampling_cap", "vllm_max_model_length", "vllm_mode"),
}
#: Fields that TRL reads where it does not check them: those from 0 to 1, those that may be negative, and choices.
_SHARES = {
    *(
        "adam_beta1",
        "adam_beta2",
        "min_p",
        "ref_model_mixup_alpha",
        "top_entropy_quantile",
        "top_p",
    ),
    "vllm_gpu_memory_utilization",
}
_SIGNED = ("entropy_coef", "entropy_coef_min", "entropy_coef_max")
_CHOICES = {
    "multi_objective_aggregation": ("sum_then_normalize", "normalize_then_sum"),
    "vllm_importance_sampling_mode": (
        "token_truncate",
        "token_mask",
        "sequence_truncate",
        "sequence_mask",
    ),
}
#: Options of the same name and meaning.
_OPTIONS = (
    *("max_steps", "num_generations", "num_iterations", "loss_type", "scale_rewards", "beta"),
    *("temperature", "max_completion_length"),
)
_FIXED_PREFIXES = (
    "do_",
    "eval_",
    "hub_",
    "log_",
    "logging_",
    "per_device_eval",
    "push_to_",
    "save_",
    "trackio_",
)


def grpo_config(
    options: TrainOptions, loaded: Loaded, reward_weights: Sequence[float], directory: Path
) -> Any:
    """The ``GRPOConfig`` of a run with checkpoints in *directory*; *reward_weights* in the order of the functions."""
    from trl import GRPOConfig

    fields = weights.trainer_arguments(options, loaded, directory, *_OPTIONS)
    fields |= {
        "steps_per_generation": fields["gradient_accumulation_steps"]
        * options.steps_per_generation,
        "reward_weights": list(reward_weights),
        "shuffle_dataset": False,  # the data set has its own order, so that a resumed run can start in its middle
        "ignore_data_skip": True,
    }
    # Truncated importance sampling by token. The ratio of a whole completion is far from 1 if it is long, and near 0
    # if it is sampled without unlikely tokens. The cap is that of Yao et al. 2025, "Your Efficient RL Framework
    # Secretly Brings You Off-Policy RL Training".
    defaults = {
        "epsilon_high": options.aggregation.epsilon_high,
        "vllm_importance_sampling_mode": "token_truncate",
        "vllm_importance_sampling_clip_max": 2.0,
    }
    values = parse(options.trl, fields)
    try:
        config = GRPOConfig(**fields, **{**defaults, **values})
    except (ValueError, TypeError, ImportError, NotImplementedError) as error:
        if not values:
            raise
        raise refused(options, error) from error
    if config.n_gpu > 1:
        raise UsageError(
            f"one process trains on one GPU, and {config.n_gpu} are visible; set CUDA_VISIBLE_DEVICES=0."
        )
    return config


def refused(options: TrainOptions, error: Exception) -> UsageError:
    """The error for values of ``--trl`` that TRL answers by *error*."""
    return UsageError(
        f"{' '.join(options.trl)}: TRL refuses this: {first_line(error)}.", option="trl"
    )


def parse(trl: Sequence[str], owned: Collection[str]) -> dict[str, object]:
    """The values of *trl* ("key=value"), converted to the types of the fields of ``GRPOConfig`` but the *owned*."""
    if not trl:
        return {}
    from transformers import HfArgumentParser
    from trl import GRPOConfig

    keys = [item.partition("=")[0] for item in trl]
    free = GRPOConfig.__dataclass_fields__.keys() - _FIXED - set(owned)
    for key in keys:
        if key not in free or key.startswith(_FIXED_PREFIXES):
            raise UsageError(
                f"{key}: GRPOConfig has no such field, or it follows from another option.",
                option="trl",
            )
    try:
        values = HfArgumentParser(GRPOConfig, exit_on_error=False).parse_args(
            [f"--{item}" for item in trl]
        )
    except argparse.ArgumentError as error:
        raise UsageError(f"{' '.join(trl)}: {error.message[:200]}.", option="trl") from error
    for key in keys:
        value = getattr(values, key)
        if isinstance(value, int | float) and not (
            key in _SIGNED or 0 <= value <= (1 if key in _SHARES else inf)
        ):
            raise UsageError(
                f"{key}={value} is not from 0 to {1 if key in _SHARES else 'infinity'}.",
                option="trl",
            )
        if key in _CHOICES and value not in _CHOICES[key]:
            raise UsageError(
                f"{key}={value} is not one of: {', '.join(_CHOICES[key])}.", option="trl"
            )
    return {key: getattr(values, key) for key in keys}
