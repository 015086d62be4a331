"""Coverage of the 95% intervals of clustered shares, by simulation.

    python -m benchmarks.intervals

Each of n puzzles has a success rate from a beta distribution, and the same number of completions. The coverage is the
share of simulated evaluations whose interval holds the true mean. Writes ``results/intervals.json``.
"""

from statistics import fmean

import numpy as np

from benchmarks import bench
from countdown_rl.evaluation.statistics import mean_interval, wilson

DRAWS = 4_000
#: Uneven puzzles (most always fail, or never), even ones, and those between.
BETAS = ((0.05, 0.5), (0.02, 0.2), (0.1, 0.1), (0.5, 0.5), (1, 1), (0.2, 2), (5, 5), (2, 18), (50, 50))
SIZES, TRIALS = (10, 20, 30, 100, 400), (1, 4, 16)


def korn_graubard(values, trials):
    """The interval of earlier versions: the same sample size without degrees of freedom."""
    n, mean = len(values), fmean(values)
    spread, variance = fmean((value - mean) ** 2 for value in values), mean * (1 - mean)
    effective = n if spread >= variance else n * min(trials, variance / spread if spread else trials)
    return wilson(mean * effective, effective)


def coverage(interval, n, trials, beta, draws=DRAWS):
    """The share of *draws* whose interval holds the true mean, and its mean width."""
    rng, true = np.random.default_rng(0), beta[0] / sum(beta)
    shares = (rng.binomial(trials, rng.beta(*beta, size=(draws, n))) / trials).tolist()
    ends = [interval(values, trials) for values in shares]
    return fmean(low <= true <= high for low, high in ends), fmean(high - low for low, high in ends)


def main():
    rows = []
    for n in SIZES:
        for trials in TRIALS:
            for beta in BETAS:
                draws = DRAWS if n <= 100 else DRAWS // 4
                now, before = (coverage(way, n, trials, beta, draws) for way in (mean_interval, korn_graubard))
                row = {"puzzles": n, "completions": trials, "beta": beta, "draws": draws}
                row |= {"coverage": now[0], "width": now[1], "coverage_before": before[0], "width_before": before[1]}
                rows.append({key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()})
    several = [row for row in rows if row["completions"] > 1]
    least = {key: min(row[key] for row in several) for key in ("coverage", "coverage_before")}
    bench.save("intervals", {"least": least, "settings": rows})


if __name__ == "__main__":
    main()
