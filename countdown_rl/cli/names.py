"""Names of options in other programs, and what stands for them here."""

from collections.abc import Collection

_RESUME = ("the same command again; it resumes",)
_MICRO_BATCH = ("--micro-batch",)
_MODEL = ("--model", "--adapter")
_PUBLISH = ("--repo-id", "countdown-rl publish --push --repo-id NAME/MODEL")

#: Other names of an option. The first suggestion applies whose flag the command has, or that is no flag.
OTHER_NAMES = {
    "lr": ("--learning-rate",),
    "steps": ("--max-steps",),
    "epochs": ("--num-train-epochs", "--max-steps"),
    "num-train-epochs": ("--max-steps",),
    "per-device-train-batch-size": _MICRO_BATCH,
    "gradient-accumulation-steps": _MICRO_BATCH,
    "batch-size": ("--prompts",),
    "group-size": ("--num-generations",),
    "rank": ("--lora-r",),
    "kl": ("--beta",),
    "kl-coef": ("--beta",),
    "fp16": ("--precision fp16",),
    "bf16": ("--precision bf16",),
    "load-in-4bit": ("--precision nf4",),
    "max-tokens": ("--max-new-tokens", "--max-completion-length"),
    "max-new-tokens": ("--max-completion-length",),
    "max-completion-length": ("--max-new-tokens",),
    "n": ("--limit",),
    "num-samples": ("--samples", "--n"),
    "pass-at": ("--samples",),
    "model": ("--adapter",),
    "adapter": ("--model",),
    "model-name-or-path": _MODEL,
    "revision": tuple(f"{flag} NAME@REVISION" for flag in (*_MODEL, "--from-hub")),
    "dataset": ("--data", "--from-hub"),
    "train-file": ("--from", "--data"),
    "output-dir": ("--out",),
    "reward-funcs": ("--reward",),
    "use-vllm": ("--rollouts vllm", "--engine vllm"),
    "eval-steps": ("--eval-every",),
    "logging-dir": ("--log",),
    "wandb": ("--trl report_to=wandb",),
    "report-to": ("--trl report_to=wandb",),
    "lr-scheduler-type": ("--trl lr_scheduler_type=cosine",),
    "gradient-checkpointing": ("--trl gradient_checkpointing=true",),
    "num-iterations": ("--trl num_iterations=N",),
    "warmup-steps": ("--trl warmup_steps=N",),
    "weight-decay": ("--trl weight_decay=X",),
    "curriculum": ("--sampler curriculum",),
    "hub-model-id": _PUBLISH,
    "push-to-hub": ("--push", "countdown-rl publish --push"),
    "num-processes": ("accelerate launch -m countdown_rl",),
    "processes": ("accelerate launch -m countdown_rl",),
    "resume": _RESUME,
    "resume-from-checkpoint": _RESUME,
}


def hint(name: str, flags: Collection[str]) -> str | None:
    """Return what to use for the option *name* of another program in a command with these *flags*."""
    for suggestion in OTHER_NAMES.get(name, ()):
        flag = suggestion.split()[0]
        if flag in flags or not flag.startswith("--"):
            return f"use {suggestion}."
    return None
