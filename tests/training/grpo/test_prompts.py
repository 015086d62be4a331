"""Samplers: the curriculum, the order of a resumed run, and wrong ones."""

import json
from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from countdown_rl.core.errors import UsageError
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


def test_the_first_round_is_sampled_in_proportion_to_the_data():
    (first,), (larger,) = rounds(1), rounds(1, size=300)
    assert len(first) == len(set(first)) == 40
    assert len(larger) == 300  # rows of a small data set repeat


@pytest.mark.parametrize("other", [0.9, 1.0 + 5e-7, None])
def test_a_group_varies_by_its_rewards_whatever_is_correct(other):
    assert Outcome(0, (1.0, other), (True, False), (False, False)).varies is (other == 0.9)


def test_kinds_solved_sometimes_are_sampled_more_and_others_still():
    last = Counter(kind(ROWS[index]) for index in rounds(13, KINDS[:1], size=400)[-1])
    assert last[KINDS[0]] > 180
    assert all(40 < last[name] < 90 for name in KINDS[1:])  # half of their share of the rows


def test_groups_count_by_the_variance_of_their_rewards_and_recent_ones_most():
    generator = prompts.curriculum(ROWS, 400, 7)
    indices = next(generator)
    for varied in [KINDS[0]] * 30 + [KINDS[1]] * 30:
        observed = []
        for row in indices:  # those whose rewards vary have no correct completion, the others have
            varies = kind(ROWS[row]) == varied
            rewards = (0.1 if varies else 1.0, 1.0)
            observed.append(Outcome(row, rewards, (not varies, not varies), (False, False)))
        indices = generator.send(observed)
    last = Counter(kind(ROWS[index]) for index in indices)
    assert last[KINDS[1]] > 180
    assert last[KINDS[1]] > 1.7 * last[KINDS[0]]


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


def yields(*rounds):
    def sampler(rows, size, seed):
        rows[0]["nums"].append(99)  # of a copy
        yield from rounds

    return prompts.order(sampler, "mine", ROWS, 4, 7)


@pytest.mark.parametrize(
    "wrong", [None, [0] * 3, [0] * 5, [0.5] * 4, [[1]] * 4, [100] * 4, [-1] * 4]
)
def test_a_sampler_yields_rounds_of_rows_and_gets_copies(wrong):
    before = json.dumps(ROWS, default=dict)
    assert list(islice(yields(np.arange(4)), 4)) == [0, 1, 2, 3]
    assert json.dumps(ROWS, default=dict) == before
    for order in (yields(wrong), yields(), prompts.order(lambda *_: wrong, "mine", ROWS, 4, 7)):
        with pytest.raises(UsageError, match="sampler mine"):
            next(order)


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
