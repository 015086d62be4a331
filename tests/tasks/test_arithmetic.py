"""Steps of an answer, and equations in a text: exact, and the text unchanged."""

import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from countdown_rl.tasks.countdown.arithmetic import pieces, steps
from countdown_rl.tasks.countdown.expression import parse
from countdown_rl.tasks.countdown.task import CountdownRow, random_answer

numbers = st.lists(st.integers(1, 99), min_size=1, max_size=6)


def checked(text: str) -> list[tuple[str, str]]:
    return [(piece.text, piece.kind) for piece in pieces(text) if piece.kind in ("right", "wrong")]


@given(numbers, st.integers(0, 2**32))
def test_steps_end_in_the_value_and_each_is_right(nums, seed):
    text = random_answer(CountdownRow({"nums": nums, "target": 1}), random.Random(seed))
    done = steps(parse(text).tree)
    assert len(done) == len(nums) - 1
    assert [done[-1].result] == [parse(text).value] if done else text == str(nums[0])
    for left, operator, right, result in done:
        a, b = Fraction(left), Fraction(right)
        assert Fraction(result) == {"+": a + b, "-": a - b, "*": a * b, "/": a / b if b else None}[operator]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("3 + 4 * 5 = 23", ["4*5=20", "3+20=23"]),
        ("2 - 3 - 4", ["2-3=-1", "-1-4=-5"]),
        ("((7))", []),
        ("8 ÷ (5 − 3) × 2", ["5-3=2", "8/2=4", "4*2=8"]),
        ("1 + 8 / (3 - 3) + 5", ["3-3=0", "8/0=None"]),
        ("5 / 2 / 5", ["5/2=5/2", "5/2/5=1/2"]),
    ],
)
def test_steps_follow_parentheses_and_precedence(answer, says):
    assert [f"{step.left}{step.operator}{step.right}={step.result}" for step in steps(parse(answer).tree)] == says


@given(st.text(alphabet="0123456789+-*/()= .,x×\n<think>answer", max_size=80))
def test_pieces_join_to_the_text(text):
    assert "".join(piece.text for piece in pieces(text)) == text
    assert all(piece.text for piece in pieces(text))


@given(numbers, st.integers(0, 2**32), st.integers(-50, 5_000))
def test_an_equation_is_right_when_its_value_is_the_claim(nums, seed, claim):
    text = random_answer(CountdownRow({"nums": [*nums, 7], "target": 1}), random.Random(seed))
    sentence = f"so\n{text} = {claim}, no"
    assert checked(sentence) == [(f"{text} = {claim}", "right" if parse(text).value == str(claim) else "wrong")]


@pytest.mark.parametrize(
    ("text", "equations"),
    [
        ("9 * 8 = 72, 72 - 38 = 33 no", [("9 * 8 = 72", "right"), ("72 - 38 = 33", "wrong")]),
        ("- 3 + 4 = 7\n- 3 + 4 = 8", [("3 + 4 = 7", "right"), ("3 + 4 = 8", "wrong")]),
        ("1. 3 × 4 = 12.", [("3 × 4 = 12", "right")]),
        ("no\n3 + 4 = 7", [("3 + 4 = 7", "right")]),
        ("x = 3 + 4 = 7", [("3 + 4 = 7", "right")]),
        ("5 / 2 = 5/2", [("5 / 2 = 5/2", "right")]),
        ("3 - 5 = -2", [("3 - 5 = -2", "right")]),
        ("8 / (3 - 3) = 0", [("8 / (3 - 3) = 0", "wrong")]),
        # Only a part of what is meant: not for judging.
        ("-3 + 4 = 1", []),
        ("0.5 + 1 = 2", []),
        ("1,000 + 5 = 6", []),
        ("2 ^ 3 + 1 = 9", []),
        ("a-3 + 4 = 7", []),
        ("5 * 5 = 25.5", []),
        ("7 = 7", []),
        ("3 + 4 = x", []),
        ("3 + 4 == 7", []),
        ("1 + 2 => 3", []),
    ],
)
def test_equations_are_marked_and_parts_of_longer_ones_are_not(text, equations):
    assert checked(text) == equations


def test_tags_are_pieces():
    kinds = [(piece.text, piece.kind) for piece in pieces("a</think>\n<answer>3</answer>")]
    assert kinds == [("a", ""), ("</think>", "tag"), ("\n", ""), ("<answer>", "tag"), ("3", ""), ("</answer>", "tag")]
