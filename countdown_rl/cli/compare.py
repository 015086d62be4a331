"""``countdown-rl compare``: evaluations side by side."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from countdown_rl.cli import console
from countdown_rl.cli.parameters import AsJson, Out, option
from countdown_rl.errors import InputError, UsageError
from countdown_rl.formatting import interval, percent


def compare(
    results: Annotated[list[Path], typer.Argument(help="Directories of eval, two or more, in order.")],
    out: Out = Path("artifacts/eval/comparison"),
    changed: Annotated[int, option("Number of puzzles to show whose grade changed, with both completions.", min=0)] = 0,
    as_json: AsJson = False,
) -> None:
    """Compare evaluations on the same puzzles.

    Each is compared with the first and with the one before it that were decoded in the same way: the paired
    difference with its 95% interval, and McNemar's exact test. With several completions per puzzle pass@k is compared
    too. The bounds (eval --model random and --model solver) are listed without comparison.

    Examples:
        countdown-rl compare artifacts/eval/base artifacts/eval/adapter
        countdown-rl compare artifacts/eval/base artifacts/eval/adapter --changed 5
    """
    from countdown_rl.evaluation import compare as comparison

    try:
        named = comparison.by_name(results)
    except InputError as error:
        raise UsageError(str(error)) from None
    values = comparison.compare(named, out)
    view: RenderableType = _view(values)
    if changed:
        changes = comparison.read_changes(out)
        values["changes"] = changes[:changed]
        count = Text(f"\n{len(values['changes'])} of {len(changes):,} whose grade changed", style="dim")
        view = Group(view, *map(_change, values["changes"]), count)
    console.result({"out": str(out)} | values, as_json=as_json, view=view)


def _view(values: dict[str, Any]) -> Table:
    from countdown_rl.evaluation.compare import largest_k, points

    first = values["results"][0]
    heads = ["", "solved", "95% interval", "against the first", "against the one before", "p"]
    k = largest_k(values)
    heads += [f"pass@{k}", "against the one before"] if k else []
    table = console.table(*heads, title=f"{first['n']:,} held-out puzzles")
    for row in values["results"]:
        cells = [row["name"], percent(row["accuracy"]), interval(row["interval"])]
        if "against_first" in row:
            previous = row["against_previous"]
            cells += [points(row["against_first"]), points(previous), f"{previous['p']:.2g}"]
        if k in row.get("pass_at", ()):
            change = row.get("against_previous", {}).get("pass_at", {}).get(k)
            cells += [""] * (6 - len(cells))
            cells.append(percent(row["pass_at"][k]["share"]))
            cells += [points(change)] if change else []
        table.add_row(*cells)
    return table


def _change(change: dict[str, Any]) -> Text:
    text = Text(f"\n{console.problem(change)}", style="bold")
    text.append(f"  {change['side']} from {change['from']} to {change['to']}\n", style="dim")
    for name, sample in ((change["from"], change["before"]), (change["to"], change["after"])):
        text.append(f"{'✓' if sample['correct'] else '✗'} {name}", style="green" if sample["correct"] else "red")
        text.append(f"  {sample['reason']}\n" if sample["reason"] else "\n", style="dim")
        text.append(sample["completion"].strip("\n") + "\n", style="default")
    return text
