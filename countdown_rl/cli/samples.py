from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from countdown_rl.cli import console
from countdown_rl.cli.parameters import option
from countdown_rl.core.errors import InputError, UsageError
from countdown_rl.core.formatting import percent, plural
from countdown_rl.tasks.registry import task_of
from countdown_rl.tasks.task import REASONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from countdown_rl.evaluation.sample import Sample


def samples(
    result: Annotated[Path, typer.Argument(help="Directory of eval, or of a log.")] = Path(
        "artifacts/eval/adapter"
    ),
    n: Annotated[int, option("Number of completions to show.", min=1)] = 5,
    correct: Annotated[bool, option("Only correct ones.", name="--correct")] = False,
    incorrect: Annotated[bool, option("Only incorrect ones.", name="--incorrect")] = False,
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

    Reads an evaluation, or the samples that train and sft write beside their log: without --step, those of the last
    step first and those of validation last.

    With --errors each cause is listed with the accuracy points that repairing it would gain: incorrect equations,
    format, truncation, and answers inconsistent with the reasoning. The result of a repaired equation is passed on to
    later equations.

    Examples:
        countdown-rl samples artifacts/eval/base --errors
        countdown-rl samples artifacts/eval/base --reason wrong-value --n 3
        countdown-rl samples artifacts/train --step 50-100 --n 20
    """
    if correct and (incorrect or reason):
        raise UsageError("excludes --incorrect and --reason; leave them out.", option="correct")
    if errors:
        _show_causes(result)
        return
    steps = _steps(step) if step else None
    samples = _read(result)
    there = sorted({sample.step for sample in samples if sample.step is not None})
    if steps is not None and not any(number in steps for number in there):
        of = f"{step}: samples are of steps {', '.join(map(str, there))}."
        raise UsageError(
            f"{of if there else 'is for samples of training; leave it out.'}", option="step"
        )
    reasons = {
        name for sample in samples[:1] for name in {**REASONS, **task_of(sample.row).reasons}
    }
    if reason is not None and reason not in reasons:
        raise UsageError(f"{reason} is not one of: {', '.join(sorted(reasons))}.", option="reason")
    selected = [
        sample
        for sample in samples
        if not ((correct and not sample.grade.correct) or (incorrect and sample.grade.correct))
        and reason in (None, sample.grade.reason)
        and (steps is None or sample.step in steps)
    ]
    if steps is None:  # of a training run, the last ones of training first
        selected.sort(key=lambda sample: (bool(sample.validation), -(sample.step or 0)))
    shown = selected[:n]
    count = (
        f"{len(shown):,} of {plural(len(selected), 'completion')}"
        if selected
        else "no such completion"
    )
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
    first, dash, last = text.partition("-")
    if not (first.isdecimal() and (last.isdecimal() if dash else True)):
        raise UsageError(
            f"{text} is neither a step nor a range of steps such as 50-100.", option="step"
        )
    return range(int(first), int(last if dash else first) + 1)


def _view(sample: "Sample") -> Text:
    kind = (
        ", validation"
        if sample.validation
        else f", group {sample.group}"
        if sample.group is not None
        else ""
    )
    step = ("" if sample.step is None else f"step {sample.step}{kind}  ", "dim")
    grade = (
        (f"✓ {sample.verdict}", "green") if sample.grade.correct else (f"✗ {sample.verdict}", "red")
    )
    text = (
        "\n",
        (sample.row.opening + sample.completion).strip("\n"),
        "\n",
        grade,
        (f"  {sample.rewarded}".rstrip(), "dim"),
    )
    return Text.assemble(step, (sample.row.headline, "bold"), *text)


def _show_causes(result: Path) -> None:
    from countdown_rl.evaluation import results
    from countdown_rl.evaluation.diagnose import LABELS, diagnose

    report = diagnose(results.read(result))
    if report["lost"]:
        title = f"{result}: {percent(report['lost'])} of the completions are incorrect"
    else:
        title = f"{result}: all completions are correct, so no fault costs points"
    if not report["steps"]:
        title += "; no equation in them can be checked"
    table = console.table("cause", "points", "completions", "occurrences", title=title)
    for row in report["causes"]:
        written = report["steps"].get(row["cause"].removeprefix("incorrect "), {}).get("written")
        table.add_row(
            LABELS.get(row["cause"], row["cause"]) + (" (at most)" if row["at_most"] else ""),
            f"{100 * row['points']:.1f}",
            f"{row['completions']:,}",
            f"{row['occurrences']:,}" + (f" of {written:,}" if written else ""),
        )
    if report["lost"]:
        table.add_row("other", f"{100 * report['unexplained']:.1f}")
    console.result(report, table if report["causes"] or report["lost"] else title)
