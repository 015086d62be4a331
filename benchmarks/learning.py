"""Learning: accuracy on held-out puzzles after training, greedy and sampled at the temperature of
training, over several seeds. Each run is the ``train`` command with the options of
``stages/train.yaml`` and its own seed.

    python -m benchmarks.learning [--data DIR] [--seeds 42 43 44] [--set learning-rate=0.0004 ...]

Writes ``results/learning.json`` and, for every seed, the log ``results/learning-<seed>.csv``;
``--name`` replaces "learning", for trials with other options. ``--out`` keeps the adapters and
evaluations in a directory, from where an interrupted run continues.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

from benchmarks import bench
from countdown_rl.evaluation import compare, results

STAGES = Path(__file__).parent.parent / "stages"


def flags(stage, changes=()):
    """The flags of *stage* from its options file, overridden by *changes* ("key=value")."""
    options = yaml.safe_load((STAGES / f"{stage}.yaml").read_text())[stage]
    options |= {
        key: yaml.safe_load(value) for key, value in (change.split("=", 1) for change in changes)
    }
    words = []
    for key, value in options.items():
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, bool):
                words.append(f"--{key}" if item else f"--no-{key}")
            else:
                words += [f"--{key}", str(item)]
    return words


def command(*words):
    """Run a command of countdown-rl."""
    subprocess.run([sys.executable, "-m", "countdown_rl", *map(str, words)], check=True)


def score(model, puzzles, out, *, samples=2):
    """The evaluations of *model* by way of decoding, as in ``dvc.yaml``."""
    temperature = yaml.safe_load((STAGES / "train.yaml").read_text())["train"]["temperature"]
    ways = {
        "greedy": ["--temperature", 0],
        "sampled": ["--temperature", temperature, "--samples", samples],
    }
    for name, words in ways.items():
        where = ["--data", puzzles, "--out", out / name]
        command("eval", "--model", model, *where, *words, *flags("eval"))
    return {name: results.read(out / name) for name in ways}


def summary(result):
    metrics = result.metrics.to_json()
    return {key: metrics[key] for key in ("accuracy", "n", "interval", "truncated")} | {
        "groups": {
            group: {value: part["accuracy"] for value, part in parts.items()}
            for group, parts in metrics["groups"].items()
        },
    }


def gains(base, trained):
    """The summary of each evaluation of *trained*, and its paired difference to that of *base*."""
    return {
        name: {"gain": compare.difference(base[name], result)} | summary(result)
        for name, result in trained.items()
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="countdown-tiny")
    parser.add_argument("--data", type=Path, default=Path("artifacts/data"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[42, 43, 44])
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--name", default="learning")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    runs = []
    with tempfile.TemporaryDirectory() as scratch:
        out = args.out or Path(scratch)
        base = score(args.model, args.data / "test.jsonl", out / "base")
        for seed in args.seeds:
            place = out / str(seed)
            options = flags("train", [*args.set, f"seed={seed}"])
            log = place / "log.csv"
            paths = ["--out", place / "adapter", "--log", log]
            command("train", "--model", args.model, "--data", args.data, *paths, *options)
            trained = score(place / "adapter", args.data / "test.jsonl", place / "eval")
            bench.RESULTS.mkdir(exist_ok=True)
            shutil.copy(log, bench.RESULTS / f"{args.name}-{seed}.csv")
            runs.append(
                {"seed": seed, "minutes": round(bench.minutes(log.read_text()), 2)}
                | gains(base, trained)
            )
            print(json.dumps(runs[-1]), file=sys.stderr)
            bench.save(
                args.name,
                {
                    "model": base["greedy"].metrics.to_json()["model"],
                    "data": base["greedy"].metrics.data,
                    "decoding": {
                        name: result.metrics.to_json()["decoding"] for name, result in base.items()
                    },
                    "options": flags("train", args.set),
                    "base": {name: summary(result) for name, result in base.items()},
                    "runs": runs,
                },
            )


if __name__ == "__main__":
    main()
