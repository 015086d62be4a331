import random
import re
from fractions import Fraction
from itertools import combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from countdown_rl.errors import InputError
from countdown_rl.sft.traces import plan, trace

DRAWN = random.Random(1)


def value_of(text: str) -> Fraction:
    # Trusted text of our own making; the product itself never evaluates anything this way.
    return eval(re.sub(r"\d+", lambda m: f"Fraction({m[0]})", text))


def reachable(numbers: list[int]) -> set[int]:
    """Every positive whole number that positive whole steps reach using all of *numbers* (brute force)."""
    if len(numbers) == 1:
        return {numbers[0]}
    found: set[int] = set()
    for i, j in combinations(range(len(numbers)), 2):
        rest = [n for k, n in enumerate(numbers) if k not in (i, j)]
        high, low = max(numbers[i], numbers[j]), min(numbers[i], numbers[j])
        outcomes = {high + low, high - low, high * low} | ({high // low} if high % low == 0 else set())
        for outcome in outcomes:
            if outcome > 0:
                found |= reachable([*rest, outcome])
    return found


def drawn(count: int, sizes: tuple[int, ...]) -> list[dict]:
    rows: list[dict] = []
    while len(rows) < count:
        numbers = [DRAWN.randint(1, 99) for _ in range(DRAWN.choice(sizes))]
        if targets := [value for value in reachable(numbers) if 10 <= value <= 100]:
            rows.append({"nums": numbers, "target": DRAWN.choice(targets)})
    return rows


ROWS = drawn(600, (2, 3, 4))
PLAN = plan(ROWS)
puzzles = st.tuples(st.lists(st.integers(1, 99), min_size=2, max_size=4), st.integers(10, 100))


@given(puzzles, st.integers(0, 99), st.sampled_from([0.0, 0.3]), st.integers(1, 8))
def test_every_line_is_right_arithmetic_and_only_the_last_one_reaches_the_target(puzzle, seed, give_up, max_lines):
    nums, target = puzzle
    row = {"nums": nums, "target": target}
    written = trace(row, PLAN, random.Random(seed), give_up=give_up, max_lines=max_lines)
    first, *tried = written.text.partition("</think>")[0].strip("\n").split("\n")
    assert [int(number) for number in first.split()] == sorted(nums, reverse=True)
    assert 1 <= len(tried) <= max_lines
    assert len({line.split(". ", 1)[1] for line in tried}) == len(tried)
    places = [int(line.split(". ")[0]) for line in tried]
    assert places == sorted(set(places))
    for number, line in enumerate(tried):
        steps, verdict = line.split(". ", 1)[1].rsplit(" ", 1)
        assert len(steps.split(", ")) == len(nums) - 1
        for step in steps.split(", "):
            left, right = step.split(" = ")
            assert value_of(left) == int(right) > 0
        assert verdict == ("yes" if int(right) == target else "no")
        assert verdict == "no" or number == len(tried) - 1
    if not written.ended:
        assert written.text.endswith(" no\n")
        return
    answer = re.fullmatch(r".*\n</think>\n<answer>(.*)</answer>", written.text, re.DOTALL)[1]
    if verdict == "no":
        assert give_up
        assert answer == "impossible"
    else:
        assert value_of(answer) == target
        assert sorted(map(int, re.findall(r"\d+", answer))) == sorted(nums)


@given(st.lists(st.integers(1, 99), min_size=3, max_size=3), st.integers(10, 100))
def test_all_twelve_ways_of_three_numbers_leave_nothing_out(nums, target):
    every = plan([{"nums": list(order), "target": value} for order in permutations(nums) for value in reachable(nums)])
    written = trace({"nums": nums, "target": target}, every, random.Random(0), max_lines=99)
    assert written.ended == (target in reachable(nums))


def test_the_order_is_found_from_the_puzzles():
    sums = [{"nums": [a, b, c], "target": a + b + c} for a, b, c in ([9, 5, 1], [8, 6, 3], [20, 7, 2])]
    products = [{"nums": [a, b, c], "target": a * b - c} for a, b, c in ([9, 5, 1], [8, 6, 3], [20, 7, 2])]
    assert plan(sums)[3][0] == "a+b"
    assert plan(products)[3][0] == "a*b"


def test_few_lines_solve_most_puzzles():
    fresh = drawn(400, (3, 4))
    for count, lines, share in ((3, 4, 0.9), (4, 12, 0.65)):
        some = [row for row in fresh if len(row["nums"]) == count]
        solved = sum(trace(row, PLAN, random.Random(0), max_lines=lines).ended for row in some)
        assert solved / len(some) > share


def test_patience_is_drawn_and_the_same_seed_writes_the_same_trace():
    long = [row for row in ROWS if not trace(row, PLAN, random.Random(0), max_lines=6).ended]
    row = long[0]

    def write(seed):
        return trace(row, PLAN, random.Random(seed), give_up=0.5, max_lines=99).text

    assert write(3) == write(3)
    assert len({write(seed) for seed in range(20)}) > 1
    assert trace(row, PLAN, random.Random(0), give_up=1, max_lines=99).text.count(" no\n") == 1


def test_the_last_step_is_the_one_nearest_to_the_target():
    row = {"nums": [7, 50], "target": 46}
    assert trace(row, plan([row]), random.Random(0), max_lines=1).text == "\n50 7\n"
    assert trace(row, {2: [""]}, random.Random(0), max_lines=1).text == "\n50 7\n1. 50 - 7 = 43 no\n"


def test_too_many_numbers_are_refused():
    with pytest.raises(InputError, match="up to 5 numbers, and a puzzle has 6"):
        plan([{"nums": [1, 2, 3, 4, 5, 6], "target": 21}])
