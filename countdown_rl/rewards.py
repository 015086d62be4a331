"""Reward functions for other trainers: TRL's ``reward_funcs`` and verl's ``compute_score``.

    trainer = GRPOTrainer(model, reward_funcs=[correct, format_reward], train_dataset=dataset)

The columns of the data set describe the puzzle: ``nums`` and ``target``, or the fields of another task, as
:meth:`countdown_rl.Row.to_trl` returns them. Other columns are ignored.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from countdown_rl.core.errors import InputError
from countdown_rl.core.options import plain, shown
from countdown_rl.tasks.registry import parse_row, task_of
from countdown_rl.tasks.task import Grade

#: Text, or messages of which the last is the completion.
Completion = str | Sequence[Mapping[str, Any]]


def text_of(completion: Completion) -> str:
    """Return the text of a completion. Raises InputError if it is neither text nor messages."""
    if isinstance(completion, str):
        return completion
    try:
        content = completion[-1]["content"]
    except (TypeError, LookupError):
        raise InputError(
            f"a completion should be text or messages, not {shown(completion)}"
        ) from None
    return content if isinstance(content, str) else str(content or "")


def correct(completions: Sequence[Completion], **columns: Any) -> list[float]:
    """1.0 for each completion whose answer is correct by exact arithmetic, else 0.0."""
    return [float(grade.correct) for grade in _graded(completions, columns)]


def format_reward(completions: Sequence[Completion], **columns: Any) -> list[float]:
    """1.0 for each completion that has reasoning and then an answer, each in its tags, else 0.0."""
    return [float(grade.format) for grade in _graded(completions, columns)]


def length(budget: int, penalty: float = 0.5) -> Callable[..., list[float]]:
    """Return a reward function: minus *penalty* for each completion of at least *budget* tokens, else 0.0."""

    def length_reward(completions: Any, completion_ids: Sequence[Any], **_: Any) -> list[float]:
        return [-penalty if len(ids) >= budget else 0.0 for ids in completion_ids]

    return length_reward


def compute_score(
    data_source: Any,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    *,
    score: float = 1.0,
    format_score: float = 0.0,
    **_: Any,
) -> dict[str, float]:
    """verl's custom reward function (``custom_reward_function.path`` and ``.name``).

    Args:
        solution_str: the completion, without the prompt.
        ground_truth: the fields of the row, as a mapping or JSON, such as ``{"nums": [3, 7, 50], "target": 46}``.
        score, format_score: of a correct completion, and of a wrong one in the right format.

    Returns:
        ``score``, which verl trains on, and ``acc`` and ``format``, which it logs.
    """
    fields = json.loads(ground_truth) if isinstance(ground_truth, str) else plain(ground_truth)
    grade = parse_row(fields).grade(solution_str)
    value = format_score if grade.format else 0.0
    if grade.correct:
        value = score
    return {"score": value, "acc": float(grade.correct), "format": float(grade.format)}


def _graded(completions: Sequence[Completion], columns: Mapping[str, Any]) -> list[Grade]:
    """Grade *completions* by those of *columns* that describe the rows of their tasks."""
    texts = list(map(text_of, completions))

    def column(name: str) -> list[Any]:
        values = plain(columns[name])
        if not isinstance(values, list) or len(values) != len(texts):
            raise InputError(f"{name} should be a list of {len(texts)}, not {shown(values)}.")
        return values

    names = {"task", "style", "template"}
    for task in {*column("task")} if "task" in columns else {None}:
        known = task_of({"task": task})
        names.update(known.aliases, known.fields)
    table = {name: column(name) for name in names & columns.keys()}

    grades = []
    for index, text in enumerate(texts):
        cells = {name: values[index] for name, values in table.items()}
        row = parse_row({name: cell for name, cell in cells.items() if cell is not None})
        grades.append(row.grade(text))
    return grades
