"""Options of ``gen-data``."""

from dataclasses import dataclass
from typing import Annotated, Literal

from countdown_rl.core.options import RULE, Options, Prompt, option
from countdown_rl.tasks.registry import DEFAULT
from countdown_rl.tasks.response_format import StyleName, style_name

PUZZLES, SPLITS, IMPORT, RUN = "Puzzles", "Splits", "Import", "Run"


@dataclass(frozen=True)
class PuzzleOptions(Options):
    """Distribution of the puzzles to generate; ``Task.data_options`` names those of these options that a task has.

    ``size``, ``numbers``, ``targets``, ``operators`` and ``rule`` override the preset.
    """

    preset: Annotated[Literal["3to4", "24", "tv"], option("Distribution to draw from.", PUZZLES)] = "3to4"
    size: Annotated[
        tuple[str, ...], option("Count of numbers, with an optional weight; repeatable.", PUZZLES, metavar="K[=WEIGHT]")
    ] = ()
    numbers: Annotated[
        str | None, option("Range of the numbers (1-99), or tiles sampled without replacement (25,50,1-10x2).", PUZZLES)
    ] = None
    targets: Annotated[
        str | None, option("Range of the targets; without + and -, up to 9999.", PUZZLES, metavar="LOW-HIGH")
    ] = None
    operators: Annotated[str | None, option("Allowed operators, e.g. '+-*'.", PUZZLES)] = None
    rule: Annotated[str | None, option(RULE, PUZZLES)] = None
    impossible: Annotated[float, option("Share of rows proved to have no solution.", PUZZLES, min=0, max=1)] = 0.0


@dataclass(frozen=True)
class DataOptions(PuzzleOptions):
    """Puzzles to generate or import, and how they are split."""

    n: Annotated[int, option("Rows in all splits together.", SPLITS, min=3)] = 50_000
    valid: Annotated[
        int | None, option("Rows for validation.", SPLITS, min=0, show_default="a tenth, at most 1,000")
    ] = None
    test: Annotated[int | None, option("Rows for testing.", SPLITS, min=0, show_default="a tenth, at most 1,000")] = (
        None
    )
    rows: Annotated[
        str | None,
        option(
            "Write only these training rows of the data set, from row A up to B. The rows before A are generated too, "
            "as none of them may be repeated.",
            SPLITS,
            metavar="A:B",
        ),
    ] = None
    style: StyleName = None
    template: Prompt = None
    task: Annotated[str, option("Task of the rows: countdown, gsm8k (imported), or one of another package.")] = DEFAULT
    from_: Annotated[
        str | None,
        option("JSONL, JSON, CSV or Parquet file to import.", IMPORT, name="--from", metavar="FILE"),
    ] = None
    test_from: Annotated[
        str | None,
        option(
            "File of your own test rows, as for --from; they are kept out of the other splits.",
            IMPORT,
            metavar="FILE",
        ),
    ] = None
    from_hub: Annotated[
        str | None,
        option(
            "Hub data set to import, e.g. openai/gsm8k. Its test and validation splits are kept.",
            IMPORT,
            metavar="NAME[:CONFIG][@REVISION]",
        ),
    ] = None
    revision: Annotated[str | None, option("Commit, tag or branch of --from-hub.", IMPORT)] = None
    exclude: Annotated[
        tuple[str, ...],
        option(
            "File of rows to leave out; a row without target excludes its numbers. Repeatable.",
            IMPORT,
            metavar="FILE",
        ),
    ] = ()
    seed: Annotated[int, option("Random seed.", RUN, min=0)] = 42
    workers: Annotated[int, option("Threads; 0: one per core. The rows do not depend on it.", RUN, min=0)] = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "style", style_name(self.style))
        super().__post_init__()
