"""A task for Inspect, its entry point ``inspect_ai``: ``inspect eval countdown_rl/exact -T data=FILE --model NAME``."""

from pathlib import Path

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import (
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageUser,
    ContentReasoning,
)
from inspect_ai.scorer import CORRECT, INCORRECT, Score, Scorer, Target, accuracy, scorer, stderr
from inspect_ai.solver import TaskState

from countdown_rl.tasks import jsonl
from countdown_rl.tasks.registry import parse_row, verdict
from countdown_rl.tasks.task import Row

DATA = "artifacts/data/test.jsonl"
_MESSAGES = {
    "system": ChatMessageSystem,
    "user": ChatMessageUser,
    "assistant": ChatMessageAssistant,
}


@task
def exact(data: str = DATA, n: int | None = None, prefill: bool = False) -> Task:
    """The first *n* rows of *data*, a file or the test split of a data directory of any task, graded exactly.

    With *prefill* that of the prompt is sent as an assistant turn, for endpoints that continue it (vLLM, SGLang).
    """
    rows = jsonl.read_rows(jsonl.test_file(Path(data)))[:n]
    samples = [
        _sample(row, row.messages())
        if prefill
        else _sample(row.without_prefill(), row.prompt().turns())
        for row in rows
    ]
    return Task(dataset=MemoryDataset(samples, name=Path(data).stem), scorer=grade())


def _sample(row: Row, turns: list[dict[str, str]]) -> Sample:
    return Sample(
        id=row.get("id", row.id),
        input=[_MESSAGES[turn["role"]](content=turn["content"]) for turn in turns],
        target=row.reference,
        metadata=dict(row),
    )


@scorer(metrics=[accuracy(), stderr()])
def grade() -> Scorer:
    """The grade of the completion; its verdict in words is the explanation, and its fields are the metadata."""

    async def score(state: TaskState, target: Target) -> Score:
        row, output = parse_row(state.metadata), state.output
        parts = output.message.content if output.choices else ""
        thoughts = [part.reasoning for part in parts if isinstance(part, ContentReasoning)]
        graded = row.grade(row.style.completion(output.completion, "\n".join(thoughts)))
        truncated = output.stop_reason == "max_tokens"
        return Score(
            value=CORRECT if graded.correct else INCORRECT,
            answer=graded.answer,
            explanation=verdict(row, graded.answer, graded.value, graded.reason, truncated),
            metadata=graded.to_json(),
        )

    return score
