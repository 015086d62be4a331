"""Canonical form of an answer, for majority voting.

Two expressions are equal when one becomes the other by reordering or re-bracketing sums and products:
``(2 + 3) * 4`` and ``4 * (3 + 2)``, ``8 - (5 - 3)`` and ``8 + 3 - 5``. Any other answer (a number, a word,
a text outside the language) is compared as text.
"""

from collections.abc import Callable, Mapping
from typing import Any

from countdown_rl.puzzle.expression import ExpressionError, Tree, parse


def claim(sample: Mapping[str, Any]) -> str | None:
    """The canonical form of the answer of a graded *sample*; None where it has no answer."""
    answer = sample["answer"]
    if answer is None:
        return None
    plain = " ".join(answer.lower().split()).rstrip(".!")
    if "nums" not in sample:  # a word problem: the number is the answer
        return plain if sample["value"] is None else str(sample["value"])
    try:
        expression = parse(answer)
    except ExpressionError:
        return plain
    form = canonical(expression.tree)
    return form if expression.agrees else f"{form} = something else"


def canonical(tree: Tree) -> str:
    """The canonical form of an expression: equal for two that differ by order and parentheses alone."""
    if isinstance(tree, int):
        return str(tree)
    kind = "sum" if tree[0] in "+-" else "product"
    added, removed = _parts(tree, kind)
    return f"{kind}({' '.join(sorted(added))}|{' '.join(sorted(removed))})"


def shape(tree: Tree) -> str:
    """The form of an expression, with n for a number, ± for + and -, × for * and /: ``(n ± n) × n``."""
    if isinstance(tree, int):
        return "n"
    total = tree[0] in "+-"
    added, removed = _parts(tree, "sum" if total else "product", shape)
    parts = sorted(
        (part if total or len(part) == 1 else f"({part})" for part in added + removed), key=len, reverse=True
    )
    return (" ± " if total else " × ").join(parts)


def _parts(tree: Tree, kind: str, form: Callable[[Tree], str] = canonical) -> tuple[list[str], list[str]]:
    """The forms of what a sum adds and subtracts, or a product multiplies and divides by."""
    if isinstance(tree, int) or (tree[0] in "+-") != (kind == "sum"):
        return [form(tree)], []
    operator, left, right = tree
    added, removed = _parts(left, kind, form)
    more, less = _parts(right, kind, form)
    return (added + more, removed + less) if operator in "+*" else (added + less, removed + more)
