"""GRPO against its controls, measured: what ``stages/recipes/controls.sh countdown-tiny artifacts/data OUT`` left.

    python -m benchmarks.arms OUT [--name arms]

Writes ``results/NAME.json``: for each arm and seed the sampled accuracy, that of puzzles of 4 numbers, and pass@4; and
the mean lead of GRPO over each arm with a 95% t interval, the seed as the unit, if there are several seeds; and the
lead by seed, with the interval over pairs of puzzles. Seeds that OUT does not have stay in the file: remove it when
the model or the recipe changes.
"""

import argparse
import json
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev

from benchmarks import bench
from countdown_rl.evaluation import compare, results

#: The 97.5% quantile of Student's t by degrees of freedom.
QUANTILES = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}


def lead(values, others):
    """The mean of the differences in accuracy by seed, and its interval."""
    seeds = sorted(values.keys() & others.keys())
    differences = [values[seed]["accuracy"] - others[seed]["accuracy"] for seed in seeds]
    mean, n = fmean(differences), len(differences)
    around = QUANTILES[n - 1] * stdev(differences) / sqrt(n) if n > 1 else None
    return {"seeds": seeds, "mean": mean, "interval": around and [mean - around, mean + around]}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--name", default="arms")
    args = parser.parse_args()
    path, saved = bench.RESULTS / f"{args.name}.json", {"arms": {}, "lead of GRPO": {}}
    if path.exists():
        saved = json.loads(path.read_text())
    arms, read = saved["arms"], {}
    for place in sorted((args.out / "eval").iterdir()):
        arm, _, seed = place.name.rpartition("-")
        read[arm, seed] = results.read(place)
        metrics = read[arm, seed].metrics
        cells = {
            "accuracy": metrics.accuracy,
            "interval": metrics.interval,
            "pass@4": metrics.pass_at[4].share,
        }
        arms.setdefault(arm, {})[seed] = {
            **cells,
            "4 numbers": metrics.groups["numbers"]["4"].accuracy,
        }
    arms = {arm: dict(sorted(runs.items())) for arm, runs in sorted(arms.items())}
    leads = {arm: lead(arms["grpo"], runs) for arm, runs in arms.items() if arm != "grpo"}
    for arm, over in leads.items():
        over["paired"] = dict(saved["lead of GRPO"].get(arm, {}).get("paired", {}))
        for seed in over["seeds"]:
            if {(arm, seed), ("grpo", seed)} <= read.keys():
                over["paired"][seed] = compare.difference(read[arm, seed], read["grpo", seed])
    bench.save(
        args.name,
        {"n": metrics.n, "samples": metrics.decoding.samples, "arms": arms, "lead of GRPO": leads},
    )


if __name__ == "__main__":
    main()
