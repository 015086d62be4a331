"""``countdown-rl samples``: read what a model wrote."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from countdown_rl import artifacts
from countdown_rl.cli import console
from countdown_rl.cli.console import plain
from countdown_rl.errors import UsageError


def samples(
    result: Annotated[Path, typer.Argument(help="What eval wrote, or the directory of the log of train.")] = Path(
        "artifacts/eval/adapter"
    ),
    n: Annotated[int, typer.Option(min=1, help="How many to show.")] = 5,
    right: Annotated[bool, typer.Option("--right", help="Only right ones.")] = False,
    wrong: Annotated[bool, typer.Option("--wrong", help="Only wrong ones.")] = False,
    reason: Annotated[str | None, typer.Option(help="Only those refused for this reason.")] = None,
    step: Annotated[
        str | None, typer.Option(metavar="N or A-B", help="Only those that train took at these steps.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Read what a model wrote, each completion with its grade.

    The completions are those of an evaluation, or the ones that train keeps beside its log.

    **Examples**

    `countdown-rl samples artifacts/eval/adapter --wrong`

    `countdown-rl samples artifacts/eval/base --reason number-used-twice --n 3`

    `countdown-rl samples artifacts/train --step 50-100 --n 20`
    """
    if right and (wrong or reason):
        raise UsageError("--right shows no wrong ones; leave out --wrong and --reason.")
    steps = _steps(step) if step else None
    wanted = [
        sample
        for sample in _read(result)
        if (not right or sample["correct"])
        and (not wrong or not sample["correct"])
        and (reason is None or sample["reason"] == reason)
        and (steps is None or sample.get("step") in steps)
    ]
    shown = wanted[:n]
    view = Text("\n\n").join([*map(_view, shown), Text(f"{len(shown)} of {len(wanted)} completions", style="dim")])
    console.result({"all": len(wanted), "samples": shown}, as_json=as_json, view=view)


def _read(result: Path) -> list[dict[str, Any]]:
    from countdown_rl.evaluation import results
    from countdown_rl.runlog import journal

    file = result / journal.SAMPLES if result.is_dir() else result
    # An evaluation has samples too, and a manifest that answers for them.
    if file.is_file() and not (file.parent / artifacts.MANIFEST).exists():
        return journal.read_samples(file)
    return results.read(result).samples


def _steps(text: str) -> range:
    first, dash, last = text.partition("-")
    if not (first.isdecimal() and (last.isdecimal() if dash else True)):
        raise UsageError(f"--step {text} is neither a step nor two of them, as in 50-100.")
    return range(int(first), int(last if dash else first) + 1)


def _view(sample: dict[str, Any]) -> Text:
    puzzle = f"{' '.join(map(str, sample['nums']))} → {sample['target']}" if "nums" in sample else sample["question"]
    text = Text(f"step {sample['step']}  " if "step" in sample else "", style="dim")
    text.append(plain(puzzle), style="bold").append("\n")
    text.append(plain(sample["completion"].strip("\n")), style="default").append("\n")
    answer, value = sample["answer"], sample["value"]
    said = plain(f"{answer} = {value}" if value not in (None, answer) else answer or "")
    if sample["correct"]:
        return text.append(f"✓ {said}", style="green")
    return text.append(f"✗ {sample['reason']}" + (f" ({said})" if said else ""), style="red")
