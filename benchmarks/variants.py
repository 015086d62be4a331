"""Comparison of training options: the pipeline's with one of them changed, in short runs of equally many completions.

    python -m benchmarks.variants [NAME ...] [--steps 40] [--seeds 42 43 44]

Scored on the validation puzzles, greedy and sampled once, so that the test puzzles have no part in the choice. Each
run is added to ``results/variants.json``. Runs that are in it are not repeated: remove it when the model or the
pipeline's options change.
"""

import argparse
import fcntl
import json
import tempfile
from pathlib import Path

from benchmarks import bench
from benchmarks.learning import command, flags, gains, score, summary

PLAIN = ["discount=1", "scale-rewards=group", "trl=[]", "curriculum=false"]
CONSTANT = ["lr-scheduler-type=constant", "eval-every=0"]
#: Changes to the options of ``stages/train.yaml``.
VARIANTS = {
    "pipeline": [],
    "reward per completion": ["discount=1"],
    "all tokens in the loss": ["trl=[]"],
    "no curriculum": ["curriculum=false"],
    "32 groups of 4": ["num-generations=4", "prompts=32"],
    "64 groups of 2": ["num-generations=2", "prompts=64"],
    "leave-one-out baseline (RLOO)": ["baseline=leave-one-out"],
    "temperature 0.8": ["temperature=0.8"],
    "all weights": ["tune=all", "precision=auto", "learning-rate=0.0001"],
    "replay of rare successes": [],
    "plain GRPO": PLAIN,
    "plain GRPO, divided by the deviation of the batch": [*PLAIN, "scale-rewards=batch"],
    "plain GRPO, rewards of TinyZero": [*PLAIN, "beta=0.001", "reward=[correct=1, format=0.1]"],
    # Updates per round, of equally many completions.
    "constant rate": CONSTANT,
    "constant rate, 2 updates per round": [*CONSTANT, "num-iterations=2", "max-steps=80"],
    "constant rate, 2 updates per round, half the rate": [
        *CONSTANT,
        "num-iterations=2",
        "max-steps=80",
        "learning-rate=0.0004",
    ],
    "constant rate, 4 updates per round": [*CONSTANT, "num-iterations=4", "max-steps=160"],
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *VARIANTS], metavar="NAME")
    parser.add_argument("--data", type=Path, default=Path("artifacts/data"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[42, 43, 44])
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()
    model, puzzles = "countdown-tiny", args.data / "valid.jsonl"
    with tempfile.TemporaryDirectory() as scratch:
        base = score(model, puzzles, Path(scratch) / "base", samples=1)
        for seed in args.seeds:
            for name in args.names or VARIANTS:
                changes = [f"max-steps={args.steps}", *VARIANTS[name]]
                if any(
                    (run["variant"], run["options"], run["seed"]) == (name, changes, seed)
                    for run in saved()
                ):
                    continue
                place = Path(scratch) / f"{name}-{seed}"
                words = [
                    "--model",
                    model,
                    "--data",
                    args.data,
                    "--out",
                    place / "adapter",
                    "--log",
                    place / "log.csv",
                ]
                words += [
                    *flags("train", [*changes, f"seed={seed}"]),
                    "--checkpoints",
                    place / "checkpoints",
                ]
                program = "benchmarks.replay" if name.startswith("replay") else "countdown_rl"
                seconds = command("train", *words, program=program)
                trained = score(place / "adapter", puzzles, place / "eval", samples=1)
                run = {
                    "variant": name,
                    "seed": seed,
                    "options": changes,
                    "minutes": round(seconds / 60, 2),
                }
                run |= gains(base, trained)
                with open(
                    bench.RESULTS / "variants.json", "a"
                ) as file:  # another process may add a run
                    fcntl.flock(file, fcntl.LOCK_EX)
                    bench.save(
                        "variants",
                        {
                            "base": {way: summary(base[way]) for way in base},
                            "runs": [*saved(), run],
                        },
                    )


def saved():
    path = bench.RESULTS / "variants.json"
    text = path.read_text() if path.exists() else ""
    return json.loads(text)["runs"] if text else []


if __name__ == "__main__":
    main()
