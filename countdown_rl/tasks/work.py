"""The work in a completion: its equations, each checked by the task, and the steps of an answer."""

import re
from typing import NamedTuple

_TAG = re.compile(r"(</?(?:think|thinking|answer)>)")


class Step(NamedTuple):
    """One operation: two values, the operator and the result; None for a division by zero."""

    left: str
    operator: str
    right: str
    result: str | None


class Piece(NamedTuple):
    """A part of a text: an equation with its operators, which is ``right`` or ``wrong``, a ``tag``, or neither."""

    text: str
    kind: str = ""
    operators: frozenset[str] = frozenset()

    @property
    def sides(self) -> tuple[str, str]:
        """The left side of an equation, and the number on its right."""
        left, _, claim = self.text.rpartition("=")
        return left, claim.strip()


def tagged(text: str) -> list[Piece]:
    """*text* in pieces, of which tags are marked."""
    parts = _TAG.split(text)
    return [Piece(part, "tag" if odd % 2 else "") for odd, part in enumerate(parts) if part]
