"""``countdown-rl compare``: evaluations side by side."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from countdown_rl.cli import console
from countdown_rl.errors import InputError, UsageError


def compare(
    results: Annotated[list[Path], typer.Argument(help="What eval wrote, two or more, in order.")],
    out: Annotated[Path, typer.Option(help="The directory to write.")] = Path("artifacts/eval/comparison"),
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Compare evaluations on the same puzzles.

    Each is held against the first and against the one before it, puzzle by puzzle: the paired difference
    with its 95% interval, and McNemar's exact test. A floor and a ceiling (`eval --model random` and
    `--model solver`) stand in the table and are held against nothing.

    **Example**

    `countdown-rl compare artifacts/eval/base artifacts/eval/adapter artifacts/eval/merged`
    """
    from countdown_rl import comparison

    try:
        named = comparison.named(results)
    except InputError as error:
        raise UsageError(str(error)) from None
    values = comparison.compare(named, out)
    console.result({"out": str(out)} | values, as_json=as_json, view=_view(values))


def _view(values: dict[str, Any]) -> Table:
    from countdown_rl.comparison import percent, points

    first = values["results"][0]
    table = Table(box=None, pad_edge=False, title=f"{first['n']:,} held-out puzzles", title_justify="left")
    for name in ("", "solved", "95% interval", "against the first", "against the one before", "p"):
        table.add_column(name, justify="right" if name else "left")
    for row in values["results"]:
        low, high = row["interval"]
        cells = [row["name"], percent(row["accuracy"]), f"{percent(low)} to {percent(high)}"]
        if "against_first" in row:
            previous = row["against_previous"]
            cells += [points(row["against_first"]), points(previous), f"{previous['p']:.2g}"]
        table.add_row(*cells)
    return table
