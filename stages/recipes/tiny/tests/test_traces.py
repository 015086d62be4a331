import random
import re
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.recipes.tiny import traces
from stages.recipes.tiny.traces import find_plan, trace

DRAWN = random.Random(1)


def value_of(text: str) -> Fraction:
    # Trusted text of our own making; the product itself never evaluates anything this way.
    return eval(re.sub(r"\d+", lambda m: f"Fraction({m[0]})", text))


def reachable(numbers: list[int]) -> set[int]:
    """Every positive whole number that positive whole steps reach using all of *numbers* (brute
    force).
    """
    if len(numbers) == 1:
        return {numbers[0]}
    found: set[int] = set()
    for i, j in combinations(range(len(numbers)), 2):
        rest = [n for k, n in enumerate(numbers) if k not in (i, j)]
        high, low = max(numbers[i], numbers[j]), min(numbers[i], numbers[j])
        outcomes = {high + low, high - low, high * low} | (
            {high // low} if high % low == 0 else set()
        )
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
PLAN = find_plan(ROWS)
#: As long as a plan can be, so that there is something to choose.
LONG = {
    count: (PLAN[count] + [way for way in traces.all_ways(count) if way not in PLAN[count]])[:99]
    for count in PLAN
}
puzzles = st.tuples(st.lists(st.integers(1, 99), min_size=2, max_size=4), st.integers(10, 100))
STEP = re.compile(r"(\d+) ([-+*/]) (\d+)(?: = (\d+))?")


@given(puzzles, st.integers(0, 99), st.booleans(), st.integers(1, 30))
def test_steps_are_right_or_refused_and_only_the_last_line_reaches_the_target(
    puzzle, seed, near_the_end, max_lines
):
    nums, target = puzzle
    row = {"nums": nums, "target": target}
    written = trace(row, LONG, random.Random(seed), max_lines=max_lines, near_the_end=near_the_end)
    first, *tried = written.text.partition("</think>")[0].strip("\n").split("\n")
    assert [int(number) for number in first.split()] == sorted(nums, reverse=True)
    assert 1 <= len(tried) <= max_lines
    for number, line in enumerate(tried):
        steps, verdict = re.fullmatch(r"\d+\. (.*?) ((?:no|yes).*)", line).groups()
        parts = [STEP.fullmatch(step).groups() for step in steps.split(", ")]
        for place, (left, sign, right, result) in enumerate(parts):
            exact = value_of(f"{left} {sign} {right}")
            allowed = exact.denominator == 1 and 0 < exact <= traces.LIMIT
            assert (result is not None) == allowed
            assert result is None or exact == int(result)
            assert result is not None or place == len(parts) - 1
        last = parts[-1][3]
        assert last is None or len(parts) == len(nums) - 1
        assert (verdict == "yes") == (last is not None and int(last) == target)
        assert verdict in traces.SKIPS or number == len(tried) - 1
    if not written.ended:
        assert verdict in traces.SKIPS
        return
    answer = re.fullmatch(r".*\n</think>\n<answer>(.*)</answer>", written.text, re.DOTALL)[1]
    assert value_of(answer) == target
    assert sorted(map(int, re.findall(r"\d+", answer))) == sorted(nums)


@given(puzzles, st.integers(0, 99))
def test_each_line_is_one_of_the_next_few_ways_and_a_pass_begins_again_at_the_end(puzzle, seed):
    nums, target = puzzle
    count = len(LONG[len(nums)])
    written = trace({"nums": nums, "target": target}, LONG, random.Random(seed), max_lines=60)
    places = [int(place) - 1 for place in re.findall(r"^(\d+)\. ", written.text, re.MULTILINE)]
    assert places[0] in traces.next_ways(None, count)
    skips = [traces.SKIPS.index(end) for end in re.findall(r" (no.*)$", written.text, re.MULTILINE)]
    for before, skip, after in zip(places, skips, places[1:], strict=False):
        assert after == traces.next_ways(before, count)[skip]


@given(st.lists(st.integers(1, 30), min_size=3, max_size=3), st.integers(10, 100))
def test_all_ways_of_three_numbers_leave_nothing_out(nums, target):
    every = {3: traces.all_ways(3)}
    written = trace({"nums": nums, "target": target}, every, random.Random(0), max_lines=12)
    assert written.ended == (target in reachable(nums))


def test_expected_accuracy_is_what_drawn_traces_come_to():
    rows = drawn(60, (3, 4))

    def count_tokens(texts):
        return [len(text) for text in texts]

    written = [
        trace(row, LONG, random.Random(f"{seed} {index}"), max_lines=999)
        for index, row in enumerate(rows)
        for seed in range(60)
    ]
    shares = [traces.expected_accuracy(row, LONG, count_tokens, budgets=(200, 600)) for row in rows]
    for place, budget in enumerate((200, 600)):
        solved = sum(one.ended and len(one.text) <= budget for one in written) / len(written)
        assert sum(share[place] for share in shares) / len(shares) == pytest.approx(
            solved, abs=0.02
        )
    for row in rows:
        count = len(LONG[len(row["nums"])])
        in_order = np.eye(1, traces.window(count)).repeat(count + 1, axis=0)
        solved = traces.expected_accuracy(row, LONG, count_tokens, budgets=(600,), chances=in_order)
        assert solved[0] in (0.0, 1.0)
