"""Options of pretraining."""

from dataclasses import dataclass
from typing import Annotated

from countdown_rl.core.errors import UsageError
from countdown_rl.core.formatting import flag
from countdown_rl.core.options import Options, option

TRACES, OPTIMISER, SHAPE = "Traces", "Optimiser", "Model"


@dataclass(frozen=True)
class PretrainOptions(Options):
    """Pretraining of a small Llama on search traces."""

    drills: Annotated[
        float, option("Share of puzzles made for exact divisions.", TRACES, min=0, max=1)
    ] = 0.2
    max_lines: Annotated[int, option("Maximum lines of a trace.", TRACES, min=1)] = 64
    judge: Annotated[
        bool,
        option(
            "Teach to name the kind of a puzzle and to skip ways that look poor for it.", TRACES
        ),
    ] = False
    checks: Annotated[
        float,
        option(
            "Chance that a line is written again, which follows the plan in order.",
            TRACES,
            min=0,
            max=0.9,
        ),
    ] = 0.0
    max_steps: Annotated[int, option("Optimiser steps.", OPTIMISER, min=1)] = 3_000
    batch_tokens: Annotated[int, option("Tokens per step, prompts included.", OPTIMISER, min=1)] = (
        8_192
    )
    learning_rate: Annotated[float, option("Peak learning rate.", OPTIMISER, min=0)] = 3e-3
    weight_decay: Annotated[float, option("Decoupled weight decay.", OPTIMISER, min=0)] = 0.05
    decay: Annotated[
        float,
        option("Share of the steps in which the learning rate decays.", OPTIMISER, min=0, max=1),
    ] = 0.5
    vocab_size: Annotated[int, option("Maximum vocabulary.", SHAPE, min=3_136)] = 3_328
    hidden_size: Annotated[int, option("A multiple of 64.", SHAPE, min=64)] = 256
    layers: Annotated[int, option("Number of layers.", SHAPE, min=1)] = 4
    heads: Annotated[int, option("Number of attention heads.", SHAPE, min=1)] = 4
    intermediate_size: Annotated[int, option("A multiple of 64.", SHAPE, min=64)] = 512
    context: Annotated[int, option("Context length in tokens.", SHAPE, min=64)] = 1_024
    seed: Annotated[int, option("Random seed.", min=0)] = 42
    threads: Annotated[int, option("CPU threads; 0: all available.", min=0)] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.checks and self.judge:
            raise UsageError(
                "a teacher judges ways or checks lines; leave out --judge or --checks."
            )
        for name in ("hidden_size", "intermediate_size"):
            if getattr(self, name) % 64:
                raise UsageError(
                    f"{flag(name)} must be a multiple of 64, which 4-bit formats need."
                )
        if self.hidden_size % (2 * self.heads):
            raise UsageError(
                f"--heads {self.heads} does not divide --hidden-size {self.hidden_size} into "
                "even parts."
            )
