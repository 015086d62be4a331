"""95% intervals and paired tests of accuracies.

SciPy has no interval of Wilson for a fractional sample size, no bootstrap-t and nothing of Newcombe; McNemar's test is
its own.
"""

from collections.abc import Sequence
from math import erfc, sqrt

#: The 97.5% point of the normal distribution.
Z = 1.959963984540054

#: Of the bootstrap: resamples, the minimum count of values, and the minimum sum of the values and of their complements.
RESAMPLES, MIN_VALUES, MIN_SUM = 4_000, 20, 5

Interval = tuple[float, float]


def wilson(successes: float, n: float) -> Interval:
    """The 95% score interval of a proportion (Wilson 1927); (0, 1) when *n* is 0."""
    if n == 0:
        return 0.0, 1.0
    share = successes / n
    middle = share + Z * Z / (2 * n)
    half = Z * sqrt(share * (1 - share) / n + Z * Z / (4 * n * n))
    scale = 1 + Z * Z / n
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


def mean_interval(values: Sequence[float], trials: int = 1) -> Interval:
    """The 95% interval of the mean of *values* between 0 and 1, each the share of successes in *trials* trials.

    Wilson's interval at the effective sample size, as Korn and Graubard (1998) use it for clustered data: p (1 - p)
    over the variance of the mean, at least the number of values and at most that of trials.
    """
    n = len(values)
    if n == 0:
        return wilson(0, 0)
    mean = sum(values) / n
    spread = sum((value - mean) ** 2 for value in values) / n
    variance = mean * (1 - mean)  # of one trial per value
    effective = n if spread >= variance else n * min(trials, variance / spread if spread else trials)
    return wilson(mean * effective, effective)


def bootstrap(values: Sequence[float]) -> Interval:
    """The 95% bootstrap interval of the mean of *values* between 0 and 1; deterministic.

    The bootstrap-t of the mean's log-odds (Efron and Tibshirani 1993, "An Introduction to the Bootstrap",
    chapter 12), which stays between 0 and 1 and has better coverage than the percentile method. With few values, or
    nearly all of them 0 or 1, Wilson's interval.
    """
    import numpy as np

    distinct, counts = np.unique(np.asarray(values, dtype=float), return_counts=True)
    n = int(counts.sum())
    total = float(counts @ distinct)
    if len(distinct) < 2 or n < MIN_VALUES or min(total, n - total) < MIN_SUM:
        return wilson(total, n)
    # A resample is given by its counts of the distinct values; the last row is the sample itself.
    drawn = np.random.default_rng(0).multinomial(n, counts / n, size=RESAMPLES)
    drawn = np.concatenate((drawn, counts[None]))
    means = drawn @ distinct / n
    spread = np.maximum(drawn @ distinct**2 / n - means**2, 0)
    defined = (spread > 1e-12) & (means > 0) & (means < 1)
    means, spread = means[defined], spread[defined]
    odds = np.log(means / (1 - means))
    errors = np.sqrt(spread / n) / (means * (1 - means))
    below, above = np.quantile((odds[:-1] - odds[-1]) / errors[:-1], (0.025, 0.975))
    low, high = 1 / (1 + np.exp(-(odds[-1] - np.array((above, below)) * errors[-1])))
    return float(low), float(high)


def paired_mean(first: Sequence[float], second: Sequence[float]) -> tuple[float, Interval, float]:
    """The mean of *second* less that of *first*, paired, with its normal 95% interval and two-sided p-value.

    For puzzles with several completions, which have a share correct each.
    """
    n = len(first)
    changes = [after - before for before, after in zip(first, second, strict=True)]
    mean = sum(changes) / n
    error = sqrt(sum((change - mean) ** 2 for change in changes) / max(1, n - 1) / n)
    p = erfc(abs(mean) / error / sqrt(2)) if error else float(mean == 0)
    return mean, (max(-1.0, mean - Z * error), min(1.0, mean + Z * error)), p


def paired_difference(both: int, first_only: int, second_only: int, neither: int) -> tuple[float, Interval]:
    """The second proportion less the first, paired, with its 95% interval.

    Newcombe (1998), "Improved confidence intervals for the difference between binomial proportions based
    on paired data", method 10: from the Wilson limits of both and their correlation.
    """
    n = both + first_only + second_only + neither
    if n == 0:
        return 0.0, (-1.0, 1.0)
    first, second = (both + first_only) / n, (both + second_only) / n
    low1, high1 = wilson(both + first_only, n)
    low2, high2 = wilson(both + second_only, n)
    margins = (both + first_only) * (second_only + neither) * (both + second_only) * (first_only + neither)
    product: float = both * neither - first_only * second_only
    if product > 0:  # the method's continuity correction
        product = max(product - n / 2, 0)
    correlation = product / sqrt(margins) if margins else 0.0
    below2, above1 = second - low2, high1 - first
    above2, below1 = high2 - second, first - low1
    down = sqrt(max(0.0, below2**2 - 2 * correlation * below2 * above1 + above1**2))
    up = sqrt(max(0.0, above2**2 - 2 * correlation * above2 * below1 + below1**2))
    difference = second - first
    return difference, (max(-1.0, difference - down), min(1.0, difference + up))


def mcnemar(first_only: int, second_only: int) -> float:
    """The two-sided p-value of McNemar's exact test, from the puzzles that only one of two models solved."""
    from scipy.stats import binomtest  # takes half a second, and only comparisons need it

    n = first_only + second_only
    return float(binomtest(first_only, n).pvalue) if n else 1.0
