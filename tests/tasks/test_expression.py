"""The answer language: values, refusals, and limits on time."""

import ast
import contextlib
import re
from fractions import Fraction
from operator import add, mul, sub, truediv

import pytest
from hypothesis import given
from hypothesis import strategies as st

from countdown_rl.tasks.countdown.expression import MAX_LENGTH, MAX_NUMBERS, ExpressionError, parse

NUMBERS = st.integers(0, 999).map(str)
SPACE = st.sampled_from(["", " ", "\n", "\t "])
SPELLINGS = {"+": "+", "-": "-−–", "*": "*x×X·⋅∗", "/": "/÷∕"}


@st.composite
def _expressions(draw, depth=4):
    """A spelling of an expression, and the same in Python's notation."""
    if depth == 0 or draw(st.booleans()):
        number = draw(NUMBERS)
        return number, number
    operator = draw(st.sampled_from("+-*/"))
    (a, python_a), (b, python_b) = draw(_expressions(depth - 1)), draw(_expressions(depth - 1))
    if draw(st.booleans()):
        a, python_a = f"({a})", f"({python_a})"
    if draw(st.booleans()):
        b, python_b = f"( {b}\n)", f"({python_b})"
    spelt = draw(st.sampled_from(SPELLINGS[operator]))
    return f"{a}{draw(SPACE)}{spelt}{draw(SPACE)}{b}", f"{a and python_a} {operator} {python_b}"


def _by_python(text):
    """The value of Python's own tree, in fractions; None after a division by zero."""

    def value(node):
        if isinstance(node, ast.Constant):
            return Fraction(node.value)
        left, right = value(node.left), value(node.right)
        if left is None or right is None or (isinstance(node.op, ast.Div) and right == 0):
            return None
        return {ast.Add: add, ast.Sub: sub, ast.Mult: mul, ast.Div: truediv}[type(node.op)](
            left, right
        )

    return value(ast.parse(text, mode="eval").body)


@given(_expressions())
def test_values_are_those_of_pythons_own_tree_in_fractions(pair):
    text, python = pair
    expression = parse(text)
    expected = _by_python(python)
    if expected is None:
        assert expression.denominator == 0
        assert expression.value is None
    else:
        assert Fraction(expression.numerator, expression.denominator) == expected
        assert expression.value == str(expected)
    assert expression.numbers == [int(number) for number in re.findall("[0-9]+", text)]


@given(_expressions())
def test_latex_in_a_box_and_a_leading_plus_change_nothing(pair):
    text, _ = pair
    latex = re.sub(f"[{SPELLINGS['*']}]", r"\\cdot ", text)
    latex = re.sub(f"[{SPELLINGS['/']}]", r"\\div", latex)
    assert parse(rf"\boxed{{+{latex}}}.") == parse(f"+({text})") == parse(text)
    assert parse(rf"\boxed{{\frac{{{latex}}}{{\frac{{2}}{{3}}}}}}") == parse(f"({text})/(2/3)")


@given(st.text(alphabet="0123456789+-*/()= x×.e_^!٣²\n", max_size=40))
def test_any_text_is_parsed_or_refused(text):
    with contextlib.suppress(ExpressionError):
        parse(text)


#: Texts outside the language, by reason.
REFUSED = {
    "empty": ["", "3 + 4 =", "3 + 4 == 7"],
    "power": ["2**3", "2^3"],
    "floor-division": ["7//2"],
    "decimal": ["5.5", ".5*8", "5..", "5. + 3"],
    "bad-character": [
        "3 + 4 = seven",
        "1e5",
        "1_0",
        "٣ + 4",
        "__import__('os')",
        r"3 \times 4",
        r"\boxed{3 \timesx 4}",
        r"\boxed{5} + \boxed{3}",
        r"\boxed{\frac{4}2}",
        r"\boxed{\frac{4}{2=2}}",
    ],
    "juxtaposition": ["2(3)", "2 3"],
    "leading-sign": ["4 * -2", "3 - +2", "--5", "++5", "+-5", "-+5", "1*(+5)*(++3)"],
    "missing-number": ["-", "+", "(-)", r"\boxed{\frac{4}{+}}", "3 +", "()", "2 * * 3"],
    "leading-zero": ["07 + 1"],
    "unbalanced": ["(1 + 2", "1 + 2)", r"\boxed{\frac{1)+(2}{3}}"],
    "too-long": ["1" * 16, "+".join(["1"] * (MAX_NUMBERS + 1)), "1 + " + " " * MAX_LENGTH + "1"],
}


@pytest.mark.parametrize(
    ("text", "reason"), [(text, reason) for reason in REFUSED for text in REFUSED[reason]]
)
def test_each_refusal_has_its_own_reason(text, reason):
    with pytest.raises(ExpressionError) as caught:
        parse(text)
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("-1 + 72*(89 - 77)/1", "863"),
        ("−3 × 5", "-15"),
        ("4 * (-2 + 5) = 12", "12"),
        ("-(3 - 8) / (-5)", "-1"),
        ("3 - 5 = -(2)", "-2"),
        ("3 + 4 = 7.", "7"),
        (r" \boxed {-1 + 3 = 2}.", "2"),
        (r"\boxed{(+8) \times \frac{1}{2} = 4}", "4"),
        ("1*(+5)*(+3) = +15", "15"),
        ("13 / 2 = 26 / 4", "13/2"),
        ("2 * 3 + 4 = 6 + 4 = 10", "10"),
    ],
)
def test_a_leading_minus_a_final_full_stop_and_a_box_belong_to_the_language(text, value):
    expression = parse(text)
    assert (expression.value, expression.agrees) == (value, True)
    assert text[0] not in "-−" or not expression.whole


@pytest.mark.parametrize("text", ["55 + 36 - 7 - 19 = 64", "1 + 2 = 3 = 4", "1 / 0 = 0"])
def test_claims_after_an_equals_sign_must_agree(text):
    assert not parse(text).agrees


@pytest.mark.parametrize(
    "text",
    [
        "(" * 2_000 + "1" + ")" * 2_000,
        "(" * 10_000,
        "1+" * 500_000,
        "9" * 1_000_000,
        "1" + "=1" * 2_000,
        "/".join(["999999999999989"] * MAX_NUMBERS),
        " " * 1_000_000,
    ],
)
def test_deep_and_long_texts_are_parsed_or_refused(text):
    with contextlib.suppress(ExpressionError):
        parse(text)
