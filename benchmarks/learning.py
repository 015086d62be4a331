"""Learning: the pipeline's own training over several seeds, from the warm start to greedy accuracy on the
held-out puzzles. Each run is what ``stages/train.yaml`` says but for its seed, through the command itself.

    python -m benchmarks.learning [--data artifacts/data] [--seeds 42 43 44] [--set learning-rate=0.0004 ...]

Writes ``results/learning.json`` and, for every seed, ``results/learning-<seed>.csv`` with a row for each step
and a picture of it.
``--name`` says otherwise than "learning", for trials with other options.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

from benchmarks import bench
from countdown_rl.evaluation import compare, results
from countdown_rl.runlog import plots

STAGES = Path(__file__).parent.parent / "stages"


def flags(stage, changes=()):
    """The flags of *stage* from its file of options, with *changes* ("key=value") over them."""
    options = yaml.safe_load((STAGES / f"{stage}.yaml").read_text())[stage]
    options |= {key: yaml.safe_load(value) for key, value in (change.split("=", 1) for change in changes)}
    given = []
    for key, value in options.items():
        for one in value if isinstance(value, list) else [value]:
            given += [f"--{'' if one is not False else 'no-'}{key}", *([] if isinstance(one, bool) else [str(one)])]
    return given


def command(*words):
    """Run one command of this tool and return the seconds it took."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "countdown_rl", *map(str, words)], check=True)
    return time.perf_counter() - started


def score(model, data, out):
    command("eval", "--model", model, "--data", data / "test.jsonl", "--out", out, *flags("eval"))
    return results.read(out)


def shown(result):
    metrics = result.metrics
    return {key: metrics[key] for key in ("accuracy", "n", "interval", "truncated")} | {
        "by_size": {size: part["accuracy"] for size, part in metrics["by_size"].items()},
        "by_needs": {needs: part["accuracy"] for needs, part in metrics["by_needs"].items()},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="countdown-tiny")
    parser.add_argument("--data", type=Path, default=Path("artifacts/data"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[42, 43, 44])
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--name", default="learning")
    given = parser.parse_args()
    runs = []
    with tempfile.TemporaryDirectory() as scratch:
        base = score(given.model, given.data, Path(scratch) / "base")
        for seed in given.seeds:
            place = Path(scratch) / str(seed)
            options = flags("train", [*given.set, f"seed={seed}"])
            log = place / "log.csv"
            words = ["--model", given.model, "--data", given.data, "--out", place / "adapter", "--log", log]
            seconds = command("train", *words, *options, "--checkpoints", place / "checkpoints")
            trained = score(place / "adapter", given.data, place / "eval")
            bench.RESULTS.mkdir(exist_ok=True)
            kept = bench.RESULTS / f"{given.name}-{seed}.csv"
            shutil.copy(log, kept)
            plots.draw(kept, kept.with_suffix(".png"))
            gain = compare.difference(base, trained)
            runs.append({"seed": seed, "minutes": round(seconds / 60, 2), "gain": gain} | shown(trained))
            print(json.dumps(runs[-1]), file=sys.stderr)
    bench.save(
        given.name,
        {
            "model": base.metrics["model"],
            "data": base.metrics["data"],
            "decoding": base.metrics["decoding"],
            "options": flags("train", given.set),
            "base": shown(base),
            "runs": runs,
        },
    )


if __name__ == "__main__":
    main()
