"""Options of ``gen-data``."""

from dataclasses import dataclass
from typing import Annotated, Literal

from countdown_rl.core.options import Options, option
from countdown_rl.tasks.options import RULE, Fields, Prompt, RecordsPath
from countdown_rl.tasks.registry import DEFAULT
from countdown_rl.tasks.response_format import StyleName

PUZZLES, SPLITS, IMPORT, RUN = "Puzzles", "Splits", "Import", "Run"
_TENTH = "a tenth, at most 1,000"


@dataclass(frozen=True)
class DataOptions(Options):
    """Puzzles to generate or import, and how they are split.

    ``Task.data_options`` names the options of the distribution that a task has. ``size``,
    ``numbers``, ``targets``, ``operators`` and ``rule`` override the preset.
    """

    preset: Annotated[
        Literal["3to4", "24", "tv"], option("Distribution to draw from.", PUZZLES)
    ] = "3to4"
    size: Annotated[
        tuple[str, ...], option("Count of numbers; repeatable.", PUZZLES, metavar="K[=WEIGHT]")
    ] = ()
    numbers: Annotated[
        str | None, option("Range (1-99), or tiles without replacement (25,50,1-10x2).", PUZZLES)
    ] = None
    targets: Annotated[
        str | None, option("Targets; without + and -, up to 9999.", PUZZLES, metavar="LOW-HIGH")
    ] = None
    operators: Annotated[str | None, option("Allowed operators, e.g. '+-*'.", PUZZLES)] = None
    rule: Annotated[str | None, option(RULE, PUZZLES)] = None
    impossible: Annotated[
        float, option("Share of rows proved to have no solution.", PUZZLES, min=0, max=1)
    ] = 0.0
    n: Annotated[int, option("Rows in all splits together.", SPLITS, min=3)] = 50_000
    valid: Annotated[
        int | None, option("Rows for validation.", SPLITS, min=0, show_default=_TENTH)
    ] = None
    test: Annotated[int | None, option("Rows for testing.", SPLITS, min=0, show_default=_TENTH)] = (
        None
    )
    style: StyleName = None
    template: Prompt = None
    task: Annotated[
        str, option("Task of the rows: countdown, gsm8k (imported), or one of another package.")
    ] = DEFAULT
    from_: Annotated[
        str | None, option("JSONL, JSON, CSV or Parquet.", IMPORT, name="--from", metavar="FILE")
    ] = None
    field: Fields = ()
    records: RecordsPath = None
    test_from: Annotated[
        str | None, option("Test rows, kept out of the other splits.", IMPORT, metavar="FILE")
    ] = None
    from_hub: Annotated[
        str | None,
        option(
            "Hub data set; its held-out splits are kept.",
            IMPORT,
            metavar="NAME[:CONFIG][@REVISION]",
        ),
    ] = None
    exclude: Annotated[
        tuple[str, ...],
        option("Rows to leave out; without target, all of their numbers.", IMPORT, metavar="FILE"),
    ] = ()
    seed: Annotated[int, option("Random seed.", RUN, min=0)] = 42
