import os
import time
from pathlib import Path

from rich.table import Table

from countdown_rl.cli import console
from countdown_rl.cli.parameters import Out
from countdown_rl.core.formatting import plural
from countdown_rl.core.types import JsonObject
from countdown_rl.data.config import DataOptions
from countdown_rl.tasks import registry
from countdown_rl.tasks.task import Task

#: Seconds between two updates of the progress.
INTERVAL = 0.2


def gen_data(*, out: Out = Path("artifacts/data"), options: DataOptions) -> None:
    """Generate or import puzzles, split for training and testing.

    Writes train.jsonl, valid.jsonl and test.jsonl. Exhaustive search gives every row its number of
    solutions, one of them, and whether + and - suffice. A set of numbers is always in the same
    split, whatever the options.

    Examples:
        countdown-rl gen-data --n 50000
        countdown-rl gen-data --size 3 --size 4=2 --numbers 1-20 --impossible 0.1
        countdown-rl gen-data --from-hub Jiayi-Pan/Countdown-Tasks-3to4
    """
    # The first use compiles the kernel, a second faster at this optimization level; the code is as
    # fast.
    os.environ.setdefault("NUMBA_OPT", "1")
    from countdown_rl.data import build

    start = due = time.monotonic()
    with console.progress("rows") as update:
        if not (options.from_ or options.from_hub):
            update(0, options.n, "compiling at first use")

        def on_row(count: int, total: int) -> None:
            nonlocal due
            if time.monotonic() >= due:
                due = time.monotonic() + INTERVAL
                update(count, total)

        facts = build.make(options, out, on_row)
    for note in facts.get("notes", ()):
        console.note(note)
    for reason, text in facts.get("reasons", {}).items():
        console.note(f"dropped {plural(facts['dropped'][reason], 'row')}: {text}")
    for split, counts in facts["splits"].items():
        if not counts["rows"]:
            console.warn(f"the split {split} is empty.")
    view = _table(facts["splits"], registry.task(options.task))
    console.result({"out": str(out), **facts}, view)
    seconds = time.monotonic() - start
    console.done(f"Wrote {out} in {seconds:.0f} s.", f"countdown-rl train --data {out}")


def _table(splits: JsonObject, task: Task) -> Table:
    columns: dict[tuple[str, str], str] = {}
    for counts in splits.values():
        for group, values in counts["groups"].items():
            if task.group(group).main:
                columns |= {(group, value): task.group(group).name(value) for value in values}

    table = console.table("split", "rows", *columns.values())
    for split, counts in splits.items():
        cells = [counts["rows"]]
        for group, value in columns:
            cells.append(counts["groups"].get(group, {}).get(value, 0))
        table.add_row(split, *(f"{cell:,}" for cell in cells))
    return table
