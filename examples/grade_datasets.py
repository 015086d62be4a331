"""Grade a file of completions with N processes of Hugging Face ``datasets``.

    python examples/grade_datasets.py completions.jsonl 8

Each line has the fields of a row (``nums`` and ``target``, and others such as ``rule``) and ``completion``.
"""

import sys
from typing import Any

from datasets import load_dataset

import countdown_rl


def graded(record: dict[str, Any]) -> dict[str, bool]:
    row = {
        name: value for name, value in record.items() if value is not None
    }  # None: a field of other lines
    return {"correct": countdown_rl.grade(row.pop("completion"), **row).correct}


def accuracy(path: str, processes: int) -> float:
    """The share of correct completions in the file at *path*."""
    records = load_dataset("json", data_files=path, split="train").map(graded, num_proc=processes)
    return sum(records["correct"]) / len(records)


if __name__ == "__main__":
    print(f"{accuracy(sys.argv[1], int(sys.argv[2])):.2%}")
