"""Generation: rows a second against generate-and-depth-first-search, and against reasoning-gym's
countdown.

    python -m benchmarks.generation [--largest 1000000]

reasoning-gym is measured where it is installed (``pip install reasoning-gym``).
"""

import argparse
import random
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

from benchmarks import bench
from countdown_rl.data import build
from countdown_rl.data.config import DataOptions


def depth_first(values, target):
    """A solution as text, found by combining any two numbers in turn; whole results only."""
    if len(values) == 1:
        return values[0][1] if values[0][0] == target else None
    for i, (x, left) in enumerate(values):
        for j, (y, right) in enumerate(values):
            if i == j:
                continue
            rest = [values[k] for k in range(len(values)) if k not in (i, j)]
            steps = [(x - y, f"({left}-{right})")]
            if i < j:
                steps += [(x + y, f"({left}+{right})"), (x * y, f"({left}*{right})")]
            if y and x % y == 0:
                steps.append((x // y, f"({left}/{right})"))
            for step in steps:
                found = depth_first([*rest, step], target)
                if found is not None:
                    return found
    return None


def by_search(n, rng):
    """Rows by drawing at random and searching depth first; unsolvable and repeated ones are left
    out.
    """
    rows, seen = [], set()
    while len(rows) < n:
        nums = [rng.randint(1, 99) for _ in range(rng.choice([3, 4]))]
        target = rng.randint(10, 100)
        key = (*sorted(nums), target)
        if key in seen:
            continue
        solution = depth_first([(number, str(number)) for number in nums], target)
        if solution is not None:
            seen.add(key)
            rows.append({"nums": nums, "target": target, "solution": solution})
    return rows


def ours(n):
    """Rows and seconds of processor time of ``gen-data`` with its default options, files and
    all.
    """
    with tempfile.TemporaryDirectory() as folder:
        started = time.process_time()
        build.make(DataOptions(n=n), Path(folder) / "data")
        return n, time.process_time() - started


def by_reasoning_gym(n):
    """Rows of reasoning-gym over the same numbers and targets."""
    import reasoning_gym

    limits = {"min_numbers": 3, "max_numbers": 4, "min_value": 1, "max_value": 99}
    targets = {"min_target": 10, "max_target": 100}
    data = reasoning_gym.create_dataset("countdown", size=n, seed=0, **limits, **targets)
    return [data[index] for index in range(n)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--largest", type=int, default=1_000_000)
    largest = parser.parse_args().largest
    rng = random.Random(0)
    works = {
        "ours": lambda: ours(50_000)[0],
        "depth_first_search": lambda: len(by_search(60, rng)),
    }
    if find_spec("reasoning_gym"):
        works["reasoning_gym"] = lambda: len(by_reasoning_gym(60))
    rates = bench.rates(works, rounds=3)
    result = {
        "rows_a_second": {name: round(rate, 1) for name, rate in rates.items()},
        "microseconds_a_row_by_n": {
            f"{n:,}": round(1e6 * ours(n)[1] / n, 2)
            for n in (10_000, 100_000, 1_000_000)
            if n <= largest
        },
    }
    bench.save("generation", result)


if __name__ == "__main__":
    main()
