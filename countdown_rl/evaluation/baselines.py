"""Baselines, which take the place of a model in an evaluation: same rows, same response format, same grader."""

import random
from collections.abc import Sequence

from countdown_rl.inference.generate import Completion
from countdown_rl.tasks import registry
from countdown_rl.tasks.task import Baseline, Row


def find(name: str, rows: Sequence[Row]) -> Baseline | None:
    """The baseline called *name* of the task of *rows*; None where there is no such baseline, or several tasks."""
    tasks = {row.task for row in rows}
    return registry.task(tasks.pop()).baselines.get(name) if len(tasks) == 1 else None


def answer(baseline: Baseline, row: Row, seed: str) -> str:
    """The completion of *row* by a *baseline*: empty thinking, and its answer."""
    return row.style.answer(baseline.answer(row, random.Random(seed)))


def complete(baseline: Baseline, rows: Sequence[Row], seed: int, samples: int) -> list[Completion]:
    """So many completions of each row by a *baseline*, those of a row side by side."""
    return [
        Completion(answer(baseline, row, f"{seed} {index} {turn}"), 0, True)
        for index, row in enumerate(rows)
        for turn in range(samples)
    ]
