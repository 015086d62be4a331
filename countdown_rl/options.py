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
class MergeOptions:
    """``merge``: which base an adapter is folded into, what it is rounded to, how closely it is checked."""

    base: str = "original"
    dtype: str = "auto"
    verify: str = "sample"


@dataclass(frozen=True)
class QuantizeOptions:
    """``quantize``: the format that full-precision weights go into."""

    format: str = "nf4"
