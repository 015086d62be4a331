"""``countdown-rl gen-data``: Countdown puzzles as JSONL."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from countdown_rl.cli import console
from countdown_rl.data.config import DataOptions

DEFAULT = DataOptions()

PUZZLES = "Puzzles"
SPLIT = "Splits"
IMPORT = "Published data"
RUN = "Run"


def gen_data(
    n: Annotated[int, typer.Option(min=3, help="Rows over all splits.", rich_help_panel=SPLIT)] = DEFAULT.n,
    valid: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Rows of the validation split. [default: a tenth, at most 1,000]",
            rich_help_panel=SPLIT,
        ),
    ] = DEFAULT.valid,
    test: Annotated[
        int | None,
        typer.Option(min=0, help="Rows of the test split. [default: a tenth, at most 1,000]", rich_help_panel=SPLIT),
    ] = DEFAULT.test,
    preset: Annotated[
        str, typer.Option(help="What to draw from: 3to4, 24 or tv.", rich_help_panel=PUZZLES)
    ] = DEFAULT.preset,
    size: Annotated[
        list[str] | None,
        typer.Option(
            help="Numbers in a puzzle, with a weight or without; repeat it.",
            metavar="K[=WEIGHT]",
            rich_help_panel=PUZZLES,
        ),
    ] = None,
    numbers: Annotated[
        str | None,
        typer.Option(
            help="What numbers are drawn from: 1-99; or tiles, each there once or xK times: 25,50,1-10x2.",
            rich_help_panel=PUZZLES,
        ),
    ] = DEFAULT.numbers,
    targets: Annotated[
        str | None, typer.Option(help="The targets, as LOW-HIGH.", rich_help_panel=PUZZLES)
    ] = DEFAULT.targets,
    operators: Annotated[
        str | None, typer.Option(help="The signs that may be used, e.g. '+-*'.", rich_help_panel=PUZZLES)
    ] = DEFAULT.operators,
    rule: Annotated[
        str | None,
        typer.Option(help="exactly-once, at-most-once or television.", rich_help_panel=PUZZLES),
    ] = DEFAULT.rule,
    impossible: Annotated[
        float,
        typer.Option(min=0, max=1, help="Share of rows proved to have no solution.", rich_help_panel=PUZZLES),
    ] = DEFAULT.impossible,
    balance: Annotated[
        list[str] | None,
        typer.Option(help="Make these come equally often: needs, difficulty; repeat it.", rich_help_panel=PUZZLES),
    ] = None,
    style: Annotated[
        str | None,
        typer.Option(
            help="How the prompt ends: begun (with an open <think>), or own (the model writes its own tags).",
            rich_help_panel=PUZZLES,
        ),
    ] = DEFAULT.style,
    task: Annotated[
        str, typer.Option(help="countdown, or gsm8k (imported only).", rich_help_panel=IMPORT)
    ] = DEFAULT.task,
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Import a JSONL, JSON, CSV or Parquet file, compressed or not, instead of generating.",
            metavar="FILE",
            rich_help_panel=IMPORT,
        ),
    ] = DEFAULT.from_,
    from_hub: Annotated[
        str | None,
        typer.Option(
            help="Import a Hub data set, e.g. Jiayi-Pan/Countdown-Tasks-3to4 or openai/gsm8k.",
            metavar="NAME",
            rich_help_panel=IMPORT,
        ),
    ] = DEFAULT.from_hub,
    revision: Annotated[
        str | None, typer.Option(help="Commit, tag or branch of --from-hub.", rich_help_panel=IMPORT)
    ] = DEFAULT.revision,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            help="Keep out the puzzles of this file; a row without a target keeps out its numbers.",
            metavar="FILE",
            rich_help_panel=IMPORT,
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, help="Row i of a split depends on this and i alone.", rich_help_panel=RUN)
    ] = DEFAULT.seed,
    workers: Annotated[
        int,
        typer.Option(min=0, help="Threads; 0 for one a core. The rows stay the same.", rich_help_panel=RUN),
    ] = DEFAULT.workers,
    out: Annotated[Path, typer.Option(help="The directory to write.", rich_help_panel=RUN)] = Path("artifacts/data"),
    json: Annotated[
        bool, typer.Option("--json", help="Print the result as one JSON object.", rich_help_panel=RUN)
    ] = False,
) -> None:
    """Write Countdown puzzles as train.jsonl, valid.jsonl and test.jsonl.

    Every row is proved by exhaustion: how many solutions, one of them, whether + and - are enough. A set of
    numbers is in one split only, in this data set and in any other that this command ever makes.

    Examples:

      countdown-rl gen-data --n 50000

      countdown-rl gen-data --n 2000 --preset tv --impossible 0.1

      countdown-rl gen-data --from-hub Jiayi-Pan/Countdown-Tasks-3to4 --revision main

      countdown-rl gen-data --size 3 --size 4=2 --numbers 1-20 --targets 1-50 --balance needs
    """
    from countdown_rl.data import build

    options = DataOptions(
        n=n, seed=seed, valid=valid, test=test, preset=preset, size=tuple(size or ()), numbers=numbers,
        targets=targets, operators=operators, rule=rule, impossible=impossible, balance=tuple(balance or ()),
        style=style, workers=workers,
        task=task,
        from_=from_,
        from_hub=from_hub,
        revision=revision,
        exclude=tuple(exclude or ()),
    )  # fmt: skip
    facts = build.make(options, out)
    for reason, count in facts.get("dropped", {}).items():
        console.note(f"dropped {count:,}: {reason}")
    for split, made in facts["splits"].items():
        if not made["rows"]:
            console.warn(f"no row belongs to {split}.")
    console.result({"out": str(out), **facts}, as_json=json, view=_table(facts["splits"]))


def _table(splits: dict[str, Any]) -> Table:
    columns = sorted(
        {(what, value) for made in splits.values() for what in ("size", "needs") for value in made.get(what, ())}
    )
    table = Table("split", "rows", *(f"{value} numbers" if what == "size" else value for what, value in columns))
    for split, made in splits.items():
        cells = (made.get(what, {}).get(value, 0) for what, value in columns)
        table.add_row(split, f"{made['rows']:,}", *(f"{cell:,}" for cell in cells))
    return table
