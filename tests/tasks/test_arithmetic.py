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

numbers = st.lists(st.integers(1, 99), min_size=1, max_size=6)


def checked(text: str) -> list[tuple[str, str]]:
    return [
        (piece.text, piece.kind) for piece in pieces(text) if piece.kind in ("correct", "incorrect")
    ]


@given(numbers, st.integers(0, 2**32))
def test_steps_end_in_the_value_and_each_is_right(nums, seed):
    text = random_answer(CountdownRow({"nums": nums, "target": 1}), random.Random(seed))
    done = steps(parse(text).tree)
    assert len(done) == len(nums) - 1
    assert [done[-1].result] == [parse(text).value] if done else text == str(nums[0])
    for left, sign, right, result in done:
        assert Fraction(result) == OPERATORS[sign](Fraction(left), Fraction(right))


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        *(
            ("3 + 4 * 5 = 23", ["4*5=20", "3+20=23"]),
            ("2 - 3 - 4", ["2-3=-1", "-1-4=-5"]),
            ("((7))", []),
        ),
        *(
            ("8 ÷ (5 − 3) × 2", ["5-3=2", "8/2=4", "4*2=8"]),
            ("1 + 8 / (3 - 3) + 5", ["3-3=0", "8/0=None"]),
        ),
        ("5 / 2 / 5", ["5/2=5/2", "5/2/5=1/2"]),
    ],
)
def test_steps_follow_parentheses_and_precedence(answer, says):
    assert [
        f"{step.left}{step.operator}{step.right}={step.result}"
        for step in steps(parse(answer).tree)
    ] == says


@given(st.text(alphabet="0123456789+-*/()= .,x×\n<think>answer", max_size=80))
def test_pieces_join_to_the_text(text):
    assert "".join(piece.text for piece in pieces(text)) == text
    assert all(piece.text for piece in pieces(text))


@given(numbers, st.integers(0, 2**32), st.integers(-50, 5_000))
def test_an_equation_is_right_when_its_value_is_the_claim(nums, seed, claim):
    text = random_answer(CountdownRow({"nums": [*nums, 7], "target": 1}), random.Random(seed))
    sentence = f"so\n{text} = {claim}, no"
    assert checked(sentence) == [
        (f"{text} = {claim}", "correct" if parse(text).value == str(claim) else "incorrect")
    ]


@pytest.mark.parametrize(
    ("text", "equations"),
    [
        ("9 * 8 = 72, 72 - 38 = 33 no", [("9 * 8 = 72", "correct"), ("72 - 38 = 33", "incorrect")]),
        ("- 3 + 4 = 7\n- 3 + 4 = 8", [("3 + 4 = 7", "correct"), ("3 + 4 = 8", "incorrect")]),
        ("1. 3 × 4 = 12.", [("3 × 4 = 12", "correct")]),
        ("no\n3 + 4 = 7", [("3 + 4 = 7", "correct")]),
        ("x = 3 + 4 = 7", [("3 + 4 = 7", "correct")]),
        ("5 / 2 = 5/2", [("5 / 2 = 5/2", "correct")]),
        ("3 - 5 = -2", [("3 - 5 = -2", "correct")]),
        ("8 / (3 - 3) = 0", [("8 / (3 - 3) = 0", "incorrect")]),
        # Only a part of what is meant: not for judging.
        *(
            (text, [])
            for text in (
                "-3 + 4 = 1",
                "0.5 + 1 = 2",
                "1,000 + 5 = 6",
                "2 ^ 3 + 1 = 9",
                "a-3 + 4 = 7",
            )
        ),
        *(
            (text, [])
            for text in ("5 * 5 = 25.5", "7 = 7", "3 + 4 = x", "3 + 4 == 7", "1 + 2 => 3")
        ),
    ],
)
def test_equations_are_marked_and_parts_of_longer_ones_are_not(text, equations):
    assert checked(text) == equations


def test_tags_are_pieces():
    kinds = [(piece.text, piece.kind) for piece in pieces("a</think>\n<answer>3</answer>")]
    assert kinds == [
        ("a", ""),
        ("</think>", "tag"),
        ("\n", ""),
        ("<answer>", "tag"),
        ("3", ""),
        ("</answer>", "tag"),
    ]


OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


def normal(text):
    return canonical(parse(text).tree)


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
            form = normal(text)
            by_function[value].add(form)
            by_form[form].add(value)
    assert len(by_function) == len(by_form) == classes
    assert all(len(forms) == 1 for forms in by_function.values())
    assert all(len(values) == 1 for values in by_form.values())


def expressions():
    return st.recursive(
        st.integers(1, 9).map(str),
        lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner).map(
            lambda t: f"({t[0]} {t[1]} {t[2]})"
        ),
        max_leaves=12,
    )


@given(expressions(), expressions(), expressions())
def test_order_and_parentheses_of_sums_and_products_do_not_change_the_form(a, b, c):
    for sign in "+*":
        assert normal(f"{a} {sign} {b}") == normal(f"{b} {sign} {a}")
        left, right = f"({a} {sign} {b}) {sign} {c}", f"{a} {sign} ({b} {sign} {c})"
        assert normal(left) == normal(right)
    assert normal(f"{a} - ({b} - {c})") == normal(f"{c} - {b} + {a}")
    assert normal(f"{a} / ({b} / {c})") == normal(f"{c} * {a} / {b}")


def test_deep_parentheses_are_parsed():
    assert normal("(" * 2000 + "3 + 4" + ")" * 2000) == normal("4 + 3")
    assert normal("-".join(["9"] * 64)) == normal("9-(" + "+".join(["9"] * 63) + ")")
