"""Baselines, which replace the model in an evaluation: same rows, same response format, same grader."""

import random
from collections.abc import Sequence

from countdown_rl.inference.generate import Completion
from countdown_rl.tasks import registry
from countdown_rl.tasks.task import Baseline, Row


def find(name: str, rows: Sequence[Row]) -> Baseline | None:
    """The baseline *name* of the task of *rows*; None if there is none, or if there are several tasks."""
    tasks = {row.task for row in rows}
    return registry.task(tasks.pop()).baselines.get(name) if len(tasks) == 1 else None


def answer(baseline: Baseline, row: Row, seed: str) -> str:
    """The completion of *row*: empty thinking, and the answer of *baseline*."""
    return row.style.answer(baseline.answer(row, random.Random(seed)))


def complete(baseline: Baseline, rows: Sequence[Row], seed: int, samples: int) -> list[Completion]:
    """So many *samples* of each row, those of a row side by side."""
    return [
        Completion(answer(baseline, row, f"{seed} {index} {turn}"), 0, True)
        for index, row in enumerate(rows)
        for turn in range(samples)
    ]
