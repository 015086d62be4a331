"""The answer language: an arithmetic expression over whole numbers, read and valued exactly.

    answer     = expression [ "=" claim ]...
    expression = term { ("+" | "-") term }
    term       = factor { ("*" | "/") factor }
    factor     = number | "(" expression ")"

``x`` and ``X`` between numbers, ``×``, ``·``, ``⋅`` and ``∗`` are ``*``; ``÷`` and ``∕`` are ``/``; ``−``
and ``–`` are ``-``. Spaces and new lines may stand anywhere between numbers and signs. What follows an
``=`` must have the same value as the expression before it: the target said once more, or a step on the
way.

A leading sign (``-3 + 5``, ``4 * (-2)``, ``+5``) is refused. The puzzle hands out numbers and four signs
that each stand between two of them; a sign in front of a number makes another number out of it, one that
was not given. Nor is ``07`` a way to write 7. A claim may be negative: ``3 - 5 = -2``.

Nothing is evaluated by Python: one pass over the tokens with two stacks, in time linear in the length,
with integers only. Sizes are capped before any arithmetic, so no text can make it slow.
"""

import re
from math import gcd
from typing import NamedTuple

from countdown_rl.errors import InputError

#: Longer answers, longer numbers and longer sums are refused unread: no puzzle needs them.
MAX_LENGTH = 4_096
MAX_DIGITS = 15
MAX_NUMBERS = 64

_TOKENS = re.compile(r"\s*([0-9]+|\*\*|//|\S)").findall
_INTEGER = re.compile(r"\s*([-+−–]?)\s*([0-9]+)\s*").fullmatch
_SIGNS = {
    **dict.fromkeys("+", "+"),
    **dict.fromkeys("-−–", "-"),
    **dict.fromkeys("*x×X·⋅∗", "*"),
    **dict.fromkeys("/÷∕", "/"),
}
_RANK = {"(": 0, "+": 1, "-": 1, "*": 2, "/": 2}

#: Why a text is no expression, or no answer: the slug and what it means.
REASONS = {
    "empty": "nothing is there",
    "too-long": f"over {MAX_LENGTH} characters, {MAX_NUMBERS} numbers or {MAX_DIGITS} digits a number",
    "power": "powers are not in the game",
    "floor-division": "// is not in the game",
    "decimal": "a decimal point",
    "exponent": "a number in exponent notation",
    "underscore": "an underscore",
    "non-ascii-digit": "a digit that is not 0-9",
    "bad-character": "something that is no number, sign or parenthesis",
    "leading-zero": "a number with a zero in front",
    "leading-sign": "a sign with no number before it",
    "missing-number": "a sign or a parenthesis where a number should be",
    "juxtaposition": "two numbers with no sign between them",
    "unbalanced": "parentheses that do not match",
    "division-by-zero": "a division by zero",
    "answers-disagree": "the two sides of = are not equal",
}


class ExpressionError(InputError):
    """A text outside the answer language; ``reason`` is a slug from :data:`REASONS`."""

    def __init__(self, reason: str) -> None:
        super().__init__(REASONS[reason])
        self.reason = reason


class Expression(NamedTuple):
    """What an expression says.

    ``numerator / denominator`` is its exact value, not reduced; ``denominator`` is 0 where something was
    divided by zero. ``whole`` tells whether every result on the way is a positive integer. ``agrees``
    tells whether every claim after an ``=`` has that value.
    """

    numbers: list[int]
    signs: set[str]
    numerator: int
    denominator: int
    whole: bool
    agrees: bool

    @property
    def value(self) -> str | None:
        """The exact value as text, ``65`` or ``13/2``; None after a division by zero."""
        return fraction(self.numerator, self.denominator) if self.denominator else None


def fraction(numerator: int, denominator: int) -> str:
    """A fraction in lowest terms as text; *denominator* is positive or negative, not 0."""
    if denominator == 1:
        return str(numerator)
    common = gcd(numerator, denominator)
    numerator, denominator = numerator // common, denominator // common
    if denominator < 0:
        numerator, denominator = -numerator, -denominator
    return str(numerator) if denominator == 1 else f"{numerator}/{denominator}"


def parse(text: str) -> Expression:
    """Read *text* as an answer: an expression, and any claims about its value.

    Raises:
        ExpressionError: the text is outside the language. Division by zero and claims that disagree are
            told by the result, since they say nothing about the syntax.
    """
    if len(text) > MAX_LENGTH:
        raise ExpressionError("too-long")
    if "=" not in text:
        return _expression(text)
    head, *claims = text.split("=")
    answer = _expression(head)
    agrees = True
    for claim in claims:
        number = _INTEGER(claim)
        if number and len(number[2]) <= MAX_DIGITS:
            numerator, denominator = int(number[2]), 1
            if number[1] not in ("", "+"):
                numerator = -numerator
        else:
            side = _expression(claim)
            numerator, denominator = side.numerator, side.denominator
        agrees = agrees and denominator != 0 and answer.numerator * denominator == numerator * answer.denominator
    return answer._replace(agrees=agrees)


def words(text: str) -> list[str]:
    """The numbers, signs (each as one of ``+-*/``) and parentheses of *text*, and whatever else stands in it."""
    return [_SIGNS.get(word, word) for word in _TOKENS(text)]


def _expression(text: str) -> Expression:
    numbers: list[int] = []
    signs: set[str] = set()
    tops: list[int] = []  # numerators and denominators of the values waiting for a sign
    bottoms: list[int] = []
    waiting: list[str] = []  # signs and parentheses waiting for their right-hand value
    whole = True
    by_zero = False
    wanted = True  # a number, or a parenthesis that begins one
    for word in _TOKENS(text):
        if wanted:
            if "0" <= word[0] <= "9":
                if word[0] == "0" and word != "0":
                    raise ExpressionError("leading-zero")
                if len(word) > MAX_DIGITS or len(numbers) == MAX_NUMBERS:
                    raise ExpressionError("too-long")
                number = int(word)
                numbers.append(number)
                tops.append(number)
                bottoms.append(1)
                wanted = False
            elif word == "(":
                waiting.append(word)
            else:
                raise ExpressionError(_unwanted(word, waiting))
            continue
        if word == ")":
            sign, rank = "", 1
        else:
            sign = _SIGNS.get(word, "")
            if not sign:
                raise ExpressionError(_no_sign(word))
            rank = _RANK[sign]
            signs.add(sign)
            wanted = True
        while waiting and _RANK[waiting[-1]] >= rank:
            p, q = tops.pop(), bottoms.pop()
            by_zero = _apply(waiting.pop(), tops, bottoms, p, q) or by_zero
            whole = whole and tops[-1] > 0 and tops[-1] % bottoms[-1] == 0
        if sign:
            waiting.append(sign)
        elif not waiting:
            raise ExpressionError("unbalanced")
        else:
            waiting.pop()
    if wanted:
        raise ExpressionError("missing-number" if numbers or waiting else "empty")
    while waiting:
        sign = waiting.pop()
        if sign == "(":
            raise ExpressionError("unbalanced")
        p, q = tops.pop(), bottoms.pop()
        by_zero = _apply(sign, tops, bottoms, p, q) or by_zero
        whole = whole and tops[-1] > 0 and tops[-1] % bottoms[-1] == 0
    return Expression(numbers, signs, tops[0], 0 if by_zero else bottoms[0], whole and not by_zero, True)


def _apply(sign: str, tops: list[int], bottoms: list[int], p: int, q: int) -> bool:
    """Combine the value on top of the stacks with p/q (q > 0); tells whether that divided by zero."""
    if sign == "*":
        tops[-1] *= p
        bottoms[-1] *= q
    elif sign == "/":
        if p == 0:
            return True
        tops[-1] *= q if p > 0 else -q
        bottoms[-1] *= abs(p)
    else:
        if sign == "-":
            p = -p
        a, b = tops[-1], bottoms[-1]
        tops[-1], bottoms[-1] = (a + p, b) if b == q else (a * q + p * b, b * q)
    return False


def _unwanted(word: str, waiting: list[str]) -> str:
    """Why *word* cannot stand where a number is wanted."""
    if word == ")":
        return "missing-number" if "(" in waiting else "unbalanced"
    sign = _SIGNS.get(word, "")
    if sign in ("+", "-") and sign:
        return "leading-sign"
    return "missing-number" if sign else _foreign(word)


def _no_sign(word: str) -> str:
    """Why *word* cannot stand after a number."""
    if word == "(" or "0" <= word[0] <= "9":
        return "juxtaposition"
    return "exponent" if word in ("e", "E") else _foreign(word)


def _foreign(word: str) -> str:
    if word in ("**", "^"):
        return "power"
    if word == "//":
        return "floor-division"
    if word == ".":
        return "decimal"
    if word == "_":
        return "underscore"
    if word.isdecimal():
        return "non-ascii-digit"
    return "power" if word.isdigit() else "bad-character"  # superscripts are digits but not decimal
