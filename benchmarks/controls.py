"""GRPO and its controls, measured: what ``stages/recipes/controls.sh`` left.

    python -m benchmarks.controls arms OUT [--name arms]
    python -m benchmarks.controls pairs positive grpo-whole [--name arms]

``arms`` writes ``results/NAME.json`` (accuracy by arm and seed, and the mean differences over the
seeds) and one bit for each completion to ``results/NAME-bits.json``, from which ``pairs`` computes
the paired intervals of each seed. Seeds that OUT does not have stay in both files.
"""

import argparse
import base64
import json
from collections.abc import Mapping
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from benchmarks import bench
from countdown_rl.evaluation import results, statistics

#: The 97.5% quantile of Student's t by degrees of freedom.
QUANTILES = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}
#: Differences over the seeds that the pages state: the first arm less the second.
DIFFERENCES = (
    ("grpo", "start"),
    ("grpo", "rft-5"),
    ("grpo", "rft-25"),
    ("grpo", "rft-25-curriculum"),
    ("grpo", "grpo-whole"),
    ("grpo", "positive"),
    ("positive", "rft-25"),
    ("rft-25-curriculum", "rft-25"),
    ("positive", "positive-whole"),
    ("grpo-whole", "rft-25"),
    ("positive-whole", "grpo-whole"),
)
MEASURES = ("accuracy", "4 numbers", "pass@4")

Runs = Mapping[str, Mapping[str, float]]


def difference(first: Runs, second: Runs, measure: str) -> dict[str, Any]:
    """Return the mean over the common seeds of *first* less *second*, with a 95% t interval if
    there are several.
    """
    seeds = sorted(first.keys() & second.keys())
    by_seed = [first[seed][measure] - second[seed][measure] for seed in seeds]
    interval = None
    if len(by_seed) > 1:
        half = QUANTILES[len(by_seed) - 1] * stdev(by_seed) / sqrt(len(by_seed))
        interval = [fmean(by_seed) - half, fmean(by_seed) + half]
    return {"seeds": seeds, "mean": fmean(by_seed), "interval": interval}


def differences(arms: Mapping[str, Runs]) -> dict[str, Any]:
    """Return the differences of :data:`DIFFERENCES` between *arms* that share a seed, by name and
    measure.
    """
    found = {}
    for first, second in DIFFERENCES:
        if arms.get(first, {}).keys() & arms.get(second, {}).keys():
            found[f"{first} - {second}"] = {
                measure: difference(arms[first], arms[second], measure) for measure in MEASURES
            }
    return found


def pack(correct: np.ndarray) -> str:
    """Return the bits of *correct* (puzzles, samples) as text."""
    return base64.b64encode(np.packbits(correct).tobytes()).decode()


def unpack(text: str, n: int, samples: int) -> np.ndarray:
    """Return the array (n, samples) of :func:`pack`."""
    bits = np.frombuffer(base64.b64decode(text), dtype=np.uint8)
    return np.unpackbits(bits, count=n * samples).reshape(n, samples)


def arms(out: Path, name: str) -> None:
    """Write the two files of *name* from the evaluations in *out*."""
    file, bits_file = (bench.RESULTS / f"{name}{end}.json" for end in ("", "-bits"))
    runs = json.loads(file.read_text())["arms"] if file.exists() else {}
    packed = json.loads(bits_file.read_text())["arms"] if bits_file.exists() else {}

    for place in sorted((out / "eval").glob("*/metrics.json")):
        arm, _, seed = place.parent.name.rpartition("-")
        result = results.read(place.parent)
        metrics = result.metrics
        runs.setdefault(arm, {})[seed] = {
            "accuracy": metrics.accuracy,
            "interval": metrics.interval,
            "pass@4": metrics.pass_at[4].share,
            "4 numbers": metrics.groups["numbers"]["4"].accuracy,
            "tokens": metrics.mean_tokens,
        }
        correct = [[sample.grade.correct for sample in group] for group in result.by_puzzle]
        packed.setdefault(arm, {})[seed] = pack(np.array(correct))

    about = {"n": metrics.n, "samples": metrics.decoding.samples}
    runs = {arm: dict(sorted(of_arm.items())) for arm, of_arm in sorted(runs.items())}
    of_four = metrics.groups["numbers"]["4"].n
    bench.save(
        name, {**about, "4 numbers": of_four, "arms": runs, "differences": differences(runs)}
    )
    bits_file.write_text(json.dumps({**about, "arms": packed}, indent=2) + "\n")


def pairs(first: str, second: str, name: str) -> dict[str, dict[str, list[float]]]:
    """Return the difference of two arms and its 95% interval over puzzles, by seed, at one
    completion and at all.
    """
    stored = json.loads((bench.RESULTS / f"{name}-bits.json").read_text())
    arms = stored["arms"]
    by_seed = {}
    for seed in sorted(arms[first].keys() & arms[second].keys()):
        before, after = (
            unpack(arms[arm][seed], stored["n"], stored["samples"]) for arm in (second, first)
        )
        cells = {}
        for label, share in (("pass@1", np.mean), (f"pass@{stored['samples']}", np.max)):
            change, interval, _ = statistics.paired_mean(
                share(before, axis=1).tolist(), share(after, axis=1).tolist()
            )
            cells[label] = [round(value, 4) for value in (change, *interval)]
        by_seed[seed] = cells
    return by_seed


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("mode", choices=("arms", "pairs"))
    parser.add_argument("words", nargs="+", metavar="OUT or ARM")
    parser.add_argument("--name", default="arms")
    args = parser.parse_args()
    if args.mode == "pairs":
        print(json.dumps(pairs(*args.words, args.name), indent=2))
    else:
        arms(Path(args.words[0]), args.name)


if __name__ == "__main__":
    main()
