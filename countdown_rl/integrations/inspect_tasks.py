"""Tasks for Inspect (inspect_ai): ``inspect eval countdown_rl/countdown --model PROVIDER/NAME``.

The entry point ``inspect_ai`` in ``pyproject.toml`` names this module, so that Inspect finds the tasks.
"""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from inspect_ai import Task, task
from inspect_ai.dataset import Sample, json_dataset
from inspect_ai.model import ChatMessageAssistant, ChatMessageSystem, ChatMessageUser, ContentReasoning
from inspect_ai.scorer import CORRECT, INCORRECT, Score, Scorer, Target, accuracy, scorer, stderr
from inspect_ai.solver import TaskState

from countdown_rl.tasks.explain import verdict
from countdown_rl.tasks.registry import parse_row
from countdown_rl.tasks.task import Row

DATA = "artifacts/data/test.jsonl"
_MESSAGES = {"system": ChatMessageSystem, "user": ChatMessageUser, "assistant": ChatMessageAssistant}


@task
def countdown(
    data: str = DATA, n: int | None = None, rule: str | None = None, size: int | None = None, prefill: bool = False
) -> Task:
    """Countdown puzzles.

    Args:
        data: data directory of ``countdown-rl gen-data`` (its test split), or a JSONL file.
        n: only the first *n* puzzles.
        rule: ask and grade under this rule, not the puzzles' own: exactly-once, at-most-once or television.
        size: only puzzles of this many numbers.
        prefill: send the begun assistant turn of the prompt, for endpoints that continue it (vLLM, SGLang).
    """
    fields = {"task": "countdown", **({"rule": rule} if rule else {})}
    return _task(data, n, prefill, fields, lambda row: size in (None, len(row["nums"])))


@task
def gsm8k(data: str = DATA, n: int | None = None, prefill: bool = False) -> Task:
    """GSM8K problems, imported by ``countdown-rl gen-data --task gsm8k``; the arguments are those of countdown."""
    return _task(data, n, prefill, {"task": "gsm8k"}, lambda row: True)


def _task(data: str, n: int | None, prefill: bool, fields: dict[str, Any], wanted: Callable[[Row], bool]) -> Task:
    def samples(record: dict[str, Any]) -> list[Sample]:
        row = parse_row({**record, **fields})
        return [_sample(row if prefill else row.without_begun_turn())] if wanted(row) else []

    path = Path(data, "test.jsonl") if Path(data).is_dir() else Path(data)
    dataset = json_dataset(str(path), samples)
    return Task(dataset=dataset[:n], scorer=exact())


def _sample(row: Row) -> Sample:
    return Sample(
        id=row.get("id"),
        input=[_MESSAGES[turn["role"]](content=turn["content"]) for turn in row.messages()],
        target=str(row["gold"] if "gold" in row else row["target"]),
        metadata=dict(row),
    )


@scorer(metrics=[accuracy(), stderr()])
def exact() -> Scorer:
    """The grade of the completion; its verdict in words is the explanation, and its fields are the metadata."""

    async def score(state: TaskState, target: Target) -> Score:
        row, output = parse_row(state.metadata), state.output
        parts = output.message.content if output.choices else ""
        thoughts = [part.reasoning for part in parts if isinstance(part, ContentReasoning)]
        grade = row.grade(row.style.completion(output.completion, "\n".join(thoughts)))
        sample = {**row, **asdict(grade), "truncated": output.stop_reason == "max_tokens"}
        return Score(
            value=CORRECT if grade.correct else INCORRECT,
            answer=grade.answer,
            explanation=verdict(sample),
            metadata=asdict(grade),
        )

    return score
