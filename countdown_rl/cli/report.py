"""``countdown-rl report``: one page about a run."""

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from countdown_rl.cli import console
from countdown_rl.cli.parameters import AsJson, with_options
from countdown_rl.errors import InputError, UsageError
from countdown_rl.report.config import ReportOptions


@with_options
def report(
    *,
    run: Annotated[Path, typer.Argument(help="Where the pipeline put things.")] = Path("artifacts"),
    result: Annotated[
        list[Path] | None, typer.Option(help="What eval wrote; may be repeated. All in RUN/eval when left out.")
    ] = None,
    log: Annotated[
        Path | None, typer.Option(help="The log of train; RUN/train/log.csv when left out, where there is one.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("artifacts/report.html"),
    options: ReportOptions,
    as_json: AsJson = False,
) -> None:
    """Make one self-contained HTML page about a run.

    Results with intervals and paired differences, what they are made of, training curves, completions with
    every sum checked, and the chain of manifests. It opens from disk and needs no network.

    **Examples**

    `countdown-rl report`

    `countdown-rl report --result artifacts/eval/base --result artifacts/eval/adapter --out page.html`
    """
    from countdown_rl.report import page

    try:
        sources = page.find(run, results=result or (), log=log)
    except InputError as error:
        raise UsageError(str(error)) from None
    size = page.write(sources, out, transcripts=options.transcripts)
    values = {
        "out": str(out),
        "bytes": size,
        "results": [path.as_posix() for path in sources.results.values()],
        "log": None if sources.log is None else sources.log.as_posix(),
    }
    view = Text(f"{out} ", style="bold").append(
        f"{size / 1000:,.0f} kB, {', '.join(sources.results)}" + ("" if sources.log else "; no training log"),
        style="not bold",
    )
    console.result(values, as_json=as_json, view=view)
