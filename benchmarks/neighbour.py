"""Commands beside a busy process that takes one core: wall-clock time with the default threads, and held to one.

    python -m benchmarks.neighbour [--rounds 3] [--commands eval train gen-data]

The neighbour is a loop of Python pinned to one core, started here. ``spinning`` lets threads spin where they wait,
which is OpenMP's own default; the others wait as the command sets it. Writes ``results/neighbour.json``. The bar:
beside the neighbour at most 1.25 times the time of one thread, and alone at most 1.03 times that of spinning.
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
from pathlib import Path

from benchmarks import bench

TRAINING = "--max-steps 2 --prompts 16 --num-generations 8 --micro-batch 32 --max-completion-length 256 --precision nf4"
VARIANTS = {
    "default": {},
    "one thread": {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"},
    "spinning": {"OMP_WAIT_POLICY": "", "GOMP_SPINCOUNT": "300000"},  # what libgomp takes where nothing is set
}


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
    spent = after.children_user + after.children_system - before.children_user - before.children_system
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
            "eval": ["eval", *model, "--limit", "20"],
            "train": ["train", *model, *TRAINING.split(), "--log", f"{directory}/log.csv"],
            "gen-data": ["gen-data", "--n", "50000"],
        }
        for name in args.commands:
            for _ in range(args.rounds):  # all take turns, as the machine may be shared
                for busy in (False, True):
                    for variant, environment in VARIANTS.items():
                        with neighbour(busy):
                            times = measure(commands[name], Path(directory) / "out", environment)
                        case = result.setdefault(name, {}).setdefault("busy" if busy else "idle", {})
                        best = case.setdefault(variant, [float("inf"), float("inf")])
                        case[variant] = [round(min(pair), 2) for pair in zip(best, times, strict=True)]
    bench.save("neighbour", {"best_seconds_by_clock_and_processor": result})


if __name__ == "__main__":
    main()
