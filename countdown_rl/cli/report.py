from pathlib import Path
from typing import Annotated

import typer

from countdown_rl.cli import console
from countdown_rl.cli.parameters import option


def report(
    run: Annotated[Path, typer.Argument(help="Directory of the artifacts.")] = Path("artifacts"),
    result: Annotated[
        list[str] | None,
        option(
            "Directory of eval, or NAME=DIR,... of seeds; repeatable.", show_default="RUN/eval/*"
        ),
    ] = None,
    log: Annotated[
        list[str] | None,
        option("Log, or NAME=LOG,... of seeds; repeatable.", show_default="RUN/train/log.csv"),
    ] = None,
    demo: Annotated[
        Path | None, option("GGUF of the model, for demo.html.", show_default="RUN/gguf if present")
    ] = None,
    out: Annotated[Path, option("File to write.")] = Path("artifacts/report.html"),
    figures: Annotated[
        Path | None, option("Directory for the training curves as SVG files.")
    ] = None,
) -> None:
    """Write one self-contained HTML page about a run.

    It shows results with intervals and paired differences, training curves, completions with every
    equation checked, and the provenance. With --log alone it is about training alone.

    If the run was validated (train --eval-every), a slider moves through training and shows
    what the model wrote for the same puzzles. The page opens from disk and needs no network.

    Given the model as GGUF, it also writes demo.html, on which the model solves the puzzles you
    type, in the browser and without a network.

    Examples:
        countdown-rl report
        countdown-rl report --demo artifacts/gguf
        countdown-rl report --result start --result GRPO=g1,g2,g3 --log g1.csv
    """
    from countdown_rl.release.report import page

    results, runs = page.find(run, results=result or (), logs=log or ())
    model = demo
    if not demo and (run / "gguf").is_dir():
        model = run / "gguf"
    beside = out.with_name("demo.html")
    content = page.view(results, runs)
    html = page.text(content, demo=beside.name if model else None)
    if figures:
        page.save_figures(content["curves"], figures)
    if model:
        from countdown_rl.release.demo.page import of_model

        page.save(of_model(model, content["results"]), beside)
    page.save(html, out)
    about = {"results": list(results), "logs": list(runs), "demo": str(beside) if model else None}
    console.result({"out": str(out), **about})
    text = f"Wrote {out} about {', '.join(results) or 'no evaluation'}"
    if model:
        text += f", and {beside}, which runs {model}"
    console.done(f"{text}.")
