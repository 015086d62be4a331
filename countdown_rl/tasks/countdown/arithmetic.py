"""Forms and steps of an expression, and the equations in a text, each checked exactly.

Two expressions have one canonical form when one becomes the other by reordering or re-bracketing sums and products:
``(2 + 3) * 4`` and ``4 * (3 + 2)``, ``8 - (5 - 3)`` and ``8 + 3 - 5``.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

from countdown_rl.tasks.countdown.expression import ExpressionError, Tree, evaluate, fraction, parse

#: Characters before its ``=`` that an equation may have at most.
REACH = 160

_LEFT_SIDE = re.compile(r"[0-9(][0-9\s+\-−–*x×X·⋅∗/÷∕()]*\Z")
_OPERATOR = re.compile(r"[+\-−–*x×X·⋅∗/÷∕]")
#: Text before a left side that is a part of it, so that the rest alone would be another expression. The dash of a list
#: is no part of it.
_JOINED = re.compile(r"[\w.,]\Z|(?:[-−–](?=\Z)|\S[^\S\n]*[-+−–*×·/÷^])[^\S\n]*\Z")
_CLAIM = re.compile(r"\s*-?[0-9]+(?:/[0-9]+)?(?![0-9.]*[0-9])")
_TAG = re.compile(r"(</?(?:think|thinking|answer)>)")


class Step(NamedTuple):
    """One operation: two values, the operator and the result; None for a division by zero."""

    left: str
    operator: str
    right: str
    result: str | None


class Piece(NamedTuple):
    """A part of a text: an equation that is ``right`` or ``wrong``, a ``tag``, or neither (empty)."""

    text: str
    kind: str = ""


def canonical(tree: Tree) -> str:
    """The canonical form of an expression, for majority voting."""
    if isinstance(tree, int):
        return str(tree)
    added, removed = _parts(tree, tree[0] in "+-", canonical)
    kind = "sum" if tree[0] in "+-" else "product"
    return f"{kind}({' '.join(sorted(added))}|{' '.join(sorted(removed))})"


def _parts(tree: Tree, is_sum: bool, form: Callable[[Tree], str]) -> tuple[list[str], list[str]]:
    """The forms of what a sum adds and subtracts, or a product multiplies and divides by."""
    if tree == 0 and is_sum:  # nothing, as before a leading minus
        return [], []
    if isinstance(tree, int) or (tree[0] in "+-") != is_sum:
        return [form(tree)], []
    operator, left, right = tree
    added, removed = _parts(left, is_sum, form)
    more, less = _parts(right, is_sum, form)
    return (added + more, removed + less) if operator in "+*" else (added + less, removed + more)


def steps(tree: Tree) -> list[Step]:
    """The operations of *tree* in the order of its parentheses, up to a division by zero."""
    if isinstance(tree, int):
        return []
    operator, left, right = tree
    values = [fraction(*evaluate(side)[:2]) for side in (left, right)]
    done = steps(left) if values[0] is None else steps(left) + steps(right)
    if values[0] is None or values[1] is None:
        return done
    return [*done, Step(values[0], operator, values[1], fraction(*evaluate(tree)[:2]))]


def pieces(text: str) -> list[Piece]:
    """*text* in pieces, each equation with a number for its right side (``9 * 8 = 72``) marked right or wrong.

    In time linear in the length of *text*.
    """
    parts: list[Piece] = []
    end = 0
    for match in re.finditer("=", text):
        equals = match.start()
        start = max(end, equals - REACH, text.rfind("\n", max(0, equals - REACH), equals) + 1)
        left, claim = _LEFT_SIDE.search(text[start:equals]), _CLAIM.match(text, equals + 1)
        if not left or not claim or not _OPERATOR.search(left[0]):
            continue
        begin = start + left.start()
        if _JOINED.search(text[max(0, begin - 8) : begin]):
            continue
        equation = text[begin : claim.end()]
        try:
            kind = "right" if parse(equation).agrees else "wrong"
        except ExpressionError:
            continue
        parts += [*_tagged(text[end:begin]), Piece(equation, kind)]
        end = claim.end()
    return parts + _tagged(text[end:])


def _tagged(text: str) -> list[Piece]:
    parts = _TAG.split(text)
    return [Piece(part, "tag" if odd % 2 else "") for odd, part in enumerate(parts) if part]
