"""Options of ``warmup``."""

from dataclasses import dataclass

from countdown_rl.errors import UsageError
from countdown_rl.options import check_choices

WARMUP_CHOICES = {"optimizer": ("muon", "adamw")}


@dataclass(frozen=True)
class WarmupOptions:
    """``warmup``: supervised training on search traces, from nothing or from a model."""

    model: str | None = None
    revision: str | None = None
    steps: int = 2_600
    batch_size: int = 32
    optimizer: str = "muon"
    learning_rate: float = 3e-3
    weight_decay: float = 0.05
    give_up: float = 0.0
    max_lines: int = 12
    seed: int = 42
    vocab_size: int = 640
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
