"""Options of ``sft``."""

from dataclasses import dataclass
from typing import Annotated, Literal

from typer import Option

from countdown_rl.errors import UsageError
from countdown_rl.options import Options, flag

TRACES, OPTIMISER, SHAPE = "Traces", "Optimiser", "New model"


@dataclass(frozen=True)
class SftOptions(Options):
    """Supervised training on search traces, of a new model or an existing one."""

    model: Annotated[str | None, Option(help="Model to continue from.", show_default="a new, small one")] = None
    revision: Annotated[str | None, Option(help="Revision of a Hub model.")] = None
    give_up: Annotated[
        float, Option(min=0, max=1, help="Probability of giving up after a failed line.", rich_help_panel=TRACES)
    ] = 0.0
    max_lines: Annotated[int, Option(min=1, help="Maximum lines of a trace.", rich_help_panel=TRACES)] = 12
    max_steps: Annotated[int, Option(min=1, help="Optimiser steps.", rich_help_panel=OPTIMISER)] = 2_600
    batch_size: Annotated[int, Option(min=1, help="Traces per step.", rich_help_panel=OPTIMISER)] = 32
    optimizer: Annotated[
        Literal["muon", "adamw"], Option(help="Optimiser of the matrices.", rich_help_panel=OPTIMISER)
    ] = "muon"
    learning_rate: Annotated[float, Option(min=0, help="Peak learning rate.", rich_help_panel=OPTIMISER)] = 3e-3
    weight_decay: Annotated[float, Option(min=0, rich_help_panel=OPTIMISER)] = 0.05
    vocab_size: Annotated[int, Option(min=320, help="Maximum vocabulary.", rich_help_panel=SHAPE)] = 640
    hidden_size: Annotated[int, Option(min=64, help="A multiple of 64.", rich_help_panel=SHAPE)] = 256
    layers: Annotated[int, Option(min=1, rich_help_panel=SHAPE)] = 4
    heads: Annotated[int, Option(min=1, rich_help_panel=SHAPE)] = 4
    intermediate_size: Annotated[int, Option(min=64, help="A multiple of 64.", rich_help_panel=SHAPE)] = 512
    context: Annotated[int, Option(min=64, help="Context length in tokens.", rich_help_panel=SHAPE)] = 1_024
    seed: Annotated[int, Option(min=0, help="Random seed.")] = 42
    threads: Annotated[int, Option(min=0, help="CPU threads; 0: all available.")] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("hidden_size", "intermediate_size"):
            if getattr(self, name) % 64:
                raise UsageError(f"{flag(name)} must be a multiple of 64, which 4-bit formats need.")
        if self.hidden_size % (2 * self.heads):
            raise UsageError(f"--heads {self.heads} does not divide --hidden-size {self.hidden_size} into even parts.")
