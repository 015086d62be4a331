from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType

from countdown_rl.cli import console
from countdown_rl.core.formatting import percent


def diagnose(
    results: Annotated[
        list[str], typer.Argument(help="Directories of eval, one or more.", metavar="DIR...")
    ],
) -> None:
    """Break down an evaluation's errors by cause.

    Each cause is listed with the accuracy points that repairing it would gain. The result of a repaired equation is
    passed on to later equations. The causes are incorrect equations, format, truncation and answers inconsistent
    with the reasoning.

    Examples:
        countdown-rl diagnose artifacts/eval/base artifacts/eval/adapter
    """
    from countdown_rl.evaluation import diagnose as diagnosis
    from countdown_rl.evaluation.compare import by_setting
    from countdown_rl.evaluation.results import read

    values = {
        name: diagnosis.diagnose(read(paths[0])) for name, paths in by_setting(results).items()
    }
    views = [part for name, value in values.items() for part in _view(name, value)]
    console.result(values, Group(*views))


def _view(name: str, value: dict[str, Any]) -> list[RenderableType]:
    from countdown_rl.evaluation.diagnose import LABELS

    lost = f"{percent(value['lost'])} of the completions are incorrect"
    title = f"{name}: {lost if value['lost'] else 'all completions are correct, so no fault costs points'}"
    if not value["steps"]:
        title += "; no equation in them can be checked"
    if not (value["causes"] or value["lost"]):
        return [title, ""]
    causes = console.table("cause", "points", "completions", "occurrences", title=title)
    for row in value["causes"]:
        written = value["steps"].get(row["cause"].removeprefix("incorrect "), {}).get("written")
        of = f" of {written:,}" if written else ""
        cells = (
            f"{100 * row['points']:.1f}",
            f"{row['completions']:,}",
            f"{row['occurrences']:,}{of}",
        )
        causes.add_row(
            LABELS.get(row["cause"], row["cause"]) + (" (at most)" if row["at_most"] else ""),
            *cells,
        )
    if value["lost"]:
        causes.add_row("no single cause", f"{100 * value['unexplained']:.1f}")
    return [causes, ""]
