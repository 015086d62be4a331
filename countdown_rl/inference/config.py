"""Options of ``ask``."""

from dataclasses import dataclass

from countdown_rl.options import check_choices

ASK_CHOICES = {
    "rule": ("exactly-once", "at-most-once", "television"),
    "style": ("begun", "own"),
    "precision": ("auto", "nf4", "bf16", "fp32"),
    "device": ("auto", "cpu", "cuda", "mps"),
}


@dataclass(frozen=True)
class AskOptions:
    """``ask``: the rules of one puzzle, and how its completion is drawn."""

    rule: str = "exactly-once"
    operators: str = "+-*/"
    style: str = "begun"
    max_new_tokens: int = 512
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 42
    precision: str = "auto"
    device: str = "auto"

    def __post_init__(self) -> None:
        check_choices(self, ASK_CHOICES)
