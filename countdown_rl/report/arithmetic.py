"""An answer worked out one step at a time, and the sums that a text claims, each checked exactly."""

import re
from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

from countdown_rl.puzzle.expression import ExpressionError, parse, words

#: How far before its ``=`` a sum may begin.
REACH = 160

_RANK = {"(": 0, "+": 1, "-": 1, "*": 2, "/": 2}
_SUM = re.compile(r"[0-9(][0-9\s+\-−–*x×X·⋅∗/÷∕()]*\Z")
_SIGN = re.compile(r"[+\-−–*x×X·⋅∗/÷∕]")
#: What is before a sum and belongs to it, so that its end alone would be another one; a list's dash does not.
_JOINED = re.compile(r"[\w.,]\Z|(?:[-−–](?=\Z)|\S[^\S\n]*[-+−–*×·/÷^])[^\S\n]*\Z")
_CLAIM = re.compile(r"\s*-?[0-9]+(?:/[0-9]+)?(?![0-9.]*[0-9])")


class Step(NamedTuple):
    """Two values, the sign between them, and what comes out; None where that divides by zero."""

    left: str
    sign: str
    right: str
    result: str | None


class Piece(NamedTuple):
    """A part of a text: ``right`` or ``wrong`` for a sum that was checked, ``tag`` for a tag, else empty."""

    text: str
    kind: str = ""


def steps(answer: str) -> list[Step]:
    """How *answer* comes to its value, in the order of its brackets; up to a division by zero.

    Raises:
        ExpressionError: it is no expression.
    """
    parse(answer)
    values: list[Fraction] = []
    waiting: list[str] = []
    done: list[Step] = []

    def join() -> bool:
        sign, right, left = waiting.pop(), values.pop(), values.pop()
        if sign == "/" and right == 0:
            done.append(Step(str(left), sign, str(right), None))
            return False
        joined = {"+": left + right, "-": left - right, "*": left * right}.get(sign)
        values.append(left / right if joined is None else joined)
        done.append(Step(str(left), sign, str(right), str(values[-1])))
        return True

    for word in [*words(answer.split("=")[0]), ")"]:
        if word.isdecimal():
            values.append(Fraction(word))
        elif word == "(":
            waiting.append(word)
        else:
            while waiting and waiting[-1] != "(" and _RANK[waiting[-1]] >= _RANK.get(word, 1):
                if not join():
                    return done
            if word != ")":
                waiting.append(word)
            elif waiting:
                waiting.pop()
    return done


def pieces(text: str) -> list[Piece]:
    """*text* in pieces, each sum in it (``9 * 8 = 72``) marked by whether it is right."""
    found: list[Piece] = []
    end = 0
    for begin, stop, right in _sums(text):
        found += _tagged(text[end:begin])
        found.append(Piece(text[begin:stop], "right" if right else "wrong"))
        end = stop
    return found + _tagged(text[end:])


def _sums(text: str) -> Iterator[tuple[int, int, bool]]:
    """Where each sum with its claim begins and ends, and whether it is right; in time linear in the text."""
    end = 0
    at = text.find("=")
    while at >= 0:
        start = max(end, at - REACH, text.rfind("\n", max(0, at - REACH), at) + 1)
        before, claim = _SUM.search(text[start:at]), _CLAIM.match(text, at + 1)
        begin = start + before.start() if before else at
        if before and claim and _SIGN.search(before[0]) and not _JOINED.search(text[max(0, begin - 8) : begin]):
            try:
                agrees = parse(text[begin : claim.end()]).agrees
            except ExpressionError:
                pass
            else:
                yield begin, claim.end(), agrees
                end = claim.end()
        at = text.find("=", at + 1)


_TAG = re.compile(r"(</?(?:think|thinking|answer)>)")


def _tagged(text: str) -> list[Piece]:
    parts = _TAG.split(text)
    return [Piece(part, "tag" if odd % 2 else "") for odd, part in enumerate(parts) if part]
