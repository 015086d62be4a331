"""``countdown-rl samples``: read what a model wrote."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from countdown_rl.cli import console
from countdown_rl.errors import UsageError


def samples(
    result: Annotated[Path, typer.Argument(help="What eval wrote.")] = Path("artifacts/eval/adapter"),
    n: Annotated[int, typer.Option(min=1, help="How many to show.")] = 5,
    right: Annotated[bool, typer.Option("--right", help="Only right ones.")] = False,
    wrong: Annotated[bool, typer.Option("--wrong", help="Only wrong ones.")] = False,
    reason: Annotated[str | None, typer.Option(help="Only those refused for this reason.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Read completions of an evaluation, each with its grade.

    **Examples**

    `countdown-rl samples artifacts/eval/adapter --wrong`

    `countdown-rl samples artifacts/eval/base --reason number-used-twice --n 3`
    """
    if right and (wrong or reason):
        raise UsageError("--right shows no wrong ones; leave out --wrong and --reason.")
    from countdown_rl import evaluation

    everything = evaluation.read(result).samples
    wanted = [
        sample
        for sample in everything
        if (not right or sample["correct"])
        and (not wrong or not sample["correct"])
        and (reason is None or sample["reason"] == reason)
    ]
    shown = wanted[:n]
    view = Text("\n\n").join([*map(_view, shown), Text(f"{len(shown)} of {len(wanted)} completions", style="dim")])
    console.result({"all": len(wanted), "samples": shown}, as_json=as_json, view=view)


def _view(sample: dict[str, Any]) -> Text:
    puzzle = f"{' '.join(map(str, sample['nums']))} → {sample['target']}" if "nums" in sample else sample["question"]
    text = Text(console.plain(puzzle), style="bold").append("\n")
    text.append(console.plain(sample["completion"].strip("\n")), style="default").append("\n")
    answer, value = sample["answer"], sample["value"]
    said = console.plain(f"{answer} = {value}" if value not in (None, answer) else answer or "")
    if sample["correct"]:
        return text.append(f"✓ {said}", style="green")
    return text.append(f"✗ {sample['reason']}" + (f" ({said})" if said else ""), style="red")
