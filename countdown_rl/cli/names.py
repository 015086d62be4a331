"""Advice on an unknown option: its name here if it is an option of another program."""

from collections.abc import Collection

from countdown_rl.core.options import nearest

_RESUME = ("the same command again; it resumes",)

#: Other names of an option. The first suggestion applies whose flag the command has, or that is no
#: flag.
OTHER_NAMES = {
    "lr": ("--learning-rate",),
    "epochs": ("--num-train-epochs", "--max-steps"),
    "per-device-train-batch-size": ("--micro-batch",),
    "gradient-accumulation-steps": ("--micro-batch",),
    "batch-size": ("--prompts",),
    "kl-coef": ("--beta",),
    "fp16": ("--precision fp16", "--dtype fp16"),
    "max-tokens": ("--max-new-tokens", "--max-completion-length"),
    "max-new-tokens": ("--max-completion-length",),
    "max-completion-length": ("--max-new-tokens",),
    "n": ("--limit",),
    "model": ("--adapter",),
    "revision": ("--model NAME@REVISION", "--from-hub NAME@REVISION"),
    "train-file": ("--from", "--data"),
    "output-dir": ("--out",),
    "eval-steps": ("--eval-every",),
    "wandb": ("--trl report_to=wandb",),
    "report-to": ("--trl report_to=NAME, by default none",),
    "hub-model-id": ("--push NAME/MODEL", "countdown-rl publish --push NAME/MODEL"),
    "processes": ("accelerate launch -m countdown_rl",),
    "resume": _RESUME,
    "resume-from-checkpoint": _RESUME,
}


def advice(name: str, flags: Collection[str]) -> str:
    """Return what to use for an unknown option of a command.

    Args:
        name: the option, without its dashes.
        flags: the flags of the command.
    """
    for suggestion in OTHER_NAMES.get(name, ()):
        flag = suggestion.split()[0]
        if flag in flags or not flag.startswith("--"):
            return f"use {suggestion}."
    if match := nearest(f"--{name}", flags):
        return f"did you mean {match}?"
    if "--trl" in flags:
        return f"a field of TRL's configuration is --trl {name.replace('-', '_')}=VALUE."
    return "see --help."
