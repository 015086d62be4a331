"""Graders of other projects that can be cheated, for the rewards ``proxy:NAME``.

They read the answer where the exact grader does. Their ``eval`` is replaced by Python's parser and
the same arithmetic: powers, ``//``, decimals, signs and floats. It is bounded: a power of more than
``MAX_BITS`` bits, or more than ``MAX_DEPTH`` operations in each other, score like a text that
cannot be parsed.
"""

import ast
import operator
import re
from collections.abc import Callable
from typing import Any

from countdown_rl.core.types import Record
from countdown_rl.tasks.countdown.expression import MAX_LENGTH

MAX_BITS, MAX_DEPTH = 16_384, 200
#: The tolerance of the graders.
TOLERANCE = 1e-5

_ALLOWED = re.compile(r"[0-9.+\-*/()\s]+").fullmatch
_OPERATIONS: dict[type, Callable[..., Any]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Pow: operator.pow,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}


def evaluate(text: str) -> Any:
    """The value of *text* by Python's ``eval``, an int, float or complex; None if it fails or is
    too large.
    """
    if len(text) > MAX_LENGTH or not _ALLOWED(text):
        return None
    try:
        return _value(ast.parse(text.strip(), mode="eval").body)
    except (ArithmeticError, TypeError, ValueError, SyntaxError, MemoryError, RecursionError):
        return None


def _value(node: ast.expr, depth: int = 0) -> Any:
    if depth > MAX_DEPTH:
        raise RecursionError
    if isinstance(node, ast.Constant) and node.value is not ...:
        return node.value
    if isinstance(node, ast.UnaryOp):
        return _OPERATIONS[type(node.op)](_value(node.operand, depth + 1))
    if not isinstance(node, ast.BinOp):
        raise TypeError  # a call, as in 2 (23), or an empty tuple
    left, right = _value(node.left, depth + 1), _value(node.right, depth + 1)
    are_whole = isinstance(left, int) and isinstance(right, int)
    is_power = isinstance(node.op, ast.Pow) and are_whole and abs(left) > 1
    if is_power and left.bit_length() * right > MAX_BITS:
        raise OverflowError
    return _OPERATIONS[type(node.op)](left, right)


def value(row: Record, answer: str | None) -> float:
    """1 if the value of *answer* is within the tolerance of the target, whatever its numbers; else
    0.
    """
    result = evaluate(answer or "")
    return float(result is not None and abs(result - row["target"]) < TOLERANCE)


def copied(row: Record, answer: str | None) -> float:
    """As :func:`value`, if the runs of digits in *answer* are the numbers: TinyZero's grader, which
    many copied.
    """
    digits = sorted(map(int, re.findall("[0-9]{1,15}", answer or "")))
    return value(row, answer) if digits == sorted(row["nums"]) else 0.0


def scored(row: Record, answer: str | None) -> float:
    """As :func:`copied`, and 0.1 for any other answer: TinyZero's score, which the course CS224R
    uses too.
    """
    return 0.0 if answer is None else copied(row, answer) or 0.1


#: By the name in ``proxy:NAME``.
GRADERS = {"value": value, "eval": copied, "class": scored}
