"""Evaluations that no model made."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from countdown_rl.core import artifacts
from countdown_rl.evaluation import results
from countdown_rl.evaluation.metrics import measure
from countdown_rl.evaluation.sample import (
    DecodingSettings,
    EvaluatedModel,
    Metrics,
    Overlap,
    Sample,
)
from countdown_rl.tasks.registry import parse_row
from countdown_rl.tasks.task import Grade

GREEDY = {"greedy": True, "temperature": 0.0, "top_p": 1.0, "seed": 42, "max_new_tokens": 256}


def sample(
    correct: bool = False, reason: str = "no-answer", *, row: Any = None, **fields: Any
) -> Sample:
    """A sample with *fields* of its own or of its grade, of the puzzle of reaching 1 from 1 where there is no *row*."""
    grade = {
        "format": True,
        "strict_format": True,
        "answer": None,
        "value": None,
        "trailing": False,
    }
    grade |= {key: fields.pop(key) for key in grade.keys() & fields.keys()}
    verdict = Grade(correct=correct, reason="" if correct else reason, **grade)
    row = parse_row({"nums": [1], "target": 1} if row is None else row)
    return Sample(
        row, grade=verdict, **{"completion": "", "tokens": 10, "truncated": False} | fields
    )


def metrics(
    samples: Sequence[Sample],
    *,
    decoding: dict[str, Any] = GREEDY,
    model: dict[str, Any] | None = None,
    data: dict[str, Any] | None = None,
    **fields: Any,
) -> Metrics:
    """The metrics of *samples*, described by the rest; the model was trained on none of their puzzles."""
    fields.setdefault("overlap", Overlap(trained=0))
    return Metrics(
        **vars(measure(samples)),
        decoding=DecodingSettings(**decoding),
        data=data or {"file": "f", "digest": "d"},
        model=EvaluatedModel(**model or {"source": "m", "kind": "directory"}),
        **fields,
    )


def write(path: Path, metrics: Metrics, samples: Sequence[Sample], **inputs: Any) -> Path:
    """The evaluation of *metrics* and *samples* as an artifact at *path*, made of *inputs*."""
    with artifacts.writing(path, "eval", options={}, inputs=inputs) as draft:
        results.write(draft.path, metrics, samples)
    return path
