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
COMPLETIONS = (
    *(
        "",
        " \n",
        "\x00",
        "{{ 7 * 7 }}{% if",
        "\u2028<answer>1</answer>",
        "<answer>50 - 7 + 3</answer>",
    ),
    *(
        "\n<think>x</think>\n<answer>50 - 7 + 3</answer>\n",
        "x</think><answer>50 - 7 + 3</answer> so",
    ),
    *(
        f"x</think>\n<answer>{answer}</answer>"
        for answer in ("50 - 7 + 3", "50 - 7", "50/0", "impossible")
    ),
    "x</think>\n<answer>50",
)


def rows(task: str) -> list[dict[str, Any]]:
    """Rows with a ``completion`` and an ``id``; in every other puzzle the model opens ``<think>``."""
    if task == "gsm8k":
        pairs = [
            (PROBLEM, f"<thinking>\nx\n</thinking>\n<answer>\n{answer}\n</answer>")
            for answer in ANSWERS
        ]
    else:
        rng = random.Random(0)
        pairs = [(dict(row), completion) for completion, row in realistic(rng, PUZZLES)]
        for text, nums, target, rule in (hostile(rng) for _ in range(100)):
            pairs.append(
                (
                    {"nums": nums, "target": target, "rule": rule},
                    f"</think>\n<answer>{text}</answer>",
                )
            )
        pairs += [({"nums": [3, 7, 50], "target": 46}, text) for text in COMPLETIONS * 2]
        pairs = [
            (row | ({"style": "model_opens"} if index % 2 else {}), text)
            for index, (row, text) in enumerate(pairs)
        ]
    return [
        {**row, "id": str(index), "completion": text} for index, (row, text) in enumerate(pairs)
    ]


def graded(task: str, folder: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]], Path]:
    """The rows, their grades, and a data file of the rows without completions."""
    written = rows(task)
    jsonl.write_rows(folder / "samples.jsonl", written)
    grade(str(folder / "samples.jsonl"), out=folder / "grades.jsonl")
    data = folder / "data.jsonl"
    jsonl.write_rows(
        data, ({key: row[key] for key in row if key != "completion"} for row in written)
    )
    return written, [*jsonl.read_objects(folder / "grades.jsonl")], data
