"""95% intervals and paired tests of accuracies.

SciPy lacks Wilson's interval for a fractional sample size, and Newcombe's.
"""

from collections import Counter
from collections.abc import Sequence
from math import erfc, sqrt

#: The 97.5% point of the normal distribution.
Z = 1.959963984540054
#: Puzzles below which a normal approximation is poor, and up to which a randomization is exact.
FEW, EXACT = 30, 12

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
    """The 95% interval of the mean of *values* between 0 and 1.

    Wilson's interval at the effective sample size, as Korn and Graubard (1998) use it for clustered
    data: p (1 - p) over the variance of the mean, at least the number of values and at most that of
    trials.

    Args:
        values: shares of successes.
        trials: of each value.
    """
    n = len(values)
    if n == 0:
        return wilson(0, 0)
    mean = sum(values) / n
    spread = sum((value - mean) ** 2 for value in values) / n
    variance = mean * (1 - mean)  # of one trial per value
    effective: float = n
    if spread < variance:
        effective = n * min(trials, variance / spread if spread else trials)
    return wilson(mean * effective, effective)


def paired_mean(first: Sequence[float], second: Sequence[float]) -> tuple[float, Interval, float]:
    """The mean of *second* less that of *first*, with its 95% interval and two-sided p-value.

    For puzzles with a share correct each: the normal interval and test. If few differ, the interval
    of Agresti and Min (2005), "Simple improved confidence intervals for comparing matched
    proportions", which add half a puzzle to each of the four outcomes. Up to :data:`EXACT` changed
    puzzles, the test is Fisher's exact randomization of their signs; no p-value is below the
    smallest of that test.
    """
    changes = [round(after - before, 9) for before, after in zip(first, second, strict=True)]
    n = len(changes)
    mean = sum(changes) / n
    changed = [change for change in changes if change]
    if n - max(Counter(changes).values()) < FEW:  # few puzzles changed unlike the others
        center = sum(changes) / (n + 2)
        square = (sum(change**2 for change in changes) + 1) / (n + 2)
        error = sqrt((square - center**2) / (n + 2))
    else:
        center = mean
        error = sqrt(sum((change - mean) ** 2 for change in changes) / (n - 1) / n)
    if len(changed) <= EXACT:
        sums = [0.0]
        for change in changed:
            sums = [total + signed for total in sums for signed in (change, -change)]
        extreme = abs(sum(changed)) - 1e-9  # rounding
        p = sum(abs(total) >= extreme for total in sums) / len(sums)
    else:
        p = max(erfc(abs(center) / error / sqrt(2)), 2.0 ** (1 - len(changed)))
    low = max(-1.0, min(mean, center - Z * error))
    high = min(1.0, max(mean, center + Z * error))
    return mean, (low, high), p


def paired_difference(
    both: int, first_only: int, second_only: int, neither: int
) -> tuple[float, Interval]:
    """The second proportion less the first, paired, with its 95% interval.

    Newcombe (1998), "Improved confidence intervals for the difference between binomial proportions
    based on paired data", method 10: from the Wilson limits of both and their correlation.
    """
    n = both + first_only + second_only + neither
    ones = both + first_only
    twos = both + second_only
    first = ones / n
    second = twos / n
    low1, high1 = wilson(ones, n)
    low2, high2 = wilson(twos, n)
    margins = ones * (n - ones) * twos * (n - twos)
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
    """The two-sided p-value of McNemar's exact test, from the puzzles that only one model solved."""
    from scipy.stats import binomtest  # imports in half a second

    n = first_only + second_only
    return float(binomtest(first_only, n).pvalue) if n else 1.0
