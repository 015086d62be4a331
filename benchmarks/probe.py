"""Verdicts of ``train --probe`` against what 30 steps of GRPO then do, on starts from undertrained to trained.

    python -m benchmarks.probe [--steps 50 100 150 200 300] [--seed 1]

A start is the shipped model made by its recipe in fewer and smaller steps, on 3 numbers. Every start is probed, trained
and scored with the same options on the same validation puzzles, sampled at the temperature of training. Each is added
to ``results/probe.json``, and those that are in it are not repeated.

A verdict agrees by a rule that was fixed before anything was measured (:func:`agrees`).
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from benchmarks import bench
from benchmarks.learning import command, gains, summary
from countdown_rl.evaluation import results

DATA = ["--n", 40_000, "--valid", 500, "--test", 10, "--size", 3]
PRETRAIN = ["--batch-tokens", 2_048]
#: All else is as by default: 8 puzzles a step, 16 completions each, a learning rate of 2e-4.
TRAIN = [
    "--max-steps",
    30,
    "--max-completion-length",
    128,
    "--precision",
    "auto",
    "--scale-rewards",
    "group",
]
EVAL = ["--temperature", 1, "--samples", 2, "--max-new-tokens", 128]
GROUPS = 64


def agrees(verdict, gain):
    """Return True if the *gain* is as the *verdict* says.

    "ready": above zero by its 95% interval. "no signal", hardly learns: below 3 points, or not above zero. "thin",
    learns slowly: below 10 points.
    """
    above_zero = gain["interval"][0] > 0
    if verdict == "ready":
        return above_zero
    return (
        gain["difference"] < 0.1
        if verdict == "thin"
        else gain["difference"] < 0.03 or not above_zero
    )


def measure(place, data, steps, seed):
    """The figures of the start of so many *steps*, made in the directory *place*."""
    model, run = place / "model", ["--data", data, *TRAIN, "--seed", seed]
    if not model.exists():
        words = ["--data", data, "--out", model, "--max-steps", steps, "--seed", seed]
        command(*words, *PRETRAIN, program="stages.recipes.tiny")
    words = ["train", "--model", model, *run, "--probe", GROUPS, "--json"]
    probe = json.loads(
        subprocess.check_output([sys.executable, "-m", "countdown_rl", *map(str, words)])
    )
    command("train", "--model", model, *run, "--out", place / "adapter")
    for name in ("model", "adapter"):
        command(
            "eval",
            "--model",
            place / name,
            "--data",
            data / "valid.jsonl",
            *EVAL,
            "--out",
            place / "eval" / name,
        )
    start, trained = (results.read(place / "eval" / name) for name in ("model", "adapter"))
    scored = gains({"": start}, {"": trained})[""]
    return {
        "seed": seed,
        "steps": steps,
        "probe": probe["total"] | {key: probe[key] for key in ("verdict", "advice")},
        "start": summary(start),
        "trained": scored,
        "agrees": agrees(probe["verdict"], scored["gain"]),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, nargs="+", default=[50, 100, 150, 200, 300])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--out", type=Path, default=Path("artifacts/probe"), help="directory of models and runs"
    )
    args = parser.parse_args()
    scratch = args.out / str(args.seed)
    data = scratch / "data"
    if not data.exists():
        command("gen-data", *DATA, "--seed", args.seed, "--out", data)
    path = bench.RESULTS / "probe.json"
    starts = json.loads(path.read_text())["starts"] if path.exists() else []
    for steps in args.steps:
        if not any((start["seed"], start["steps"]) == (args.seed, steps) for start in starts):
            starts.append(measure(scratch / str(steps), data, steps, args.seed))
            bench.save("probe", {"options": [*map(str, TRAIN)], "starts": starts})


if __name__ == "__main__":
    main()
