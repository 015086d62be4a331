"""Exact rounds of imitation, against simulated searches and the committed curve."""

import json
import random

import numpy as np
import pytest

from benchmarks import bench, exact
from countdown_rl import generate
from countdown_rl.models import reference
from stages.recipes.tiny import traces

REF = reference.find_model("countdown-tiny")
PLAN = traces.plan_of(REF.manifest.facts)
ROWS = list(generate(40, sizes=(4,), seed=3))


@pytest.fixture(scope="module")
def puzzles():
    return exact.searches(ROWS, PLAN, exact.token_counter(REF))


def simulated(puzzle, chances, rng):
    """Tokens and choices of one completion, tokens None if it is not solved."""
    position, tokens, choices = len(puzzle.hits), puzzle.start, []
    while True:
        choice = int(rng.choice(chances.shape[1], p=chances[position]))
        choices.append((position, choice))
        ways = len(puzzle.hits)
        position = choice if position == ways else traces.next_ways(position, ways)[choice]
        tokens += puzzle.costs[position]
        if tokens > exact.LIMIT:
            return None, choices
        if puzzle.hits[position]:
            return tokens, choices


def test_the_accuracy_is_the_share_of_written_traces_that_are_solved(puzzles):
    rng, texts = random.Random(1), []
    for row in ROWS:
        texts += [traces.trace(row, PLAN, rng, max_lines=40).text for _ in range(100)]
    lengths = exact.token_counter(REF)(texts)
    solved = [
        text.endswith("</answer>") and length <= exact.LIMIT
        for text, length in zip(texts, lengths, strict=True)
    ]
    accuracy = exact.measure(puzzles, exact.uniform(99))["pass@1"]
    assert accuracy == pytest.approx(np.mean(solved), abs=0.02)


@pytest.mark.parametrize("weights", ["all", "line", "shortest", "puzzle", "pass@2"])
def test_a_round_is_that_of_many_samples(puzzles, weights):
    """Simulate one puzzle, weigh each correct completion, and count its choices."""
    puzzle = puzzles[0]
    rng, start = np.random.default_rng(1), exact.uniform(99)
    samples = [simulated(puzzle, start, rng) for _ in range(40_000)]
    lengths = np.array([tokens or 0 for tokens, _ in samples])
    solved = np.bincount(lengths, minlength=exact.LIMIT + 1) / len(samples)
    solved[0] = 0
    rewards = exact.rewards_of(weights, solved)

    counts = np.zeros(start.shape[1])
    for tokens, choices in samples:
        if tokens is not None:
            discount = exact.DISCOUNT ** (len(choices) - 1) if weights == "line" else 1.0
            counts[choices[0][1]] += rewards[tokens] * discount
    expected = exact.improved([puzzle], start, weights, 1.0, exact.LIMIT)[-1]
    np.testing.assert_allclose(counts / counts.sum(), expected, atol=0.03)


def test_shortest_keeps_the_shortest_of_a_group():
    solved = np.array([0.0, 0.3, 0.5])
    rng, kept = np.random.default_rng(1), np.zeros(3)
    for _ in range(20_000):
        group = rng.choice([1, 2, 9], size=exact.GROUP, p=[0.3, 0.5, 0.2])
        if group.min() < 9:
            kept[group.min()] += 1 / 20_000
    np.testing.assert_allclose(exact.rewards_of("shortest", solved) * solved, kept, atol=0.01)


def test_a_step_of_power_two_is_twice_the_change_in_log_odds(puzzles):
    start = exact.uniform(99)
    single, double = (
        exact.improved(puzzles, start, "all", power, exact.LIMIT) for power in (1.0, 2.0)
    )
    reached = single.min(axis=1) > 0
    odds = np.log(single[reached]) - np.log(single[reached, :1])
    twice = np.log(double[reached]) - np.log(double[reached, :1])
    np.testing.assert_allclose(twice, 2 * odds, atol=1e-9)


def test_every_end_of_a_line_has_as_many_tokens():
    line = traces.execute([57, 42, 15, 5], PLAN[4][0], 1)
    texts = [traces.written(0, line, reached=False, skip=skip) for skip in range(4)]
    assert len(set(exact.token_counter(REF)(texts))) == 1


def test_the_sheet_has_the_curve_of_an_independent_implementation():
    """The rounds of a former program of this project and of a prototype in C, in four digits."""
    curve = {"0": 0.5382, "1": 0.5592, "2": 0.5723, "5": 0.5924, "12": 0.6142, "25": 0.6341}
    sheet = json.loads((bench.RESULTS / "exact.json").read_text())["settings"]
    (plain,) = (of for of in sheet if (of["weights"], of["power"]) == ("all", 1))
    assert {done: plain["rounds"][done]["pass@1"] for done in curve} == curve
