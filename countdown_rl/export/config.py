"""Options of ``merge`` and ``quantize``."""

from dataclasses import dataclass

from countdown_rl.options import check_choices


@dataclass(frozen=True)
class MergeOptions:
    """``merge``: which base an adapter is folded into, what it is rounded to, how closely it is checked."""

    base: str = "original"
    dtype: str = "auto"
    verify: str = "sample"


QUANTIZE_CHOICES = {"format": ("nf4", "gguf", "w4a16"), "gguf_type": ("f16", "q8_0", "q4_0", "q4_k_m")}


@dataclass(frozen=True)
class QuantizeOptions:
    """``quantize``: the format that full-precision weights go into, and what they may lose by it.

    ``n`` and ``max_new_tokens`` say how the result is scored where puzzles are given; ``max_drop`` is in
    percentage points.
    """

    format: str = "nf4"
    gguf_type: str = "q8_0"
    max_drop: float | None = None
    n: int | None = None
    max_new_tokens: int = 256

    def __post_init__(self) -> None:
        check_choices(self, QUANTIZE_CHOICES)
