"""``countdown-rl gen-data``: Countdown puzzles as JSONL."""

from pathlib import Path
from typing import Any

from rich.table import Table

from countdown_rl.cli import console
from countdown_rl.cli.parameters import AsJson, Out, with_options
from countdown_rl.data.config import DataOptions


@with_options
def gen_data(*, out: Out = Path("artifacts/data"), options: DataOptions, as_json: AsJson = False) -> None:
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

    facts = build.make(options, out)
    for reason, count in facts.get("dropped", {}).items():
        console.note(f"dropped {count:,}: {reason}")
    for split, made in facts["splits"].items():
        if not made["rows"]:
            console.warn(f"no row belongs to {split}.")
    console.result({"out": str(out), **facts}, as_json=as_json, view=_table(facts["splits"]))


def _table(splits: dict[str, Any]) -> Table:
    columns = sorted(
        {(what, value) for made in splits.values() for what in ("size", "needs") for value in made.get(what, ())}
    )
    table = Table("split", "rows", *(f"{value} numbers" if what == "size" else value for what, value in columns))
    for split, made in splits.items():
        cells = (made.get(what, {}).get(value, 0) for what, value in columns)
        table.add_row(split, f"{made['rows']:,}", *(f"{cell:,}" for cell in cells))
    return table
