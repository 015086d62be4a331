"""The steps of an answer's evaluation, and the equations in a text, each checked exactly."""

import re
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


def steps(tree: Tree) -> list[Step]:
    """The operations of *tree* in the order of its parentheses, up to a division by zero."""
    done: list[Step] = []

    def value(tree: Tree) -> str | None:
        if isinstance(tree, int):
            return str(tree)
        left = value(tree[1])
        right = None if left is None else value(tree[2])
        if left is None or right is None:  # a division by zero
            return None
        numerator, denominator, _ = evaluate(tree)
        done.append(Step(left, tree[0], right, fraction(numerator, denominator)))
        return done[-1].result

    value(tree)
    return done


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
