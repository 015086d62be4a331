"""A task's data row, which knows its prompt and grades completions.

A task is a subclass of :class:`Row`, listed in :mod:`countdown_rl.tasks.registry`.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from countdown_rl.errors import InputError
from countdown_rl.tasks.response_format import STYLES, Style

#: Fields of a row that are kept beside a completion: enough to read it, and to grade it again.
SHOWN = ("id", "task", "nums", "target", "needs", "operators", "rule", "style", "question", "gold")


@dataclass(slots=True)  # not frozen: that would make grading a quarter slower
class Grade:
    """The verdict on a completion.

    Attributes:
        format: thinking, then an answer, each in its tags and in that order.
        strict_format: exactly these two blocks and nothing else.
        correct: the answer is right.
        answer: the text of the answer, if there is one.
        value: its exact value as text, ``65`` or ``13/2``, if it has one.
        reason: empty when correct, else a key of :data:`countdown_rl.tasks.explain.REASONS`.
        trailing: text other than white space follows the last ``</answer>``.
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
        """The answer keeps the rules of the task, right or wrong."""
        return self.correct or self.reason in ("wrong-value", "answers-disagree")

    @property
    def well_formed(self) -> bool:
        """The answer could be parsed: it has a value, or is "impossible"."""
        return self.value is not None or self.correct or self.reason == "not-impossible"


class Row(Mapping[str, Any]):
    """One row of a data set: a read-only mapping of its fields, validated when made.

    Attributes:
        task: the name of its task.
        style: the layout of its completions.

    Raises:
        InputError: a field is missing or wrong; the text says which, without a place.
    """

    task: ClassVar[str]
    default_style: ClassVar[str] = "begun"

    def __init__(self, fields: Mapping[str, Any]) -> None:
        style = fields.get("style") or self.default_style
        if not isinstance(style, str) or style not in STYLES:
            raise InputError(f"`style` should be one of {', '.join(STYLES)}")
        self._fields = dict(fields)
        self.style: Style = STYLES[style]

    def __getitem__(self, name: str) -> Any:
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._fields})"

    def without_begun_turn(self) -> Self:
        """This row, in a style whose prompt ends in the user turn: most endpoints do not continue an assistant turn."""
        return self if self.style.own else type(self)({**self, "style": "own"})

    @abstractmethod
    def messages(self) -> list[dict[str, str]]:
        """The prompt as a conversation. Where the style has it so, it ends in an assistant turn already begun."""

    @abstractmethod
    def judge(self, answer: str) -> tuple[str | None, str]:
        """The exact value of *answer* as text, and the reason why it is not right ("" when it is)."""

    def grade(self, completion: str) -> Grade:
        """The grade of a *completion* of the prompt."""
        form, strict, answer, trailing = self.style.read(completion)
        value, reason = (None, "no-answer") if answer is None else self.judge(answer)
        return Grade(form, strict, not reason, answer, value, reason, trailing)
