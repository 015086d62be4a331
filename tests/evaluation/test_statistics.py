"""Intervals and tests against published examples, closed forms, brute force and simulation."""

from fractions import Fraction
from itertools import product
from math import comb, sqrt
from statistics import NormalDist, stdev

import numpy as np
import pytest

from countdown_rl.evaluation.statistics import (
    EXACT,
    FEW,
    Z,
    mcnemar,
    paired_difference,
    paired_mean,
    wilson,
)


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    # Newcombe (1998), "Two-sided confidence intervals for the single proportion", table I, method 3.
    [
        (81, 263, 0.2553, 0.3662),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_gives_the_published_limits(successes, n, low, high):
    assert wilson(successes, n) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize(("successes", "n"), [(0, 1), (3, 10), (500, 1000), (1, 100_000)])
def test_wilson_limits_invert_the_score_test(successes, n):
    low, high = wilson(successes, n)
    assert 0 <= low <= successes / n <= high <= 1
    for limit in (low, high):
        if 1e-9 < limit < 1 - 1e-9:
            assert abs(successes / n - limit) / sqrt(limit * (1 - limit) / n) == pytest.approx(Z)


@pytest.mark.parametrize(
    ("table", "difference", "low", "high"),
    [
        # Newcombe (1998), "... based on paired data", table II, method 10.
        ((36, 2, 12, 0), 0.2, 0.0569, 0.3404),
        # Altman et al. (2000), "Statistics with Confidence", table 6.2.
        ((14, 0, 5, 22), 0.122, 0.011, 0.226),
        # Fagerland, Lydersen and Laake (2014): airway hyper-responsiveness before and after transplantation.
        ((1, 7, 1, 12), -0.286, -0.507, -0.026),
    ],
)
def test_the_paired_difference_has_the_published_limits(table, difference, low, high):
    found, interval = paired_difference(*table)
    assert found == pytest.approx(difference, abs=6e-4)
    assert interval == pytest.approx((low, high), abs=6e-4)


def test_the_paired_interval_is_antisymmetric_and_within_bounds():
    for table in product(range(5), repeat=4):
        both, first, second, neither = table
        if not any(table):
            continue
        change, (low, high) = paired_difference(*table)
        reverse, (below, above) = paired_difference(both, second, first, neither)
        assert -1 <= low <= change <= high <= 1
        assert (reverse, below, above) == pytest.approx((-change, -high, -low), abs=1e-12)


@pytest.mark.parametrize(
    "chances",
    # both, first only, second only, neither: a step of training, of quantizing; and no relation.
    [(0.5, 0.08, 0.22, 0.2), (0.68, 0.01, 0.01, 0.3), (0.25, 0.25, 0.25, 0.25)],
)
def test_the_paired_interval_covers_95_percent_of_20000_draws(chances):
    def interval(*table):
        return paired_difference(*table)[1]

    covered = coverage(1000, chances, 20_000, chances[2] - chances[1], interval)
    assert covered == pytest.approx(0.95, abs=0.01)


def coverage(n, chances, draws, true, interval):
    """The share of random tables of *n* puzzles whose *interval* covers the *true* difference."""
    tables = np.random.default_rng(1).multinomial(n, chances, size=draws)
    covered = 0
    for table, count in zip(*np.unique(tables, axis=0, return_counts=True), strict=True):
        low, high = interval(*table.tolist())
        covered += count * (low <= true <= high)
    return covered / draws


def test_mcnemar_is_the_binomial_test_of_an_even_coin():
    for n in range(1, 16):
        for first in range(n + 1):
            # As likely as what was seen, or less: for an even coin, twice the smaller tail.
            seen = comb(n, first)
            exact = sum(Fraction(comb(n, k), 2**n) for k in range(n + 1) if comb(n, k) <= seen)
            assert mcnemar(first, n - first) == pytest.approx(float(exact), abs=1e-12)


def test_mcnemar_handles_thousands_of_puzzles():
    assert mcnemar(5_000, 5_000) == 1
    assert mcnemar(0, 1_000) == pytest.approx(2**-999)


@pytest.mark.parametrize("changes", [(1,) * 3, (1, 0.5, -0.5, 0, 0.25), (0,) * 3, (1,), (-1, 1)])
def test_the_test_of_few_puzzles_is_the_exact_randomization_of_their_signs(changes):
    sums = [abs(sum(signed)) for signed in product(*((change, -change) for change in changes))]
    exact = sum(value >= abs(sum(changes)) - 1e-12 for value in sums) / len(sums)
    mean, (low, high), p = paired_mean([0.5] * len(changes), [0.5 + change for change in changes])
    assert p == pytest.approx(exact)
    assert -1 <= low <= mean <= high <= 1
    assert high - low > 0.3


def test_no_p_value_is_below_the_least_of_the_randomization():
    for n in (EXACT + 1, FEW + 10, 1_000):
        mean, (low, high), p = paired_mean([0.0] * n, [1.0] * n)
        assert (mean, high) == (1, 1)
        assert p >= 2.0 ** (1 - n)
        assert low < 1


@pytest.mark.parametrize(
    "chances", [(0.3, 0.3, 0.4), (0.05, 0.9, 0.05), (0.0, 0.9, 0.1), (0.01, 0.01, 0.98)]
)
@pytest.mark.parametrize("n", [3, 10, 40])
def test_the_interval_of_few_puzzles_covers_95_percent_of_the_draws(chances, n):
    # of the changes -0.5, 0 and 0.5; for tables as few as these the published coverage is 93% or more
    def interval(lost, same, won):
        return paired_mean([0.5] * n, [0.0] * lost + [0.5] * same + [1.0] * won)[1]

    assert coverage(n, chances, 4_000, 0.5 * (chances[2] - chances[0]), interval) >= 0.93


def test_without_trials_nothing_is_known():
    assert (wilson(0, 0), mcnemar(0, 0)) == ((0, 1), 1)


def test_the_paired_mean_of_many_puzzles_is_that_of_the_normal_test():
    first, second = 20 * [0.0, 0.25, 0.5, 1.0], 20 * [0.25, 0.25, 1.0, 0.75]
    mean, (low, high), p = paired_mean(first, second)
    error = stdev(20 * [0.25, 0, 0.5, -0.25]) / 80**0.5
    assert (mean, high - mean, mean - low) == pytest.approx((0.125, Z * error, Z * error))
    assert p == pytest.approx(2 * NormalDist().cdf(-mean / error))
