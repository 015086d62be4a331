"""Prompt and grading of countdown-rl as an environment of verifiers 0.4.0 (``verifiers.v1``)."""

from collections.abc import Iterator
from pathlib import Path

import verifiers.v1 as vf

from countdown_rl.tasks import jsonl
from countdown_rl.tasks.registry import parse_row
from countdown_rl.tasks.task import Grade

__all__ = ["ExactTaskset"]


class ExactData(vf.TaskData):
    """Prompt of a row, and the row."""

    row: dict[str, object]


class ExactTask(vf.Task[ExactData]):
    """Exact grading of the last reply: 1.0 where it is correct."""

    @vf.reward
    async def correct(self, trace: vf.Trace) -> float:
        return float(self.grade(trace).correct)

    @vf.metric
    async def format(self, trace: vf.Trace) -> dict[str, float]:
        grade = self.grade(trace)
        return {"format": float(grade.format), "strict_format": float(grade.strict_format)}

    def grade(self, trace: vf.Trace) -> Grade:
        """Return the grade of the last reply, not stripped as ``trace.last_reply`` is."""
        row = parse_row(self.data.row)
        for message in trace.assistant_messages[-1:]:
            return row.grade(row.style.completion(message.content or "", message.reasoning_content))
        return row.grade("")


class ExactTaskset(vf.Taskset[ExactTask, vf.TasksetConfig]):
    """The rows of ``SPLIT.jsonl`` in this package."""

    def load(self) -> Iterator[ExactTask]:
        for row in jsonl.read_rows(Path(__file__).with_name("SPLIT.jsonl")):
            plain = row.without_prefill()
            prompt = plain.prompt()
            system = prompt.system or None
            data = ExactData(system_prompt=system, prompt=prompt.user, row=dict(plain))
            yield ExactTask(data, self.config.task)
