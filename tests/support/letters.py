"""A task found by its entry point. A random model solves half of it, so every step has a gradient."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from countdown_rl.core.errors import InputError
from countdown_rl.core.user_code import PLUGINS
from countdown_rl.tasks import registry
from countdown_rl.tasks.prompt import Prompt
from countdown_rl.tasks.task import Grade, Group, Row, Task


class LettersRow(Row):
    """Numbers and a target; any completion with an even number of letters is correct."""

    task = "letters"
    styles = ("direct",)
    kept_fields = ("nums", "target")

    def __init__(self, fields):
        super().__init__(fields)
        if not {"nums", "target"} <= fields.keys():
            raise InputError("`nums` or `target` is missing")

    def default_prompt(self):
        return Prompt(self.headline)

    def grade(self, completion):
        return self.graded(completion, len(completion) % 2 == 0)

    def graded(self, completion, correct):
        return Grade(True, True, correct, completion, None, "" if correct else "odd", False)

    def judge(self, answer):
        raise NotImplementedError

    @property
    def reference(self):
        return "ab"

    @property
    def headline(self):
        return f"{self['nums']} {self['target']}"

    @property
    def identity(self):
        return self.headline

    @property
    def groups(self):
        return {"numbers": str(len(self["nums"]))}


def letter_sum(grade, row, tokens):
    """A reward with many values."""
    return sum(map(ord, grade.answer)) % 7 / 7


TASK = Task(
    name="letters",
    title="Letters",
    purpose="Write an even number of letters.",
    row=LettersRow,
    fields={"nums": "numbers", "target": "a number", "solution": "none"},
    example={"nums": [1], "target": 1},
    reasons={"odd": "an odd number of letters"},
    groups={"numbers": Group("Count of numbers", "{} numbers")},
)


@contextmanager
def installed(directory: Path, **values: str) -> Iterator[None]:
    """Install the task, or entry points with *values*, as a distribution in *directory*."""
    entries = values or {"letters": f"{__name__}:TASK"}
    metadata = directory / "letters-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: letters\nVersion: 1.0\n")
    lines = [f"[{registry.GROUP}]", *(f"{name} = {value}" for name, value in entries.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    sys.path.append(str(directory))
    forget()
    try:
        yield
    finally:
        PLUGINS.difference_update(entries.values())
        sys.path.remove(str(directory))
        forget()


def forget() -> None:
    registry._others.cache_clear()
    registry.task.cache_clear()
