"""Searches of Stream of Search: every line is executed again by exact arithmetic, in states that
earlier lines lead to.
"""

import random
import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from countdown_rl.tasks.countdown.expression import parse
from countdown_rl.tasks.countdown.rules import RULES
from countdown_rl.tasks.registry import parse_row
from stages.recipes import search

PUZZLES = st.fixed_dictionaries(
    {"nums": st.lists(st.integers(1, 30), min_size=2, max_size=4), "target": st.integers(1, 60)},
    optional={
        "operators": st.sampled_from(["+-", "+-*", "*/"]),
        "rule": st.sampled_from([*RULES][1:]),
    },
)


def less(state, *values):
    """The numbers of *state* without *values*, all of which it must hold."""
    left = list(state)
    for value in values:
        left.remove(int(value))
    return left


def check_equation(row, left, operator, right, result):
    parsed = parse(f"{left}{operator}{right}={result}")
    assert parsed.agrees
    assert operator in row.puzzle.operators
    assert int(result) > 0 or not row.puzzle.rule.whole


class States:
    """The states that a search has been in."""

    def __init__(self, numbers):
        self.known = {tuple(sorted(numbers))}

    def check(self, state):
        assert tuple(sorted(map(int, state))) in self.known

    def after(self, state, left, right, result):
        """Enter the state after an operation in *state*."""
        self.check(state)
        self.known.add(tuple(sorted([*less(state, left, right), int(result)])))


def check_answer(row, lines):
    """Only the last line may have an answer, and it is correct."""
    assert all(answer == search.IMPOSSIBLE for _, answer in lines[:-1])
    if lines[-1][1] != search.IMPOSSIBLE:
        assert row.judge(lines[-1][1])[1] == ""


@given(PUZZLES, st.integers(0, 99))
def test_compact_lines_are_right_and_follow_from_each_other(fields, seed):
    row = parse_row(fields)
    lines = list(search.compact(row, random.Random(seed)))[:200]
    states = States(row["nums"])
    for text, _ in filter(lambda line: line[0], lines):
        if returned := re.match(r"\d+(?:,\d+)+", text):  # to an earlier state
            state = returned[0].split(",")
            states.check(state)
            if text != returned[0]:
                assert len(state) == 2
                check_chain(row, state[-1], text[returned.end() :], [list(map(int, state))])
            continue
        operation = re.match(r"(\d+)([-+*/])(\d+)=(\d+)((?:,\d+)*)", text)
        left, operator, right, result, rest = operation.groups()
        check_equation(row, left, operator, right, result)
        if rest:
            states.after(
                [*map(int, rest.split(",")[1:]), int(left), int(right)], left, right, result
            )
            assert operation.end() == len(text)
        else:
            used = Counter(map(int, (left, right)))
            others = [less(state, left, right) for state in states.known if used <= Counter(state)]
            entered = [[*other, int(result)] for other in others if len(other) == 1]
            assert entered or int(result) == row["target"]  # by the rule at-most-once
            states.known |= {tuple(sorted(state)) for state in entered}
            check_chain(row, result, text[operation.end() :], entered)
    check_answer(row, lines)


def check_chain(row, result, chain, states):
    """The operations on *result* and the other number of one of *states*."""
    operations = re.findall(r"([-+*/])(\d+)=(\d+)| (\d+)([-+*/])(\d+)=(\d+)", chain)
    assert (
        "".join(a + b + "=" + c if a else f" {d}{e}{f}={g}" for a, b, c, d, e, f, g in operations)
        == chain
    )
    used = set()
    for operator, right, value, left, before, same, total in operations:
        check_equation(
            row, *((result, operator, right, value) if operator else (left, before, same, total))
        )
        assert operator or same == result
        used.add(int(right or left))
    assert len(used) <= 1
    assert not used or any(sorted([*used, int(result)]) == sorted(state) for state in states)


@given(PUZZLES, st.integers(0, 99))
def test_published_lines_are_right_and_follow_from_each_other(fields, seed):
    row = parse_row(fields)
    lines = list(search.published(row, random.Random(seed)))[:600]
    states, state = States(row["nums"]), []
    for text, _ in lines:
        if match := re.fullmatch(r"Current State: (\d+):\[(.*)\], Operations: \[(.*)\]", text):
            assert int(match[1]) == row["target"]
            state = match[2].split(", ")
            states.check(state)
        elif match := re.fullmatch(
            r"Exploring Operation: (\d+)([-+*/])(\d+)=(\d+), Resulting Numbers: \[(.*)\]", text
        ):
            check_equation(row, *match.groups()[:4])
            states.after([int(number) for number in state], match[1], match[3], match[4])
            assert sorted(map(int, match[5].split(", "))) in [
                sorted(known) for known in states.known
            ]
        else:
            assert re.fullmatch(
                r"Moving to Node #0[\d,]*|Generated Node #.*|\d+,\d+ (un)?equal: .*", text
            )
    check_answer(row, lines)


LONG = (
    "3-2=1,4|2+4=6,3|2*3=6,4|2+3=5+4=9*4=20-4=1|4,6-4=2*4=24+4=10|3,6*3=18-3=3+3=9/3=2|"
    "4,1*4=4 4-1=3+4=5"
)


@pytest.mark.parametrize(
    ("fields", "seed", "lines", "answer"),
    [
        ({"nums": [28, 7, 1], "target": 21}, 1, "28-7=21*1=21", "1*(28-7)"),
        ({"nums": [7, 28], "target": 5}, 1, "7,28/7=4", search.IMPOSSIBLE),
        (
            {"nums": [28, 7, 1], "target": 21},
            0,
            "28*1=28,7|28-1=27,7|28/7=4,1|28-7=21*1=21",
            "1*(28-7)",
        ),
        ({"nums": [2, 3, 4], "target": 5}, 0, LONG, "4+3-2"),
        ({"nums": [9, 7, 5], "target": 97}, 3, None, search.IMPOSSIBLE),
    ],
)
def test_a_search_ends_with_its_answer(fields, seed, lines, answer):
    written = list(search.compact(parse_row(fields), random.Random(seed)))
    assert lines in (None, "|".join(line for line, _ in written))
    assert written[-1][1] == answer


def test_the_mixture_finds_some_targets_and_misses_some():
    rng = random.Random(1)
    rows = [
        parse_row({"nums": [rng.randint(1, 30) for _ in range(4)], "target": 30})
        for _ in range(100)
    ]
    answer = lambda write, index: list(write(rows[index], random.Random(index)))[-1][1]  # noqa: E731
    both = [
        [answer(write, index) for index in range(100)]
        for write in (search.compact, search.published)
    ]
    assert both[0] == both[1]
    assert 20 < both[0].count(search.IMPOSSIBLE) < 80
