"""The options of every stage, one frozen dataclass each: the only place where a default is written.

Field names are the flags of the command (``--batch-size`` is ``batch_size``). Light to import.
"""

from dataclasses import dataclass


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
    learning_rate: float = 2e-3
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
    threads: int | None = None
