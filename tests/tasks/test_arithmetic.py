"""Steps of an answer, equations in a text, and canonical forms against all expressions of a few numbers."""

import operator
import random
from collections import defaultdict
from fractions import Fraction
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from countdown_rl.tasks.countdown.expression import canonical, parse, pieces, steps
from countdown_rl.tasks.countdown.task import CountdownRow, random_answer

OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
numbers = st.lists(st.integers(1, 99), min_size=1, max_size=6)


def random_expression(nums, seed):
    return random_answer(CountdownRow({"nums": nums, "target": 1}), random.Random(seed))


def checked(text):
    return [(piece.text, piece.kind) for piece in pieces(text) if piece.operators]


@given(numbers, st.integers(0, 2**32))
def test_steps_end_in_the_value_and_each_is_right(nums, seed):
    expression = parse(random_expression(nums, seed))
    done = steps(expression.tree)
    assert len(done) == len(nums) - 1
    assert not done or done[-1].result == expression.value
    for left, sign, right, result in done:
        assert Fraction(result) == OPERATORS[sign](Fraction(left), Fraction(right))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("8 ÷ (5 − 3) × 2", ["5-3=2", "8/2=4", "4*2=8"]),
        ("1 + 8 / (3 - 3) + 5", ["3-3=0", "8/0=None"]),
        ("5 / 2 / 5", ["5/2=5/2", "5/2/5=1/2"]),
    ],
)
def test_steps_follow_parentheses_and_precedence(answer, expected):
    done = steps(parse(answer).tree)
    assert ["{}{}{}={}".format(*step) for step in done] == expected


@given(st.text(alphabet="0123456789+-*/()= .,x×\n<think>answer", max_size=80))
def test_pieces_join_to_the_text(text):
    assert "".join(piece.text for piece in pieces(text)) == text


@given(numbers, st.integers(0, 2**32), st.integers(-50, 5_000))
def test_an_equation_is_right_when_its_value_is_the_claim(nums, seed, claim):
    text = random_expression([*nums, 7], seed)
    kind = "correct" if parse(text).value == str(claim) else "incorrect"
    assert checked(f"so\n{text} = {claim}, no") == [(f"{text} = {claim}", kind)]


@pytest.mark.parametrize(
    ("text", "equations"),
    [
        ("9 * 8 = 72, 72 - 38 = 33 no", ["9 * 8 = 72", "72 - 38 = 33"]),
        ("- 3 + 4 = 7\n- 3 + 4 = 8", ["3 + 4 = 7", "3 + 4 = 8"]),
        ("1. 3 × 4 = 12.", ["3 × 4 = 12"]),
        ("x = 3 + 4 = 7", ["3 + 4 = 7"]),
        ("5 / 2 = 5/2", ["5 / 2 = 5/2"]),
        ("8 / (3 - 3) = 0", ["8 / (3 - 3) = 0"]),
    ],
)
def test_equations_are_found_in_a_text(text, equations):
    assert [equation for equation, _ in checked(text)] == equations


@pytest.mark.parametrize(
    "text",
    [
        "-3 + 4 = 1",
        "0.5 + 1 = 2",
        "1,000 + 5 = 6",
        "2 ^ 3 + 1 = 9",
        "a-3 + 4 = 7",
        "5 * 5 = 25.5",
        "7 = 7",
        "3 + 4 = x",
        "3 + 4 == 7",
        "1 + 2 => 3",
    ],
)
def test_a_part_of_a_longer_equation_is_not_checked(text):
    assert checked(text) == []


def test_tags_are_pieces():
    tags = [piece.text for piece in pieces("a</think>\n<answer>3</answer>") if piece.kind == "tag"]
    assert tags == ["</think>", "<answer>", "</answer>"]


def trees(leaves):
    """Every fully bracketed expression over *leaves* in this order, with its value at two places."""
    if len(leaves) == 1:
        yield str(leaves[0][0]), tuple(map(Fraction, leaves[0][1]))
        return
    for cut in range(1, len(leaves)):
        for left, a in trees(leaves[:cut]):
            for right, b in trees(leaves[cut:]):
                for sign, function in OPERATORS.items():
                    yield f"({left} {sign} {right})", tuple(map(function, a, b))


@pytest.mark.parametrize(("count", "classes"), [(1, 1), (2, 6), (3, 68)])
def test_expressions_have_one_form_exactly_when_they_are_one_function_of_their_numbers(
    count, classes
):
    # The numbers stand for letters: two places that no two different expressions agree on. With three
    # letters nothing is one function but what order and brackets make so (OEIS A140606: 1, 6, 68).
    letters = [(3, (3, 1009)), (5, (5, 10_007)), (7, (7, 100_003))][:count]
    by_function, by_form = defaultdict(set), defaultdict(set)
    for order in permutations(letters):
        for text, value in trees(list(order)):
            form = canonical(parse(text).tree)
            by_function[value].add(form)
            by_form[form].add(value)
    assert len(by_function) == len(by_form) == classes
    assert all(len(forms) == 1 for forms in by_function.values())
    assert all(len(values) == 1 for values in by_form.values())


def test_the_form_of_the_longest_expression_is_found():
    difference = canonical(parse("-".join(["9"] * 64)).tree)
    assert difference == canonical(parse("9-(" + "+".join(["9"] * 63) + ")").tree)
