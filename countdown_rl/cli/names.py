"""Advice on an unknown option: its name here if it is an option of another program."""

from collections.abc import Collection

from countdown_rl.core.options import nearest

_RESUME = ("the same command again; it resumes",)
_PROCESSES = ("accelerate launch -m countdown_rl",)
_PUBLISH = ("countdown-rl publish --push NAME/MODEL",)

#: Other names of an option. The first suggestion applies whose flag the command has, or that is no flag.
OTHER_NAMES = {
    "lr": ("--learning-rate",),
    "steps": ("--max-steps",),
    "epochs": ("--num-train-epochs", "--max-steps"),
    "per-device-train-batch-size": ("--micro-batch",),
    "gradient-accumulation-steps": ("--micro-batch",),
    "batch-size": ("--prompts",),
    "kl-coef": ("--beta",),
    "fp16": ("--precision fp16",),
    "bf16": ("--precision bf16",),
    "load-in-4bit": ("--precision nf4",),
    "max-tokens": ("--max-new-tokens", "--max-completion-length"),
    "max-new-tokens": ("--max-completion-length",),
    "max-completion-length": ("--max-new-tokens",),
    "n": ("--limit",),
    "num-samples": ("--samples", "--n"),
    "model": ("--adapter",),
    "revision": ("--model NAME@REVISION", "--from-hub NAME@REVISION"),
    "dataset": ("--data", "--from-hub"),
    "train-file": ("--from", "--data"),
    "output-dir": ("--out",),
    "reward-funcs": ("--reward",),
    "use-vllm": ("--rollouts vllm", "--engine vllm"),
    "eval-steps": ("--eval-every",),
    "wandb": ("--trl report_to=wandb",),
    "report-to": ("--trl report_to=NAME, by default none",),
    "hub-model-id": _PUBLISH,
    "num-processes": _PROCESSES,
    "processes": _PROCESSES,
    "resume": _RESUME,
    "resume-from-checkpoint": _RESUME,
}


def advice(name: str, flags: Collection[str]) -> str:
    """Return what to use for the unknown option *name* in a command with these *flags*."""
    for suggestion in OTHER_NAMES.get(name, ()):
        flag = suggestion.split()[0]
        if flag in flags or not flag.startswith("--"):
            return f"use {suggestion}."
    if match := nearest(f"--{name}", flags):
        return f"did you mean {match}?"
    if "--trl" in flags:
        return f"a field of TRL's configuration is --trl {name.replace('-', '_')}=VALUE."
    return "see --help."
