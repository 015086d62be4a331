"""Canonical forms: against all expressions of a few numbers, and at their limits."""

from collections import defaultdict
from fractions import Fraction
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from countdown_rl.tasks.countdown.arithmetic import canonical
from countdown_rl.tasks.countdown.expression import parse

OPERATORS = "+-*/"


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
                for operator in OPERATORS:
                    yield (
                        f"({left} {operator} {right})",
                        tuple(_value(x, operator, y) for x, y in zip(a, b, strict=True)),
                    )


def _value(x, operator, y):
    return x + y if operator == "+" else x - y if operator == "-" else x * y if operator == "*" else x / y


@pytest.mark.parametrize(("count", "classes"), [(1, 1), (2, 6), (3, 68)])
def test_expressions_have_one_form_exactly_when_they_are_one_function_of_their_numbers(count, classes):
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
        lambda inner: st.tuples(inner, st.sampled_from(OPERATORS), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        max_leaves=12,
    )


@given(expressions(), expressions(), expressions())
def test_order_and_parentheses_of_sums_and_products_do_not_change_the_form(a, b, c):
    for operator in "+*":
        assert normal(f"{a} {operator} {b}") == normal(f"{b} {operator} {a}")
        left, right = f"({a} {operator} {b}) {operator} {c}", f"{a} {operator} ({b} {operator} {c})"
        assert normal(left) == normal(right)
    assert normal(f"{a} - ({b} - {c})") == normal(f"{c} - {b} + {a}")
    assert normal(f"{a} / ({b} / {c})") == normal(f"{c} * {a} / {b}")


@given(expressions(), expressions())
def test_equal_forms_have_equal_values(a, b):
    first, second = parse(a), parse(b)
    if normal(a) == normal(b):
        assert (first.value, sorted(first.numbers)) == (second.value, sorted(second.numbers))
        assert normal(f"{a} - {b}") == normal(f"{b} - {a}")
    if first.value != second.value:
        assert normal(f"{a} - {b}") != normal(f"{b} - {a}")


def test_deep_parentheses_are_parsed():
    assert normal("(" * 2000 + "3 + 4" + ")" * 2000) == normal("4 + 3")
    assert normal("-".join(["9"] * 64)) == normal("9-(" + "+".join(["9"] * 63) + ")")
