"""Faults in the searches of evaluations, what each costs, and the lines that a search needs, beside its teacher's.

    python -m benchmarks.execution NAME=EVAL [NAME=EVAL ...]

EVAL is a directory that ``countdown-rl eval`` wrote; the figures are those of ``countdown-rl diagnose``. Writes
``results/execution.json``.
"""

import argparse
from pathlib import Path

from benchmarks import bench
from countdown_rl.evaluation import diagnose, results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("evals", nargs="+", metavar="NAME=EVAL")
    args = parser.parse_args()
    measured = {}
    for name, path in (pair.split("=", 1) for pair in args.evals):
        result = results.read(Path(path))
        about = {key: result.metrics[key] for key in ("decoding", "accuracy", "interval")}
        measured[name] = about | diagnose.diagnose(result)
    bench.save("execution", measured)


if __name__ == "__main__":
    main()
