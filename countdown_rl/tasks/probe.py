"""Random prompts of a task, for comparing models and file formats; whether they can be solved does not matter."""

import random
from collections.abc import Mapping
from typing import Any

from countdown_rl import artifacts
from countdown_rl.tasks.registry import task_of
from countdown_rl.tasks.task import Row, Task


def rows(task: Task, count: int) -> list[Row]:
    """The first *count* probe rows of *task*; where it draws none, its example again and again."""
    rng = random.Random(2024)
    draw = task.probe or task.draw or (lambda rng: task.example)
    return [task.row({"task": task.name, **draw(rng)}) for _ in range(count)]


def conversations(model: Mapping[str, Any], count: int) -> list[list[dict[str, str]]]:
    """The prompts of *count* probe rows of the task that *model*, an entry of a manifest, was trained on."""
    return [row.messages() for row in rows(trained_on(model), count)]


def trained_on(model: Mapping[str, Any]) -> Task:
    """The task that *model*, an entry of a manifest, was trained on; the default one where none is recorded."""
    recorded = [link.facts.get("task") or link.options.get("task") for link in artifacts.chain(model)]
    return task_of({"task": next(filter(None, reversed(recorded)), None)})
