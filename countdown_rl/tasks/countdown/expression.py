"""The answer language: parsing an arithmetic expression over whole numbers, its exact value, form
and steps.

    answer     = expression { "=" claim }
    expression = [ "+" | "-" ] term { ("+" | "-") term }
    term       = factor { ("*" | "/") factor }
    factor     = number | "(" expression ")"

``x`` and ``X`` between numbers, ``×``, ``·``, ``⋅`` and ``∗`` are ``*``; ``÷`` and ``∕`` are ``/``;
``−`` and ``–`` are ``-``. White space may stand between tokens. A claim after ``=`` must have the
value of the expression.

A sign may begin an answer, a parenthesis or a claim: ``-3 + 5`` is ``5 - 3``, and a plus changes
nothing. No other sign may precede a number (``3 * -5``), and ``07`` is not 7. One full stop may end
an answer, and ``\\boxed{}`` may enclose it. In the box ``\\times`` and ``\\cdot`` are ``*``,
``\\div`` is ``/``, and ``\\frac{a}{b}`` is ``((a)/(b))``.

Python evaluates no part of the text. Parsing is one pass with two stacks, linear in the length;
values are pairs of integers. Length, digits and count of numbers are limited before any arithmetic.
"""

import re
from math import gcd
from typing import NamedTuple

from countdown_rl.core.errors import InputError
from countdown_rl.tasks.response_format import Piece, Step, tagged

#: Version of the answer language. Version 2 added the minus at the beginning, the final full stop
#: and ``\boxed{}``, version 3 the plus at the beginning and LaTeX in the box.
GRAMMAR_VERSION = 3

#: Limits on the characters of an answer, the digits of a number and the numbers of an expression.
MAX_LENGTH = 4_096
MAX_DIGITS = 15
MAX_NUMBERS = 64

PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2}

_LEXEMES = re.compile(r"\s*([0-9]+|\*\*|//|\S)").findall
_INTEGER = re.compile(r"\s*([-+−–]?)\s*([0-9]+)\s*").fullmatch
_BOXED = re.compile(r"(?s)\s*\\boxed\s*\{(.*)\}\s*").fullmatch
_LATEX = re.compile(r"\\(times|cdot|div)(?![A-Za-z])")
_LATEX_OPERATORS = {"times": " * ", "cdot": " * ", "div": " / "}
#: A fraction without another one in it.
_FRACTION = re.compile(r"\\frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_OPERATORS = dict.fromkeys("+", "+") | dict.fromkeys("-−–", "-")
_OPERATORS |= dict.fromkeys("*x×X·⋅∗", "*") | dict.fromkeys("/÷∕", "/")

#: Characters before its ``=`` that an equation may have at most.
REACH = 160

_LEFT_SIDE = re.compile(r"[0-9(][0-9\s+\-−–*x×X·⋅∗/÷∕()]*\Z")
_OPERATOR = re.compile(r"[+\-−–*x×X·⋅∗/÷∕]")
#: Text before a left side that is a part of it, so that the rest alone would be another expression.
#: The dash of a list is no part of it.
_JOINED = re.compile(r"[\w.,]\Z|(?:[-−–](?=\Z)|\S[^\S\n]*[-+−–*×·/÷^])[^\S\n]*\Z")
_CLAIM = re.compile(r"\s*-?[0-9]+(?:/[0-9]+)?(?![0-9.]*[0-9])")

#: Reasons for a lexeme that is no part of the language; others are bad characters.
_FOREIGN = {"**": "power", "^": "power", "//": "floor-division", ".": "decimal"}

#: Reasons why a text is no expression, or its value no answer.
REASONS = {
    "empty": "nothing is there",
    "too-long": f"over {MAX_LENGTH} characters, {MAX_NUMBERS} numbers or {MAX_DIGITS} digits a number",
    "power": "powers are not in the game",
    "floor-division": "// is not in the game",
    "decimal": "a decimal point",
    "bad-character": "something that is no number, operator or parenthesis, such as a letter or a backslash",
    "leading-zero": "a number with a zero in front",
    "leading-sign": "a sign that has no number before it and begins no expression",
    "missing-number": "an operator or a parenthesis where a number should be",
    "juxtaposition": "two numbers with no operator between them",
    "unbalanced": "parentheses that do not match",
    "division-by-zero": "a division by zero",
    "answers-disagree": "the two sides of = are not equal",
}

#: An expression: a number, or (operator, left, right). At most ``MAX_NUMBERS`` deep, so recursion
#: is safe.
Tree = int | tuple[str, "Tree", "Tree"]


class ExpressionError(InputError):
    """A text outside the answer language; ``reason`` is a key of :data:`REASONS`."""

    def __init__(self, reason: str) -> None:
        super().__init__(REASONS[reason])
        self.reason = reason


class Expression(NamedTuple):
    """A parsed answer: its tree, its numbers from left to right, and its value as :func:`evaluate`
    returns it.
    """

    tree: Tree
    numbers: list[int]
    numerator: int
    denominator: int
    whole: bool
    agrees: bool  # all claims have the same value

    @property
    def value(self) -> str | None:
        """The exact value as text, ``65`` or ``13/2``; None after a division by zero."""
        return fraction(self.numerator, self.denominator)


def fraction(numerator: int, denominator: int) -> str | None:
    """A fraction in lowest terms as text, ``65`` or ``13/2``; None if *denominator* is 0, which is
    never negative.
    """
    if denominator <= 1:
        return str(numerator) if denominator else None
    common = gcd(numerator, denominator)
    if common == denominator:
        return str(numerator // common)
    return f"{numerator // common}/{denominator // common}"


def parse(text: str) -> Expression:
    """Parse an answer; ExpressionError if it is outside the language, as no division by zero or
    wrong claim is.
    """
    if len(text) > MAX_LENGTH:
        raise ExpressionError("too-long")
    if text.endswith((".", "}")):
        text = text.removesuffix(".")
        if box := _BOXED(text):
            text = _without_latex(box[1])
    head, *claims = text.split("=")
    tree, numbers = _tree(head)
    numerator, denominator, whole = evaluate(tree)
    agrees = True
    for claim in claims:
        match = _INTEGER(claim)
        if match and len(match[2]) <= MAX_DIGITS:
            top = int(match[2]) if match[1] in ("", "+") else -int(match[2])
            bottom = 1
        else:
            top, bottom, _ = evaluate(_tree(claim)[0])
        agrees = agrees and bottom != 0 and numerator * bottom == top * denominator
    return Expression(tree, numbers, numerator, denominator, whole, agrees)


def _without_latex(text: str) -> str:
    """The content of a box in the notation of the other answers; fractions from the innermost
    outward.
    """
    text = _LATEX.sub(lambda match: _LATEX_OPERATORS[match[1]], text)
    count = 1
    while count:
        text, count = _FRACTION.subn(_division, text)
    return text


def _division(fraction: re.Match[str]) -> str:
    for side in fraction.groups():
        _tree(side)  # each is an expression on its own: no parenthesis reaches beyond its braces
    return f"(({fraction[1]})/({fraction[2]}))"


def evaluate(tree: Tree) -> tuple[int, int, bool]:
    """The exact value of *tree* as numerator and denominator, not reduced, and True if every result
    of an operation in it is a positive integer. The denominator is positive, or 0 after a division
    by zero.
    """
    if isinstance(tree, int):
        return tree, 1, True
    operator, left, right = tree
    a, b, left_whole = (left, 1, True) if isinstance(left, int) else evaluate(left)
    p, q, right_whole = (right, 1, True) if isinstance(right, int) else evaluate(right)
    if operator == "*":
        top, bottom = a * p, b * q
    elif operator == "/":
        top, bottom = (a * q, b * p) if p > 0 else (-a * q, -b * p)
    elif operator == "+":
        top, bottom = (a + p, b) if b == q else (a * q + p * b, b * q)
    else:
        top, bottom = (a - p, b) if b == q else (a * q - p * b, b * q)
    if not b or not q:  # a division by zero remains one
        return 0, 0, False
    return top, bottom, left_whole and right_whole and top > 0 and bottom > 0 and top % bottom == 0


def operators(tree: Tree) -> set[str]:
    """The operators in *tree*."""
    return set() if isinstance(tree, int) else {tree[0]} | operators(tree[1]) | operators(tree[2])


def _tree(text: str) -> tuple[Tree, list[int]]:
    """The tree of an expression and its numbers, by operator precedence."""
    numbers: list[int] = []
    values: list[Tree] = []
    pending: list[str] = []  # operators and open parentheses that await their right-hand operand
    operand = True  # a number or an open parenthesis comes next
    signed = False  # a plus was read there
    for lexeme in _LEXEMES(text):
        if operand:
            if "0" <= lexeme[0] <= "9":
                if lexeme[0] == "0" and lexeme != "0":
                    raise ExpressionError("leading-zero")
                if len(lexeme) > MAX_DIGITS or len(numbers) == MAX_NUMBERS:
                    raise ExpressionError("too-long")
                numbers.append(int(lexeme))
                values.append(numbers[-1])
                operand = False
            elif lexeme == "(":
                pending.append(lexeme)
                signed = False
            elif lexeme == ")":
                raise ExpressionError("missing-number" if "(" in pending else "unbalanced")
            else:
                sign = _OPERATORS.get(lexeme)
                begins = not signed and (not pending or pending[-1] == "(")
                if begins and sign == "+":
                    signed = True
                    continue
                if begins and sign == "-":  # 0 minus the first term; 0 is no number of it
                    values.append(0)
                    pending.append(sign)
                    continue
                reason = "leading-sign" if sign in ("+", "-") else "missing-number"
                raise ExpressionError(reason if sign else _FOREIGN.get(lexeme, "bad-character"))
            continue
        operator = _OPERATORS.get(lexeme, "")
        if not operator and lexeme != ")":
            beside = lexeme == "(" or "0" <= lexeme[0] <= "9"
            raise ExpressionError(
                "juxtaposition" if beside else _FOREIGN.get(lexeme, "bad-character")
            )
        precedence = PRECEDENCE[operator] if operator else 1
        while pending and pending[-1] != "(" and PRECEDENCE[pending[-1]] >= precedence:
            right = values.pop()
            values[-1] = (pending.pop(), values[-1], right)
        if operator:
            pending.append(operator)
            operand = True
        elif not pending:
            raise ExpressionError("unbalanced")
        else:
            pending.pop()
    if operand:
        raise ExpressionError("missing-number" if numbers or pending or signed else "empty")
    while pending:
        if pending[-1] == "(":
            raise ExpressionError("unbalanced")
        right = values.pop()
        values[-1] = (pending.pop(), values[-1], right)
    return values[0], numbers


def canonical(tree: Tree) -> str:
    """The canonical form of an expression, for majority voting.

    Two expressions have one form when one becomes the other by reordering or re-bracketing sums and
    products: ``(2 + 3) * 4`` and ``4 * (3 + 2)``, ``8 - (5 - 3)`` and ``8 + 3 - 5``.
    """
    if isinstance(tree, int):
        return str(tree)
    is_sum = tree[0] in "+-"
    added, removed = _parts(tree, is_sum)
    kind = "sum" if is_sum else "product"
    return f"{kind}({' '.join(sorted(added))}|{' '.join(sorted(removed))})"


def _parts(tree: Tree, is_sum: bool) -> tuple[list[str], list[str]]:
    """The forms of what a sum adds and subtracts, or a product multiplies and divides by."""
    if tree == 0 and is_sum:  # nothing, as before a leading minus
        return [], []
    if isinstance(tree, int) or (tree[0] in "+-") != is_sum:
        return [canonical(tree)], []
    operator, left, right = tree
    added, removed = _parts(left, is_sum)
    more, less = _parts(right, is_sum)
    if operator in "-/":
        more, less = less, more
    return added + more, removed + less


def steps(tree: Tree) -> list[Step]:
    """The operations of *tree* in the order of its parentheses, up to a division by zero."""
    if isinstance(tree, int):
        return []
    operator, left, right = tree
    first = fraction(*evaluate(left)[:2])
    if first is None:
        return steps(left)
    done = steps(left) + steps(right)
    second = fraction(*evaluate(right)[:2])
    if second is None:
        return done
    return [*done, Step(first, operator, second, fraction(*evaluate(tree)[:2]))]


def pieces(text: str) -> list[Piece]:
    """*text* in pieces, in linear time; equations that end in a number (``9 * 8 = 72``) are
    checked.
    """
    parts: list[Piece] = []
    end = 0
    for match in re.finditer("=", text):
        equals = match.start()
        start = max(end, equals - REACH, text.rfind("\n", max(0, equals - REACH), equals) + 1)
        left = _LEFT_SIDE.search(text[start:equals])
        claim = _CLAIM.match(text, equals + 1)
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
        kind = "correct" if parsed.agrees else "incorrect"
        parts += tagged(text[end:begin])
        parts.append(Piece(equation, kind, frozenset(operators(parsed.tree))))
        end = claim.end()
    return parts + tagged(text[end:])
