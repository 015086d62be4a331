"""Baselines: what a task has to compare a model with.

Each takes the place of a model in an evaluation: same rows, same response format, same grader.
"""

import random
from collections.abc import Sequence

from countdown_rl.core.errors import InputError
from countdown_rl.inference.generate import Completion
from countdown_rl.tasks import registry
from countdown_rl.tasks.task import Baseline, Row, resolve


def find(name: str, rows: Sequence[Row]) -> Baseline | None:
    """The baseline called *name* of the task of *rows*; None where no task has such a baseline.

    Raises:
        InputError: only another task has it.
    """
    tasks = {row.task for row in rows}
    if name not in registry.baseline_names():
        return None
    candidates = [baseline for task in tasks if (baseline := registry.task(task).baselines.get(name))]
    if len(tasks) > 1 or not candidates:
        raise InputError(f"{name} is no baseline of the task {' or '.join(sorted(tasks))}; give --model a model.")
    return candidates[0]


def complete(baseline: Baseline, row: Row, seed: str) -> Completion:
    """The completion of *row* by a *baseline*: empty thinking, and its answer."""
    answer = resolve(baseline.answer)(row, random.Random(seed))
    return Completion(row.style.answer(answer), 0, True)
