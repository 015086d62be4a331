"""Grade files of completions with N tasks of Ray Data, on one machine or on a cluster.

    python examples/grade_ray.py completions.jsonl 8

Each line has the fields of a row (``nums`` and ``target``, and others such as ``rule``) and ``completion``.
"""

import sys
from typing import Any

import ray

import countdown_rl


def graded(record: dict[str, Any]) -> dict[str, float]:
    row = {
        name: value for name, value in record.items() if value is not None
    }  # None: a field of other lines
    return {"correct": float(countdown_rl.grade(row.pop("completion"), **row).correct)}


def accuracy(path: str, workers: int) -> float:
    """The share of correct completions in the file or the directory at *path*."""
    strategy = ray.data.TaskPoolStrategy(size=workers)
    return float(ray.data.read_json(path).map(graded, compute=strategy).mean("correct"))


if __name__ == "__main__":
    ray.init(num_cpus=int(sys.argv[2]))
    print(f"{accuracy(sys.argv[1], int(sys.argv[2])):.2%}")
