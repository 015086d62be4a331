"""Completions with the grades of ``countdown-rl grade``, against which other evaluators are compared."""

import random
from pathlib import Path
from typing import Any

from benchmarks.grading import hostile, realistic
from countdown_rl.cli.grade import grade
from countdown_rl.tasks import jsonl

PUZZLES = 100
PROBLEM = {"task": "gsm8k", "question": "6 * 3?", "gold": "18"}
ANSWERS = ("18", "18.0", "$18", "1,8", " 18 apples", "eighteen", "", "17", "18 or 17", "-18")
#: In and out of the format, whole and broken; of an odd number, so that each comes in both styles.
COMPLETIONS = [
    "",
    "\x00",
    "{{ 7 * 7 }}{% if",
    "<answer>50 - 7 + 3</answer>",
    "x</think>\n<answer>50",
]
COMPLETIONS += [f"x</think>\n<answer>{answer}</answer>" for answer in ("50/0", "impossible")]


def rows(task: str, *, completed: bool = True) -> list[dict[str, Any]]:
    """Rows with an ``id`` and a ``completion``; in every other puzzle the model opens ``<think>``."""
    if task == "gsm8k":
        text = "<thinking>\nx\n</thinking>\n<answer>\n{}\n</answer>"
        pairs = [(dict(PROBLEM), text.format(answer)) for answer in ANSWERS]
    else:
        rng = random.Random(0)
        pairs = [(dict(row), completion) for completion, row in realistic(rng, PUZZLES)]
        for _ in range(100):
            text, nums, target, rule = hostile(rng)
            row = {"nums": nums, "target": target, "rule": rule}
            pairs.append((row, f"</think>\n<answer>{text}</answer>"))
        pairs += [({"nums": [3, 7, 50], "target": 46}, text) for text in COMPLETIONS * 2]
        for row, _ in pairs[1::2]:
            row["style"] = "model_opens"
    for index, (row, text) in enumerate(pairs):
        row |= {"id": str(index)} | ({"completion": text} if completed else {})
    return [row for row, _ in pairs]


def graded(task: str, folder: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]], Path]:
    """The rows, their grades, and a data file of the rows without completions."""
    written = rows(task)
    jsonl.write_rows(folder / "samples.jsonl", written)
    grade(str(folder / "samples.jsonl"), out=folder / "grades.jsonl")
    data = folder / "data.jsonl"
    jsonl.write_rows(data, rows(task, completed=False))
    return written, [*jsonl.read_objects(folder / "grades.jsonl")], data
