"""Options of ``gen-data``."""

from dataclasses import dataclass
from typing import Annotated, Literal

from typer import Option

from countdown_rl.options import Options, RuleName

PUZZLES, SPLITS, IMPORT, RUN = "Puzzles", "Splits", "Import", "Run"


@dataclass(frozen=True)
class DataOptions(Options):
    """Puzzles to generate or import, and how they are split.

    ``size``, ``numbers``, ``targets``, ``operators`` and ``rule`` override the preset.
    """

    n: Annotated[int, Option(min=3, help="Rows in all splits together.", rich_help_panel=SPLITS)] = 50_000
    valid: Annotated[
        int | None,
        Option(min=0, help="Rows for validation.", show_default="a tenth, at most 1,000", rich_help_panel=SPLITS),
    ] = None
    test: Annotated[
        int | None,
        Option(min=0, help="Rows for testing.", show_default="a tenth, at most 1,000", rich_help_panel=SPLITS),
    ] = None
    preset: Annotated[
        Literal["3to4", "24", "tv"], Option(help="Distribution to draw from.", rich_help_panel=PUZZLES)
    ] = "3to4"
    size: Annotated[
        tuple[str, ...],
        Option(
            metavar="K[=WEIGHT]", help="Count of numbers, with an optional weight; repeatable.", rich_help_panel=PUZZLES
        ),
    ] = ()
    numbers: Annotated[
        str | None,
        Option(
            help="Range of the numbers (1-99), or tiles drawn without replacement (25,50,1-10x2).",
            rich_help_panel=PUZZLES,
        ),
    ] = None
    targets: Annotated[
        str | None, Option(metavar="LOW-HIGH", help="Range of the targets.", rich_help_panel=PUZZLES)
    ] = None
    operators: Annotated[str | None, Option(help="Allowed operators, e.g. '+-*'.", rich_help_panel=PUZZLES)] = None
    rule: Annotated[RuleName | None, Option(help="How often a number is used.", rich_help_panel=PUZZLES)] = None
    impossible: Annotated[
        float, Option(min=0, max=1, help="Share of rows proved to have no solution.", rich_help_panel=PUZZLES)
    ] = 0.0
    balance: Annotated[
        tuple[Literal["needs", "difficulty"], ...],
        Option(help="Property whose values come equally often; repeatable.", rich_help_panel=PUZZLES),
    ] = ()
    style: Annotated[
        Literal["begun", "own", "lines"] | None,
        Option(
            help="Response format. begun: the prompt opens <think>; own: the model does; lines: GSM8K only.",
            rich_help_panel=PUZZLES,
        ),
    ] = None
    task: Annotated[
        Literal["countdown", "gsm8k"], Option(help="Task of the rows; gsm8k is only imported.", rich_help_panel=IMPORT)
    ] = "countdown"
    from_: Annotated[
        str | None,
        Option(
            "--from",
            metavar="FILE",
            help="JSONL, JSON, CSV or Parquet file to import instead of generating.",
            rich_help_panel=IMPORT,
        ),
    ] = None
    from_hub: Annotated[
        str | None,
        Option(metavar="NAME", help="Hub data set to import, e.g. openai/gsm8k.", rich_help_panel=IMPORT),
    ] = None
    revision: Annotated[str | None, Option(help="Commit, tag or branch of --from-hub.", rich_help_panel=IMPORT)] = None
    exclude: Annotated[
        tuple[str, ...],
        Option(
            metavar="FILE",
            help="File of puzzles to keep out; a row without a target keeps out its numbers. Repeatable.",
            rich_help_panel=IMPORT,
        ),
    ] = ()
    seed: Annotated[int, Option(min=0, help="Random seed.", rich_help_panel=RUN)] = 42
    workers: Annotated[
        int, Option(min=0, help="Threads; 0: one per core. The rows do not depend on it.", rich_help_panel=RUN)
    ] = 0
