"""A task for Inspect, through its entry point ``inspect_ai``.

inspect eval countdown_rl/exact -T data=FILE --model NAME
"""

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
    """Return a task whose answers are graded exactly.

    Args:
        data: a file of rows, or a data directory, whose test split is used.
        n: only the first *n* rows.
        prefill: send that of the prompt as an assistant turn, for endpoints that continue it
            (vLLM, SGLang).
    """
    samples = []
    for row in jsonl.read_rows(jsonl.test_file(Path(data)))[:n]:
        if prefill:
            samples.append(_sample(row, row.messages()))
        else:
            samples.append(_sample(row.without_prefill(), row.prompt().turns()))
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
    """Return the scorer: the explanation is the verdict in words, the metadata are its fields."""

    async def score(state: TaskState, target: Target) -> Score:
        row = parse_row(state.metadata)
        output = state.output
        contents = output.message.content if output.choices else ""
        thoughts = [item.reasoning for item in contents if isinstance(item, ContentReasoning)]
        graded = row.grade(row.style.completion(output.completion, "\n".join(thoughts)))
        truncated = output.stop_reason == "max_tokens"
        return Score(
            value=CORRECT if graded.correct else INCORRECT,
            answer=graded.answer,
            explanation=verdict(row, graded.answer, graded.value, graded.reason, truncated),
            metadata=graded.to_json(),
        )

    return score
