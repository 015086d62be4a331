from pathlib import Path
from typing import Annotated

import typer

from countdown_rl.cli import console
from countdown_rl.cli.parameters import Out
from countdown_rl.core.formatting import plural
from countdown_rl.training.options import CollectOptions


def collect(
    *,
    evaluations: Annotated[
        list[Path], typer.Argument(help="Directories of eval, on training puzzles.")
    ],
    out: Out = Path("artifacts/demonstrations"),
    options: CollectOptions,
) -> None:
    """Make demonstrations from a model's answers.

    Writes the correct completions of evaluations as demonstrations for sft (rejection sampling).
    Repeating this with the model that sft writes is expert iteration.

    Examples:
        countdown-rl eval --data artifacts/data/train.jsonl --limit 1000 \\
          --samples 8 --temperature 1 --out artifacts/eval/own
        countdown-rl collect artifacts/eval/own --per-puzzle 4
        countdown-rl sft --from artifacts/demonstrations/train.jsonl
    """
    from countdown_rl.training.sft import collect

    facts = collect.collect(evaluations, options, out)
    if facts["test_puzzles"]:
        left_out = plural(facts["test_puzzles"], "row")
        console.warn(f"{left_out} of a test split left out; use eval --data DIRECTORY/train.jsonl.")
    kept = f"{plural(facts['kept'], 'demonstration')} of {plural(facts['puzzles'], 'row')}"
    view = (
        f"{plural(facts['read'], 'completion')} read, {facts['correct']:,} correct; {kept} kept "
        f"({facts['kept'] / facts['puzzles']:.1f} per row), "
        f"{facts['mean_tokens']:.0f} tokens per correct completion"
    )
    console.result({"out": str(out)} | facts, view)
    console.done(f"Wrote {out}.", f"countdown-rl sft --from {out / collect.FILE}")
