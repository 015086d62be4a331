"""Options of ``ask``."""

from dataclasses import dataclass
from typing import Annotated, Literal

from countdown_rl.options import Device, Options, Precision, RuleName, option

PUZZLE, DECODING, MACHINE = "Puzzle", "Decoding", "Machine"


@dataclass(frozen=True)
class AskOptions(Options):
    """Rule of one puzzle, and decoding settings of its completion."""

    rule: Annotated[RuleName, option("How often a number is used.", PUZZLE)] = "exactly-once"
    operators: Annotated[str, option("Allowed operators.", PUZZLE)] = "+-*/"
    style: Annotated[
        Literal["begun", "own"],
        option("Response format. begun: the prompt opens <think>, as in training; own: the model does.", PUZZLE),
    ] = "begun"
    max_new_tokens: Annotated[int, option("Maximum tokens of the completion.", DECODING, min=1)] = 512
    temperature: Annotated[float, option("Sampling temperature; 0 is greedy.", DECODING, min=0, max=100)] = 0.0
    top_p: Annotated[float, option("Nucleus sampling.", DECODING, min=0.01, max=1)] = 1.0
    seed: Annotated[int, option("Random seed of sampling.", DECODING, min=0)] = 42
    precision: Annotated[Precision, option("Precision of the weights.", MACHINE)] = "auto"
    device: Annotated[Device, option("Device to compute on.", MACHINE)] = "auto"
