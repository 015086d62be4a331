"""Which answers are the same answer: what a vote counts together.

Two expressions are the same when one becomes the other by reordering or re-bracketing sums and products:
``(2 + 3) * 4`` and ``4 * (3 + 2)``, ``8 - (5 - 3)`` and ``8 + 3 - 5``. Any other answer (a number, a word,
a text outside the language) is the same as one that makes the same claim.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from countdown_rl.puzzle.expression import ExpressionError, parse, words

_RANK = {"(": 0, "+": 1, "-": 1, "*": 2, "/": 2}


@dataclass(frozen=True)
class _Node:
    """A number, a sum or a product: what is added (multiplied) and what is taken away (divided by)."""

    kind: str
    up: tuple[str, ...]
    down: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.up[0] if self.kind == "number" else f"{self.kind}({' '.join(self.up)}|{' '.join(self.down)})"


def claim(sample: Mapping[str, Any]) -> str | None:
    """What the answer of a graded *sample* comes to, as a key; None where it gave none."""
    answer = sample["answer"]
    if answer is None:
        return None
    if "nums" not in sample:  # a word problem: the number is the answer
        return str(sample["value"]) if sample["value"] is not None else _plain(answer)
    try:
        read = parse(answer)
    except ExpressionError:
        return _plain(answer)
    said = normal(answer.partition("=")[0])
    return said if read.agrees else f"{said} = something else"


def normal(text: str) -> str:
    """The normal form of an expression: equal for two that differ by order and brackets alone.

    *text* is one that :func:`countdown_rl.puzzle.expression.parse` reads. Time is linear in its length but for sorting.
    """
    values: list[_Node] = []
    waiting: list[str] = []

    def settle(rank: int) -> None:
        while waiting and _RANK[waiting[-1]] >= rank:
            second, first = values.pop(), values.pop()
            values.append(_joined(first, waiting.pop(), second))

    for word in words(text):
        if word == "(":
            waiting.append(word)
        elif word == ")":
            settle(1)
            waiting.pop()
        elif word in _RANK:
            settle(_RANK[word])
            waiting.append(word)
        else:
            values.append(_Node("number", (word,)))
    settle(1)
    return str(values[0])


def _joined(first: _Node, sign: str, second: _Node) -> _Node:
    kind = "sum" if sign in "+-" else "product"
    (up, down), (more, less) = (
        (node.up, node.down) if node.kind == kind else ((str(node),), ()) for node in (first, second)
    )
    if sign in "-/":
        more, less = less, more
    return _Node(kind, tuple(sorted(up + more)), tuple(sorted(down + less)))


def _plain(answer: str) -> str:
    return " ".join(answer.lower().split()).rstrip(".!")
