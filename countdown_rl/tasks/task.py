"""What a task is: its prompt, and how a completion to it is read and graded.

A task is a module with a ``name`` and the two functions of :class:`Task`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from countdown_rl.errors import InputError

Row = Mapping[str, Any]

#: What is kept of a row beside a completion: enough to read it, and to grade it again.
SHOWN = ("id", "task", "nums", "target", "needs", "operators", "rule", "style", "question", "gold")


@dataclass(frozen=True)
class Grade:
    """What a completion is worth.

    Attributes:
        format: thinking, then an answer, each in its tags and in that order.
        strict_format: exactly these two blocks and nothing else.
        correct: the answer is right.
        answer: the text of the answer that was read, if there was one.
        value: its exact value as text, ``65`` or ``13/2``, if it has one.
        reason: empty when correct, else a stable slug that says why not.
        trailing: something stands after the last ``</answer>``.
        legal: the answer keeps the rules of the task, right or wrong.
    """

    format: bool
    strict_format: bool
    correct: bool
    answer: str | None
    value: str | None
    reason: str
    trailing: bool

    @property
    def legal(self) -> bool:
        return self.correct or self.reason in ("wrong-value", "answers-disagree")

    @property
    def well_formed(self) -> bool:
        """The answer could be read at all: it has a value, or says that there is none."""
        return self.value is not None or self.correct or self.reason == "not-impossible"


class Task(Protocol):
    @property
    def name(self) -> str: ...

    def messages(self, row: Row) -> list[dict[str, str]]:
        """The conversation that puts *row* to a model; it may end in an assistant turn already begun."""

    def grade(self, completion: str, row: Row) -> Grade:
        """The grade of what the model wrote after the prompt."""


def get(name: str) -> Task:
    """The task of that name.

    Raises:
        InputError: there is none.
    """
    if name == "countdown":
        from countdown_rl.tasks import countdown

        return countdown
    if name == "gsm8k":
        from countdown_rl.tasks import gsm8k

        return gsm8k
    raise InputError(f"There is no task {name!r}; take countdown or gsm8k.")


def of_row(row: Row) -> Task:
    """The task that *row* belongs to: its ``task``, or countdown."""
    return get(row.get("task") or "countdown")
