"""The solver against an independent brute force: equal counts on 2,000 puzzles under every rule,
and speed.

python -m benchmarks.solving [--puzzles 2000]
"""

import argparse
import random
import time
from collections import Counter

from benchmarks import bench
from countdown_rl.tasks.countdown import solver
from countdown_rl.tasks.countdown.rules import RULES, Puzzle
from tests.support import oracle


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--puzzles", type=int, default=2_000)
    count = parser.parse_args().puzzles
    rng = random.Random(0)
    solver.solve(Puzzle((1, 2, 3, 4, 5, 6), 7))  # compile
    differ, checked = [], Counter()
    spent = {"ours": Counter(), "brute_force": Counter()}
    for i in range(count):
        size = 2 + i % 4
        high = rng.choice([6, 25, 99])
        numbers = tuple(rng.randint(1, high) for _ in range(size))
        target = rng.randint(1, 100)
        for rule in RULES.values():
            started = time.process_time()
            found = solver.solve(Puzzle(numbers, target, rule)).solutions
            middle = time.process_time()
            expected = oracle.count(numbers, target, every=rule.every, whole=rule.whole)
            spent["ours"][size] += middle - started
            spent["brute_force"][size] += time.process_time() - middle
            checked[size] += 1
            if found != expected:
                differ.append([numbers, target, rule.name, found, expected])
    result = {
        "puzzles": count,
        "counts_checked": checked.total(),
        "counts_unlike_brute_force": len(differ),
        "examples": differ[:5],
        "milliseconds_a_puzzle": {
            name: {f"{size} numbers": 1e3 * times[size] / checked[size] for size in checked}
            for name, times in spent.items()
        },
    }
    bench.save("solving", result)


if __name__ == "__main__":
    main()
