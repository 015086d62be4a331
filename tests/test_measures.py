"""Shares of several completions a puzzle: estimators against enumeration, intervals against simulation."""

from itertools import combinations
from statistics import NormalDist, stdev

import numpy as np
import pytest

from countdown_rl.comparison import difference
from countdown_rl.errors import UsageError
from countdown_rl.evaluation import Result
from countdown_rl.measures import measure, pass_at
from countdown_rl.options import EvalOptions
from countdown_rl.statistics import mean_interval, paired_mean, wilson


def graded(right, *, size=3):
    """*right* as samples of one row after another, and the rows."""
    rows = [{"nums": [1] * size, "target": 1} for _ in right]
    blank = {"format": True, "strict_format": True, "truncated": False, "tokens": 5}
    samples = [blank | {"correct": ok, "reason": "" if ok else "wrong-value"} for row in right for ok in row]
    return samples, rows


@pytest.mark.parametrize("each", range(1, 7))
def test_pass_at_k_is_the_share_of_draws_that_have_a_right_one(each):
    for right in range(each + 1):
        outcomes = [True] * right + [False] * (each - right)
        for k in range(1, each + 1):
            draws = [any(draw) for draw in combinations(outcomes, k)]
            assert pass_at(k, right, each) == pytest.approx(sum(draws) / len(draws))


def test_one_completion_a_puzzle_has_wilsons_interval():
    for n in (1, 7, 500):
        for right in {0, 1, n // 2, n - 1, n}:
            assert mean_interval([1.0] * right + [0.0] * (n - right)) == pytest.approx(wilson(right, n))


def test_completions_that_always_agree_tell_no_more_than_one_and_independent_ones_as_much_as_they_are():
    alike = [1.0] * 30 + [0.0] * 70
    assert mean_interval(alike, 8) == pytest.approx(wilson(30, 100))
    assert mean_interval([0.5] * 100, 8) == pytest.approx(wilson(400, 800))
    assert mean_interval([], 8) == (0, 1)
    assert mean_interval([0.0] * 100, 8) == pytest.approx(wilson(0, 100))


@pytest.mark.parametrize(("a", "b"), [(0.5, 0.5), (2, 1), (6, 2), (0.2, 0.8)])
def test_the_interval_of_a_mean_over_puzzles_covers_95_percent_of_5000_draws(a, b):
    draw = np.random.default_rng(0)
    covered = 0
    for _ in range(5_000):
        shares = draw.binomial(4, draw.beta(a, b, size=200)) / 4  # puzzles differ; completions of one are alike
        low, high = mean_interval(shares.tolist(), 4)
        covered += low <= a / (a + b) <= high
    assert covered / 5_000 == pytest.approx(0.95, abs=0.01)


def test_a_paired_mean_is_that_of_the_differences():
    first, second = [0.0, 0.25, 0.5, 1.0], [0.25, 0.25, 1.0, 0.75]
    mean, (low, high), p = paired_mean(first, second)
    assert mean == pytest.approx(0.125)
    assert low < mean < high
    assert low == pytest.approx(0.25 - high)
    error = stdev([0.25, 0, 0.5, -0.25]) / 2
    assert p == pytest.approx(2 * NormalDist().cdf(-mean / error))
    assert paired_mean(first, first) == (0, (0, 0), 1)


def test_metrics_of_several_completions_count_puzzles_and_give_pass_at_k():
    samples, rows = graded([(True, False), (True, True), (False, False), (False, True)])
    metrics = measure(samples, rows)
    assert (metrics["n"], metrics["correct"], metrics["accuracy"]) == (4, 4, 0.5)
    assert {k: found["share"] for k, found in metrics["pass_at"].items()} == {"1": 0.5, "2": 0.75}
    assert metrics["by_size"]["3"]["n"] == 4
    assert metrics["reasons"] == {"wrong-value": 4}


def test_metrics_of_one_completion_say_nothing_of_pass_at():
    samples, rows = graded([(True,), (False,)])
    assert "pass_at" not in measure(samples, rows)


def test_results_of_several_completions_are_compared_puzzle_by_puzzle():
    results = []
    for right in ([(True, False), (False, False), (True, True)], [(True, True), (False, False), (True, False)]):
        samples, rows = graded(right)
        results.append(Result(measure(samples, rows), samples))
    found = difference(*results)
    assert (found["difference"], found["won"], found["lost"], found["p"]) == (0, 1, 1, 1)


def test_several_greedy_completions_are_refused():
    with pytest.raises(UsageError, match="temperature"):
        EvalOptions(samples=4)
