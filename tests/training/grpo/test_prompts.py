"""Samplers: the curriculum, the order of a resumed run, and wrong ones."""

import json
from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from countdown_rl.core.errors import CountdownError, UsageError, user_frames
from countdown_rl.tasks.registry import parse_row
from countdown_rl.training.grpo import prompts
from countdown_rl.training.grpo.prompts import Outcome, in_turn, kind


def puzzle(nums, **facts):
    return parse_row({"nums": nums, "target": 7} | facts)


ROWS = []
for size in (3, 4):
    ROWS += [puzzle([1] * size, needs=needs, solutions=2) for needs in ("add-sub", "mul-div")] * 25
KINDS = sorted({kind(row) for row in ROWS})


def outcomes(indices, mixed):
    """Two completions of each row: one correct and one wrong where its kind is among *mixed*, else both wrong."""
    flags = {row: kind(ROWS[row]) in mixed for row in indices}
    return [Outcome(row, (flags[row], 0.0), (flags[row], False), (False, False)) for row in indices]


def rounds(count, mixed=(), size=40, sampler=prompts.curriculum):
    """The rows of the first *count* rounds, where groups of the kinds *mixed* are mixed."""
    generator, sampled = sampler(ROWS, size, 7), []
    for number in range(count):
        observed = outcomes(sampled[number - 2], mixed) if number > 1 else []
        sampled.append(generator.send(observed if number else None))
    return sampled


def test_kinds_are_the_values_of_all_groups():
    assert kind(puzzle([1, 2, 3], solutions=0)) == "numbers 3, solutions 0"
    four = puzzle([1, 2, 3, 4], needs="mul-div", solutions=3)
    assert kind(four) == "numbers 4, needs mul-div, solutions 2-4"
    assert kind(parse_row({"task": "gsm8k", "question": "?", "gold": "1"})) == ""


def test_the_first_round_is_sampled_in_proportion_to_the_data():
    assert set(prompts.probabilities(dict.fromkeys(KINDS, (0,)), {}).values()) == {0.25}
    (first,), (larger,) = rounds(1), rounds(1, size=300)
    assert len(first) == len(set(first)) == 40
    assert len(larger) == 300  # rows of a small data set repeat


@pytest.mark.parametrize(
    ("rewards", "varies"),
    [
        ((1.0, 0.9), True),
        ((1.0, 1.0 + 5e-7), False),
        ((None, 1.0), False),
    ],
)
def test_a_group_varies_by_its_rewards_whatever_is_correct(rewards, varies):
    assert Outcome(0, rewards, (True, False), (False, False)).varies is varies


def test_the_first_groups_of_a_kind_count_little():
    # A kind of n groups without variance has the weight 1 / (n + 1), an unseen one that of a kind that always varies.
    weights = prompts.probabilities(dict.fromkeys("abc", (0,)), {"a": (1.0, 0.0), "b": (3.0, 0.0)})
    means = {"a": 1 / 2, "b": 1 / 4, "c": 1.0}
    mean = sum(means.values()) / 3
    assert weights == pytest.approx(
        {name: (0.5 + 0.5 * weight / mean) / 3 for name, weight in means.items()}
    )


def test_kinds_solved_sometimes_are_sampled_more_and_others_still():
    last = Counter(kind(ROWS[index]) for index in rounds(13, KINDS[:1], size=400)[-1])
    assert last[KINDS[0]] > 180
    assert all(40 < last[name] < 90 for name in KINDS[1:])  # half of their share of the rows


def test_a_resumed_order_is_that_of_an_unbroken_one_and_knows_a_sampler_that_changed():
    sampled, known = rounds(8, KINDS[:2]), []

    def order(sampler=prompts.curriculum, start=0, outcomes=known):
        return prompts.order(sampler, "mine", ROWS, 40, 7, start=start, outcomes=outcomes)

    unbroken = order()
    for number in range(8):
        assert list(islice(unbroken, 40)) == sampled[number]
        known.append(outcomes(sampled[number], KINDS[:2]))
    known = json.loads(json.dumps(known))  # as in a checkpoint
    for start in range(7):
        again = order(start=start, outcomes=known[: start + 1])
        assert list(islice(again, 40)) == sampled[start]
    changed = order(lambda rows, size, seed: prompts.curriculum(rows, size, 8), 2, known)
    with pytest.raises(UsageError, match="other rows for round 1"):
        next(changed)


def yields(value):
    def sampler(rows, size, seed):
        yield value

    return sampler


@pytest.mark.parametrize(
    "value",
    [
        None,
        [0] * 3,
        [0] * 5,
        [0.5],
        [[1]],
        [100],
        [-1],
    ],
)
def test_what_is_no_round_of_rows_is_refused(value):
    with pytest.raises(CountdownError, match="sampler mine"):
        next(prompts.order(yields(value), "mine", ROWS, 4, 7))


def test_a_sampler_yields_and_gets_copies_of_the_rows():
    def spoils(rows, size, seed):
        rows[0]["nums"].append(99)
        rows.clear()
        yield [0] * size

    with pytest.raises(UsageError, match="generator function"):
        next(prompts.order(lambda rows, size, seed: [0] * size, "mine", ROWS, 4, 7))
    before = json.dumps(ROWS, default=dict)
    assert next(prompts.order(spoils, "mine", ROWS, 4, 7)) == 0
    assert json.dumps(ROWS, default=dict) == before


def test_a_sampler_that_ends_is_refused_after_its_rounds():
    order = prompts.order(yields(np.arange(4)), "mine", ROWS, 4, 7)
    assert list(islice(order, 4)) == [0, 1, 2, 3]
    with pytest.raises(UsageError, match="sampler mine"):
        next(order)


def test_an_error_of_a_sampler_shows_its_own_frames():
    def broken(rows, size, seed):
        yield list(range(size))
        raise KeyError("mine")

    with pytest.raises(UsageError, match="sampler mine failed: KeyError") as caught:
        list(islice(prompts.order(broken, "mine", ROWS, 4, 7), 5))
    assert 'raise KeyError("mine")' in user_frames(caught.value)


def test_the_sampler_of_the_documentation_prefers_mixed_groups():
    page = (Path(__file__).parents[3] / "docs" / "rewards.md").read_text()
    code = page.partition("# my_sampler.py\n")[2].partition("```")[0]
    assert len(code.strip().splitlines()) <= 25
    namespace = {}
    exec(code, namespace)
    last = rounds(30, KINDS[:1], sampler=namespace["thompson"])[-1]
    assert sum(kind(ROWS[row]) == KINDS[0] for row in last) > 30


def test_every_row_is_drawn_once_per_epoch():
    order = list(islice(in_turn(7, seed=3), 21))
    assert sorted(order[:7]) == sorted(order[7:14]) == list(range(7))
    assert order[:7] != order[7:14]
    assert list(islice(in_turn(7, seed=3, start=9), 12)) == order[9:]
