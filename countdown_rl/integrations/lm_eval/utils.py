"""Prompt and grading of countdown-rl for lm-evaluation-harness 0.4."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from datasets import Dataset

from countdown_rl.tasks.registry import parse_row


def load(**_: Any) -> dict[str, Dataset]:
    """The rows of ``test.jsonl`` in this folder, as text in ``row``, with the turns of their prompts."""
    lines = Path(__file__).with_name("test.jsonl").read_bytes().splitlines()
    return {"test": Dataset.from_list([_document(line.decode()) for line in lines if line.strip()])}


def process_results(document: dict[str, Any], results: list[str]) -> dict[str, float]:
    """The grade of a completion."""
    grade = parse_row(json.loads(document["row"])).grade(results[0])
    return {name: float(getattr(grade, name)) for name in ("correct", "format", "strict_format")}


def _document(line: str) -> dict[str, str]:
    row = parse_row(json.loads(line))
    return {"row": line, "reference": row.reference, **asdict(row.prompt())}
