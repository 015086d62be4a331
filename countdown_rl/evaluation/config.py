"""Options of ``eval``."""

from dataclasses import dataclass

from countdown_rl.errors import UsageError
from countdown_rl.options import check_choices

EVAL_CHOICES = {
    "engine": ("auto", "transformers", "vllm", "llama-cpp"),
    "precision": ("auto", "nf4", "bf16", "fp32"),
    "device": ("auto", "cpu", "cuda", "mps"),
}


@dataclass(frozen=True)
class EvalOptions:
    """``eval``: how completions are drawn, and how many puzzles are asked."""

    n: int | None = None
    max_new_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    samples: int = 1
    seed: int = 42
    batch_size: int = 0
    engine: str = "auto"
    agreement: int = 8
    precision: str = "auto"
    device: str = "auto"
    threads: int = 0

    def __post_init__(self) -> None:
        check_choices(self, EVAL_CHOICES)
        if self.samples > 1 and self.temperature == 0:
            raise UsageError("--samples draws the same completion each time without a --temperature above 0.")
