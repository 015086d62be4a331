"""The options of every stage, one frozen dataclass each: the only place where a default is written.

Field names are the flags of the command (``--batch-size`` is ``batch_size``). Light to import.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from countdown_rl.errors import UsageError


@dataclass(frozen=True)
class DataOptions:
    """``gen-data``: how many puzzles, of which kinds, and where the lines between splits fall."""

    n: int = 50_000
    seed: int = 42


@dataclass(frozen=True)
class WarmupOptions:
    """``warmup``: supervised training on search traces, from nothing or from a model."""

    model: str | None = None
    revision: str | None = None
    steps: int = 2_400
    batch_size: int = 64
    optimizer: str = "muon"
    learning_rate: float = 4e-3
    weight_decay: float = 0.05
    hit_rate: float = 0.4
    max_lines: int = 8
    seed: int = 42
    vocab_size: int = 512
    hidden_size: int = 256
    layers: int = 4
    heads: int = 4
    intermediate_size: int = 512
    context: int = 1_024
    threads: int = 0

    def __post_init__(self) -> None:
        check_choices(self, WARMUP_CHOICES)
        for name in ("hidden_size", "intermediate_size"):
            if getattr(self, name) % 64:
                raise UsageError(f"--{name.replace('_', '-')} must be a multiple of 64, which 4-bit formats need.")
        if self.hidden_size % (2 * self.heads):
            raise UsageError(f"--heads {self.heads} does not divide --hidden-size {self.hidden_size} into even parts.")


WARMUP_CHOICES = {"optimizer": ("muon", "adamw")}


def check_choices(options: Any, choices: Mapping[str, tuple[str, ...]]) -> None:
    """Refuse a value that is none of the *choices* for its field."""
    for name, allowed in choices.items():
        if getattr(options, name) not in allowed:
            flag = "--" + name.replace("_", "-")
            raise UsageError(f"{flag} {getattr(options, name)} is none of: {', '.join(allowed)}.")
