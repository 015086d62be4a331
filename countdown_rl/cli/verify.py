"""``countdown-rl verify``: a release, checked and evaluated again."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from countdown_rl.cli import console
from countdown_rl.cli.parameters import AsJson
from countdown_rl.formatting import interval, percent, short
from countdown_rl.options import option

if TYPE_CHECKING:
    from countdown_rl.hub.verify import Verification


def verify(
    release: Annotated[str, typer.Argument(help="Directory of publish, or NAME/MODEL[@REVISION] on the Hub.")],
    data: Annotated[
        list[Path] | None,
        option("Data directory or file of the release, where its manifests do not make it; repeatable."),
    ] = None,
    limit: Annotated[
        int | None, option("Evaluate only the first N puzzles again.", min=1, show_default="all of the release")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check a release, and evaluate it again.

    Its files, manifests, card and recorded samples must agree with each other. Its data are made again and searched
    for test puzzles. Then its weights complete the same puzzles with the recorded settings, and each text is compared.
    The conclusion is confirmed, within the arithmetic of another machine, or refuted; the exit status is 1 if refuted.
    Greedy texts may differ only where the weights find their tokens as likely, up to rounding.

    Examples:
        countdown-rl verify artifacts/release
        countdown-rl verify me/countdown-tiny-nf4@v1 --limit 100
    """
    from countdown_rl.cli.eval import with_share
    from countdown_rl.hub import verify as verification

    with console.progress("verifying") as update:
        report = verification.verify(release, data=data or (), limit=limit, on_batch=with_share(update))
    values = asdict(report) | {"conclusion": report.conclusion}
    console.result(values, as_json=as_json, view=_view(report))
    if report.reasons:
        raise typer.Exit(1)


def _view(report: "Verification") -> Table:
    commit = f" at {short(report.revision)}" if report.revision else ""
    table = Table(box=None, pad_edge=False, show_header=False, title_justify="left", caption_justify="left")
    table.title = f"{report.source}{commit}, manifest {short(report.digest)}"
    for subject, text in report.checked.items():
        table.add_row(subject, text)
    for location, again in report.evaluations.items():
        text = (
            f"recorded {percent(again.accuracy)} ({interval(again.interval)}, n {again.n:,}), here "
            f"{percent(again.accuracy_here)} with {again.engine}; {len(again.differing):,} of {again.completions:,} "
            "texts differ"
        )
        table.add_row(f"weights in {location}", text)
    for reason in report.reasons:
        table.add_row("reason", reason, style="red")
    for subject in report.not_checked:
        table.add_row("not checked", subject, style="dim")
    table.add_row(end_section=True)
    table.add_row("conclusion", report.conclusion, style="bold red" if report.reasons else "bold green")
    return table
