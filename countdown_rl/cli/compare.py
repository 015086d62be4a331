from pathlib import Path
from textwrap import fill
from typing import Annotated

import typer
from rich.table import Table

from countdown_rl.cli import console
from countdown_rl.cli.parameters import Out, option
from countdown_rl.core.formatting import percent, plural
from countdown_rl.core.manifest import file_sha256
from countdown_rl.core.types import JsonObject
from countdown_rl.evaluation.config import EvalOptions


def compare(
    results: Annotated[
        list[str],
        typer.Argument(
            help="Directories of eval, or files of completions; NAME=DIR,DIR,... for a mean.",
            metavar="DIR|NAME=DIR,...",
        ),
    ],
    out: Out = Path("artifacts/eval/comparison"),
    against: Annotated[
        str | None, option("Compare all others with this result.", metavar="NAME")
    ] = None,
) -> None:
    """Compare evaluations on the same puzzles.

    Each result is compared with the first one decoded in the same way, or with --against: the
    difference, paired by puzzle, with its 95% interval and McNemar's exact test. With several
    completions per puzzle, pass@k is compared too. Baselines (eval --model random or solver) are
    compared only with a single model. Runs of one setting, such as its seeds in the same order, are
    averaged; ± is their standard deviation. changes.jsonl has the puzzles whose grade changed, with
    both completions; report shows them.

    Examples:
        countdown-rl compare artifacts/eval/base artifacts/eval/adapter
        countdown-rl compare start SFT=s1,s2,s3 GRPO=g1,g2,g3
    """
    from countdown_rl.evaluation import compare as comparison

    settings = comparison.by_setting(list(map(_directory, results)))
    evaluations = {name: [*map(_evaluation, paths)] for name, paths in settings.items()}
    values = comparison.compare(evaluations, out, against, console.warn)
    console.result({"out": str(out)} | values, _view(values))
    console.done(f"Wrote {out / comparison.TABLE}.", "countdown-rl report")


def _directory(word: str) -> str:
    """Return the directory of the evaluation of which *word* may be a file."""
    from countdown_rl.evaluation.results import DETAILS, METRICS, SAMPLES

    path = Path(word)
    is_part = path.name in (METRICS, DETAILS, SAMPLES) and (path.parent / DETAILS).is_file()
    return str(path.parent) if is_part else word


def _evaluation(path: Path) -> Path:
    """Return the directory of the evaluation at *path*; a file of completions is evaluated first."""
    if not path.is_file():
        return path
    from countdown_rl.evaluation import evaluate

    out = evaluate.default_out(path.with_suffix(""))
    out = out.with_name(f"{out.name}-{file_sha256(path)[:8]}")  # files may have one name
    options = EvalOptions()
    evaluate.evaluate(options, completions=path, out=out, overwrite=False, on_note=console.note)
    return out


def _view(values: JsonObject) -> Table:
    """The table of the differences, whose lines fit 80 columns."""
    from countdown_rl.evaluation.tables import counted, difference_head, largest_k, points, subject

    k = largest_k(values)
    title = f"{subject(values)}; 95% intervals in parentheses"
    heading = fill(difference_head(values), 22)
    table = console.table("", "solved", heading, "improved/\nregressed", "p", title=title)
    for row in values["results"]:
        change = row.get("against", {})
        parts = {row["name"]: ({"share": row["accuracy"], **row}, change)}
        if k in row.get("pass_at", ()):
            parts[f"  pass@{k}"] = (row["pass_at"][k], change.get("pass_at", {}).get(k))
        for name, (score, difference) in parts.items():
            low, high = score["interval"]
            cells = [name, f"{percent(score['share'])} ({100 * low:.1f}-{percent(high)})"]
            if difference:
                cells.append(points(difference, sd=False))
            if difference and "p" in difference:
                cells.append(f"{difference['improved']:,}/{difference['regressed']:,}")
                cells.append(f"{difference['p']:.2g}")
            table.add_row(*cells)
        if "runs" in row:
            sds = (f"± {100 * part['sd']:.1f}" for part in (row, change) if "sd" in part)
            table.add_row(f"  mean of {plural(len(row['runs']), 'run')}", *sds)
        if "of" in row:
            table.add_row(f"  only {counted(row)}")
    return table
