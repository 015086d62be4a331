"""The solver against an independent brute force: equal counts on 2,000 puzzles under every rule, and speed.

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
    six = [Puzzle(tuple(rng.sample(range(1, 100), 6)), rng.randint(100, 999)) for _ in range(20)]
    started = time.process_time()
    for posed in six:
        solver.solve(posed)
    six_ms = (time.process_time() - started) / len(six) * 1e3
    bench.save(
        "solving",
        {
            "puzzles": count,
            "counts_checked": checked.total(),
            "counts_unlike_brute_force": len(differ),
            "examples": differ[:5],
            "milliseconds_a_puzzle": {
                who: {
                    f"{size} numbers": round(1e3 * seconds / checked[size], 3)
                    for size, seconds in times.items()
                }
                for who, times in spent.items()
            },
            "milliseconds_for_six_numbers": round(six_ms, 2),
        },
    )


if __name__ == "__main__":
    main()
