from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from countdown_rl.cli import console
from countdown_rl.cli.parameters import option
from countdown_rl.core.errors import InputError, UsageError
from countdown_rl.core.formatting import percent, plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from countdown_rl.evaluation.sample import Sample


def samples(
    result: Annotated[Path, typer.Argument(help="Directory of eval, or of a log.")] = Path(
        "artifacts/eval/adapter"
    ),
    n: Annotated[int, option("Number of completions to show.", min=1)] = 5,
    correct: Annotated[
        bool | None, option("Only correct or incorrect ones.", name="--correct/--incorrect")
    ] = None,
    reason: Annotated[
        str | None, option("Only those incorrect for this reason, such as number-used-twice.")
    ] = None,
    step: Annotated[
        str | None, option("Only those of these training steps.", metavar="N|A-B")
    ] = None,
    errors: Annotated[
        bool, option("Break down the errors by cause instead.", name="--errors")
    ] = False,
) -> None:
    """Show completions with their grades, or the causes of errors.

    Reads an evaluation, or the samples that train and sft write beside their log: without --step,
    those of the last step first and those of validation last.

    With --errors each cause is listed with the accuracy points that repairing it would gain:
    incorrect equations, format, truncation, and answers inconsistent with the reasoning. The result
    of a repaired equation is passed on to later equations.

    Examples:
        countdown-rl samples artifacts/eval/base --errors
        countdown-rl samples artifacts/eval/base --reason wrong-value --n 3
        countdown-rl samples artifacts/train --step 50-100 --n 20
    """
    if correct and reason:
        raise UsageError("excludes --reason; leave one out.", option="correct")
    if errors:
        _show_causes(result)
        return
    samples = _read(result)
    selected = list(samples)
    if correct is not None:
        selected = [sample for sample in selected if sample.grade.correct == correct]
    if reason:
        selected = [sample for sample in selected if sample.grade.reason == reason]
    if step:
        steps = _steps(step)
        selected = [sample for sample in selected if sample.step in steps]
    else:  # of a training run, the last step first
        selected.sort(key=lambda sample: (bool(sample.validation), -(sample.step or 0)))

    shown = selected[:n]
    count = f"{len(shown):,} of {plural(len(selected), 'completion')}"
    if not selected:
        reasons = {sample.grade.reason for sample in samples} - {""}
        count = f"no such completion; the reasons are {', '.join(sorted(reasons))}"
    view = Text("\n\n").join([*map(_view, shown), Text(count, style="dim")])
    lines = [sample.to_json() for sample in shown]
    console.result({"all": len(selected), "samples": lines}, view)


def _read(result: Path) -> "Sequence[Sample]":
    from countdown_rl.evaluation import results, training_log

    file = result / training_log.SAMPLES if result.is_dir() else result
    if file.is_file() and not (file.parent / results.DETAILS).exists():
        return training_log.read_samples(file)
    if (result / "log.csv").is_file():
        raise InputError(f"the run in {result} saved no samples; sft saves them with --eval-every.")
    return results.read(result).samples


def _steps(text: str) -> range:
    """Return the steps of a number or a range such as 50-100."""
    first, dash, last = text.partition("-")
    try:
        return range(int(first), int(last if dash else first) + 1)
    except ValueError:
        sentence = f"{text} is neither a step nor a range of steps such as 50-100."
        raise UsageError(sentence, option="step") from None


def _view(sample: "Sample") -> Text:
    step = ""
    if sample.step is not None:
        step = f"step {sample.step}"
    if sample.validation:
        step += ", validation"
    elif sample.group is not None:
        step += f", group {sample.group}"
    mark, color = ("✓", "green") if sample.grade.correct else ("✗", "red")
    return Text.assemble(
        (f"{step}  ".lstrip(), "dim"),
        (f"{sample.row.headline}\n", "bold"),
        (sample.row.opening + sample.completion).strip("\n"),
        (f"\n{mark} {sample.verdict}", color),
        (f"  {sample.rewarded}".rstrip(), "dim"),
    )


def _show_causes(result: Path) -> None:
    from countdown_rl.evaluation import results
    from countdown_rl.evaluation.diagnose import LABELS, diagnose

    report = diagnose(results.read(result))
    title = f"{result}: {percent(report['lost'])} of the completions are incorrect"
    table = console.table("cause", "points", "completions", "occurrences", title=title)
    for row in report["causes"]:
        name = LABELS.get(row["cause"], row["cause"])
        if row["at_most"]:
            name += " (at most)"
        counts = (f"{row['completions']:,}", f"{row['occurrences']:,}")
        table.add_row(name, f"{100 * row['points']:.1f}", *counts)
    if report["lost"]:
        table.add_row("other", f"{100 * report['unexplained']:.1f}")
    console.result(report, table)
