"""Graders of other projects that can be cheated, for the rewards ``proxy:NAME``.

They read the answer where the exact grader does. Their ``eval`` is replaced by a parser of the same arithmetic: powers,
``//``, decimals, signs and floats. It is bounded: a power of more than ``MAX_BITS`` bits, or more than ``MAX_DEPTH``
nested parentheses, score like a text that cannot be parsed.
"""

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from countdown_rl.tasks.countdown.expression import MAX_LENGTH

MAX_BITS, MAX_DEPTH = 16_384, 50
#: The tolerance of the graders.
TOLERANCE = 1e-5

_LEXEMES = re.compile(r"[ \t\f]*([0-9]+\.?[0-9]*|\.[0-9]+|\*\*|//|[-+*/()]|[\r\n]+|\S|$)").findall
#: The precedence of each operator of two values, and its operation.
_OPERATORS: dict[str, tuple[int, Callable[[Any, Any], Any]]] = {
    "+": (1, operator.add),
    "-": (1, operator.sub),
    "*": (2, operator.mul),
    "/": (2, operator.truediv),
    "//": (2, operator.floordiv),
}


def evaluate(text: str) -> Any:
    """The value of *text* by Python's ``eval``, an int, float or complex; None if it fails or is too large."""
    if len(text) > MAX_LENGTH:
        return None
    parser = _Parser(text.strip())
    try:
        value = parser.expression()
        return None if parser.lexeme else value
    except (ArithmeticError, TypeError, ValueError):
        return None


class _Parser:
    """Recursive descent by the precedence of Python: sums, products, signs, powers, and parentheses."""

    def __init__(self, text: str) -> None:
        self._lexemes, self._index, self._open, self._depth = _LEXEMES(text), 0, 0, 0

    @property
    def lexeme(self) -> str:
        """The next lexeme; "" at the end. In parentheses line breaks are skipped."""
        while self._open and self._lexemes[self._index][:1] in ("\r", "\n"):
            self._index += 1
        return str(self._lexemes[self._index])

    def expression(self, lowest: int = 1) -> Any:
        """The value of operators with a precedence from *lowest* on."""
        value = self._signed()
        while (entry := _OPERATORS.get(self.lexeme)) and entry[0] >= lowest:
            precedence, operation = entry
            self._index += 1
            value = operation(value, self.expression(precedence + 1))
        return value

    def _signed(self) -> Any:
        sign = self.lexeme
        if sign not in ("+", "-"):
            return self._power()
        value = self._nested(self._signed)
        return -value if sign == "-" else +value

    def _power(self) -> Any:
        base = self._atom()
        if self.lexeme != "**":
            return base
        exponent = self._nested(self._signed)
        integers = isinstance(base, int) and isinstance(exponent, int) and abs(base) > 1
        if integers and base.bit_length() * exponent > MAX_BITS:
            raise OverflowError
        return base**exponent

    def _atom(self) -> Any:
        lexeme = self.lexeme
        if lexeme == "(":
            self._open += 1
            value = self._nested(self.expression)
            if self.lexeme != ")":
                raise ValueError
            self._open -= 1
            self._index += 1
            return value
        self._index += 1
        if "." in lexeme:
            return float(lexeme)
        if len(lexeme.lstrip("0")) < len(lexeme) and lexeme.strip("0"):
            raise ValueError  # Python has no numbers with a leading zero
        return int(lexeme)

    def _nested(self, part: Callable[[], Any]) -> Any:
        """The *part* after the next lexeme, a parenthesis, sign or power."""
        self._index += 1
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ValueError
        value = part()
        self._depth -= 1
        return value


def value(row: Mapping[str, Any], answer: str | None) -> float:
    """1 if the value of *answer* is within the tolerance of the target, whatever its numbers; else 0."""
    result = None if answer is None else evaluate(answer)
    return 0.0 if result is None or not abs(result - row["target"]) < TOLERANCE else 1.0


def copied(row: Mapping[str, Any], answer: str | None) -> float:
    """As :func:`value`, if the runs of digits in *answer* are the numbers: TinyZero's grader, which many copied."""
    digits = sorted(map(int, re.findall("[0-9]{1,15}", answer or "")))
    return value(row, answer) if digits == sorted(row["nums"]) else 0.0


def scored(row: Mapping[str, Any], answer: str | None) -> float:
    """As :func:`copied`, and 0.1 for any other answer: TinyZero's score, which the course CS224R uses too."""
    return 0.0 if answer is None else copied(row, answer) or 0.1


#: By the name in ``proxy:NAME``.
GRADERS = {"value": value, "eval": copied, "class": scored}
