"""95% intervals and paired tests of accuracies.

SciPy has no interval of Wilson for a fractional sample size and nothing of Newcombe; McNemar's test is its own.
"""

from collections.abc import Sequence
from math import erfc, sqrt

#: The 97.5% point of the normal distribution.
Z = 1.959963984540054

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
