"""Commands beside a busy process that takes one core: wall-clock time with the default threads, and held to one.

    python -m benchmarks.neighbour [--rounds 3] [--commands eval train gen-data]

The neighbour is a loop of Python pinned to one core, started here. ``spinning`` lets threads spin where they wait,
which is OpenMP's own default; the others wait as the command sets it. Takes under five minutes on two cores and writes
medians to ``results/neighbour.json``. The bar: beside the neighbour at most 1.25 times the time of one thread, and
alone at most 1.03 times that of spinning.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from statistics import median

from benchmarks import bench

TRAINING = "--max-steps 1 --prompts 4 --num-generations 8 --micro-batch 32 --max-completion-length 192 --precision nf4"
VARIANTS = {
    "default": {},
    "one thread": {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"},
    "spinning": {
        "OMP_WAIT_POLICY": "",
        "GOMP_SPINCOUNT": "300000",
    },  # what libgomp takes where nothing is set
}
#: What is timed: with or without the neighbour, and the variant.
CASES = [
    ("idle", "default"),
    ("idle", "spinning"),
    ("busy", "default"),
    ("busy", "one thread"),
    ("busy", "spinning"),
]


@contextmanager
def neighbour(busy: bool) -> Iterator[None]:
    """Keep the last core of this process busy, or nothing."""
    if not busy:
        yield
        return
    core = max(os.sched_getaffinity(0))
    code = f"import os; os.sched_setaffinity(0, [{core}])\nwhile True: pass"
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def measure(words: list[str], out: Path, environment: dict[str, str]) -> tuple[float, float]:
    """Seconds by the clock and of processor time of one command, which writes *out*."""
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "countdown_rl", *words, "--out", str(out)]
    started, before = time.perf_counter(), os.times()
    subprocess.run(command, env=os.environ | environment, check=True, capture_output=True)
    after = os.times()
    spent = (
        after.children_user + after.children_system - before.children_user - before.children_system
    )
    return time.perf_counter() - started, spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--commands", nargs="+", default=["eval", "train", "gen-data"])
    args = parser.parse_args()
    result: dict[str, dict[str, dict[str, list[float]]]] = {}
    with tempfile.TemporaryDirectory() as directory:
        data = Path(directory) / "data"
        measure(["gen-data", "--n", "600"], data, {})
        model = ["--model", "countdown-tiny", "--data", str(data)]
        commands = {
            "eval": ["eval", *model, "--limit", "10"],
            "train": ["train", *model, *TRAINING.split(), "--log", f"{directory}/log.csv"],
            "gen-data": ["gen-data", "--n", "20000"],
        }
        times: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
        for _ in range(args.rounds):  # all take turns, as the machine may be shared
            for name, (load, variant) in product(args.commands, CASES):
                with neighbour(load == "busy"):
                    timed = measure(commands[name], Path(directory) / "out", VARIANTS[variant])
                times.setdefault((name, load, variant), []).append(timed)
    for (name, load, variant), rounds in times.items():
        medians = [round(median(values), 2) for values in zip(*rounds, strict=True)]
        result.setdefault(name, {}).setdefault(load, {})[variant] = medians
    bench.save("neighbour", {"median_seconds_by_clock_and_processor": result})


if __name__ == "__main__":
    main()
