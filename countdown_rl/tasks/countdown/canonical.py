"""Canonical form of an answer, for majority voting.

Two expressions are equal when one becomes the other by reordering or re-bracketing sums and products:
``(2 + 3) * 4`` and ``4 * (3 + 2)``, ``8 - (5 - 3)`` and ``8 + 3 - 5``.
"""

from collections.abc import Callable

from countdown_rl.tasks.countdown.expression import Tree


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
