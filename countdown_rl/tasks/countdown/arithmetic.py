"""Forms and steps of an expression, and the equations in a text, each checked exactly.

Two expressions have one canonical form when one becomes the other by reordering or re-bracketing sums and products:
``(2 + 3) * 4`` and ``4 * (3 + 2)``, ``8 - (5 - 3)`` and ``8 + 3 - 5``.
"""

import re
from collections.abc import Callable

from countdown_rl.tasks.countdown.expression import ExpressionError, Tree, evaluate, fraction, operators, parse
from countdown_rl.tasks.response_format import Piece, Step, tagged

#: Characters before its ``=`` that an equation may have at most.
REACH = 160

_LEFT_SIDE = re.compile(r"[0-9(][0-9\s+\-−–*x×X·⋅∗/÷∕()]*\Z")
_OPERATOR = re.compile(r"[+\-−–*x×X·⋅∗/÷∕]")
#: Text before a left side that is a part of it, so that the rest alone would be another expression. The dash of a list
#: is no part of it.
_JOINED = re.compile(r"[\w.,]\Z|(?:[-−–](?=\Z)|\S[^\S\n]*[-+−–*×·/÷^])[^\S\n]*\Z")
_CLAIM = re.compile(r"\s*-?[0-9]+(?:/[0-9]+)?(?![0-9.]*[0-9])")


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
            parsed = parse(equation)
        except ExpressionError:
            continue
        kind = "right" if parsed.agrees else "wrong"
        parts += [*tagged(text[end:begin]), Piece(equation, kind, frozenset(operators(parsed.tree)))]
        end = claim.end()
    return parts + tagged(text[end:])
