"""Completions with the grades of ``countdown-rl grade``, against which other evaluators are compared."""

import json
import random
from pathlib import Path
from typing import Any

from benchmarks.grading import hostile, realistic
from countdown_rl.cli.grade import grade
from countdown_rl.tasks import jsonl
from tests.hostile.cases import CASES
from tests.tasks import test_expression, test_grading

PUZZLES = 1_000


def parameters(test: Any) -> list[Any]:
    """The values with which *test* is parametrized."""
    (mark,) = [mark for mark in test.pytestmark if mark.name == "parametrize"]
    return [value[0] if isinstance(value, tuple) else value for value in mark.args[1]]


def rows(task: str) -> list[dict[str, Any]]:
    """Rows with a ``completion``, each with an ``id``: for Countdown 1,000 puzzles, then hostile strings."""
    if task == "gsm8k":
        answers = parameters(test_grading.test_gsm8k_answers_are_right_where_they_equal_the_gold_number)
        made = [(test_grading.PROBLEM, f"<thinking>\nx\n</thinking>\n<answer>\n{text}\n</answer>") for text in answers]
    else:
        rng = random.Random(0)
        made = [(dict(row), completion) for completion, row in realistic(rng, PUZZLES)]
        for _ in range(100):
            text, nums, target, rule = hostile(rng)
            made.append(({"nums": nums, "target": target, "rule": rule}, f"</think>\n<answer>{text}</answer>"))
        answers = parameters(test_expression.test_each_refusal_has_its_own_reason)
        answers += parameters(test_grading.test_each_wrong_answer_has_its_reason)
        made += [(test_grading.ROW, f"</think>\n<answer>{text}</answer>") for text in answers]
        for test in (
            test_grading.test_format_needs_both_blocks_in_order,
            test_grading.test_strict_format_is_the_two_blocks_and_nothing_else,
        ):
            made += [(test_grading.SMALL, text) for text in parameters(test)]
        lines = [
            json.loads(case.stdin) for case in CASES if case.command == "grade" and case.status == 0 and case.stdin
        ]
        made += [(line, line["completion"]) for line in lines if "nums" in line]
        made += [
            (test_grading.ROW, text)
            for text in (
                "",
                " \n",
                "\x00",
                "{{ 7 * 7 }}{% if",
                "\n<think>x</think>\n<answer>1</answer>\n",
                "\u2028<answer>1</answer>",
            )
        ]
        # Every other row in the style in which the model opens its thinking.
        made = [
            ({**fields, **({"style": "model_opens"} if i % 2 else {})}, text) for i, (fields, text) in enumerate(made)
        ]
    return [{**fields, "id": str(i), "completion": text} for i, (fields, text) in enumerate(made)]


def graded(task: str, folder: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]], Path]:
    """The rows, their grades, and a data file of the rows without completions."""
    made = rows(task)
    jsonl.write_rows(folder / "samples.jsonl", made)
    grade(str(folder / "samples.jsonl"), out=folder / "grades.jsonl", as_json=True)
    data = folder / "data.jsonl"
    jsonl.write_rows(data, ({key: row[key] for key in row if key != "completion"} for row in made))
    return made, jsonl.read_objects(folder / "grades.jsonl"), data
