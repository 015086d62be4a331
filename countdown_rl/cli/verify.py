from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from countdown_rl.cli import console
from countdown_rl.cli.parameters import option
from countdown_rl.core.formatting import interval, percent

if TYPE_CHECKING:
    from countdown_rl.release.verify import Verification


def verify(
    release: Annotated[
        str, typer.Argument(help="Directory of publish, or NAME/MODEL[@REVISION] on the Hub.")
    ],
    fresh: Annotated[int, option("Number of new puzzles.", min=1, max=100_000)] = 300,
    seed: Annotated[
        int | None, option("Random seed of the new puzzles.", min=0, show_default="random")
    ] = None,
    limit: Annotated[
        int | None, option("Only the first N recorded puzzles.", min=1, show_default="all")
    ] = None,
    data: Annotated[
        list[Path] | None,
        option("File of the recorded puzzles, if no manifest says how to generate it; repeatable."),
    ] = None,
) -> None:
    """Re-measure the accuracy a release claims.

    The weights complete the recorded test puzzles again, and new puzzles of the same distribution.
    The claim is confirmed if both measurements are consistent with it, each by a two-sided exact
    test at 1% on at least 100 puzzles. It is refuted if files differ from the manifest, or metrics
    from the completions when these are graded again. The exit status is 0 only if the claim is
    confirmed.

    Examples:
        countdown-rl verify artifacts/release
        countdown-rl verify me/countdown-tiny-nf4@v1 --fresh 1000
    """
    from countdown_rl.release import verify as verification

    with console.progress("completions") as update:
        report = verification.verify(
            release, fresh=fresh, seed=seed, limit=limit, data=data or (), on_batch=update
        )
    console.result(asdict(report) | {"conclusion": report.conclusion}, _view(report))
    if report.conclusion != verification.CONFIRMED:
        raise typer.Exit(1)


def _view(report: "Verification") -> Table:
    from countdown_rl.release.templates import short
    from countdown_rl.release.verify import MIN_PUZZLES, TOO_FEW

    commit = f" at {short(report.revision)}" if report.revision else ""
    table = Table(box=None, pad_edge=False, show_header=False, title_justify="left")
    table.title = f"{report.source}{commit}, manifest {short(report.digest)}"
    if report.accuracy is not None:
        table.add_row("claimed", f"{percent(report.accuracy)} of {report.n:,}")
    for part in report.measured:
        measured = f"{percent(part.accuracy)} of {part.n:,} ({interval(part.interval)})"
        table.add_row(f"{part.puzzles} puzzles", f"{measured}, p {part.p:.2g}")
    if len(report.measured) == 1:
        table.add_row("new puzzles", "not measured: no manifest says how to generate them")
    for reason in report.reasons:
        table.add_row("reason", reason, style="red")
    table.add_row("seed", str(report.seed), end_section=True)
    color = {"confirmed": "green", "refuted": "red"}.get(report.conclusion, "yellow")
    conclusion = report.conclusion
    if conclusion == TOO_FEW:
        conclusion += f": the claim and each measurement need {MIN_PUZZLES} puzzles"
    table.add_row("conclusion", conclusion, style=f"bold {color}")
    return table
