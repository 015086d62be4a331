"""Prompt and grading of countdown-rl for lm-evaluation-harness 0.4."""

import json
from dataclasses import asdict
from pathlib import Path

from datasets import Dataset

from countdown_rl.tasks import jsonl
from countdown_rl.tasks.registry import parse_row
from countdown_rl.tasks.task import Row


def load(**_: object) -> dict[str, Dataset]:
    """Return the rows of ``test.jsonl`` as text in ``row``, with the turns of their prompts."""
    rows = jsonl.read_rows(Path(__file__).with_name("test.jsonl"))
    return {"test": Dataset.from_list(list(map(_document, rows)))}


def process_results(document: dict[str, str], results: list[str]) -> dict[str, float]:
    """Return the grade of a completion."""
    grade = parse_row(json.loads(document["row"])).grade(results[0])
    return {name: float(getattr(grade, name)) for name in ("correct", "format", "strict_format")}


def _document(row: Row) -> dict[str, str]:
    return {"row": json.dumps(dict(row)), "reference": row.reference, **asdict(row.prompt())}
