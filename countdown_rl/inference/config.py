"""Options of ``ask``."""

from dataclasses import dataclass
from typing import Annotated, Literal

from typer import Option

from countdown_rl.options import Device, Options, Precision, RuleName

PUZZLE, DECODING, MACHINE = "Puzzle", "Decoding", "Machine"


@dataclass(frozen=True)
class AskOptions(Options):
    """Rule of one puzzle, and decoding settings of its completion."""

    rule: Annotated[RuleName, Option(help="How often a number is used.", rich_help_panel=PUZZLE)] = "exactly-once"
    operators: Annotated[str, Option(help="Allowed operators.", rich_help_panel=PUZZLE)] = "+-*/"
    style: Annotated[
        Literal["begun", "own"],
        Option(
            help="Response format. begun: the prompt opens <think>, as in training; own: the model does.",
            rich_help_panel=PUZZLE,
        ),
    ] = "begun"
    max_new_tokens: Annotated[
        int, Option(min=1, help="Maximum tokens of the completion.", rich_help_panel=DECODING)
    ] = 512
    temperature: Annotated[
        float, Option(min=0, help="Sampling temperature; 0 is greedy.", rich_help_panel=DECODING)
    ] = 0.0
    top_p: Annotated[float, Option(min=0.01, max=1, help="Nucleus sampling.", rich_help_panel=DECODING)] = 1.0
    seed: Annotated[int, Option(min=0, help="Random seed of sampling.", rich_help_panel=DECODING)] = 42
    precision: Annotated[Precision, Option(help="Precision of the weights.", rich_help_panel=MACHINE)] = "auto"
    device: Annotated[Device, Option(help="Device to compute on.", rich_help_panel=MACHINE)] = "auto"
