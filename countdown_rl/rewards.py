"""Reward functions for other trainers: TRL's ``reward_funcs`` and verl's ``compute_score``.

    trainer = GRPOTrainer(model, reward_funcs=[correct, format_reward], train_dataset=dataset)

The columns of the data set describe the puzzle: ``nums`` and ``target``, or the fields of another task, as
:meth:`countdown_rl.Row.to_trl` returns them. Other columns are ignored.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from countdown_rl.core.errors import InputError
from countdown_rl.core.options import plain, shown
from countdown_rl.tasks.registry import parse_row, task_of
from countdown_rl.tasks.task import Grade, Row
from countdown_rl.training.grpo.rewards import reward, too_long

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
    return [reward("correct")(grade, row, 0) for row, grade in _graded(completions, columns)]


def format_reward(completions: Sequence[Completion], **columns: Any) -> list[float]:
    """1.0 for each completion that has reasoning and then an answer, each in its tags, else 0.0."""
    return [reward("format")(grade, row, 0) for row, grade in _graded(completions, columns)]


def length(budget: int, penalty: float = 0.5) -> Callable[..., list[float]]:
    """Return a reward function: minus *penalty* for each completion of at least *budget* tokens, else 0.0."""

    def length_reward(
        completions: Sequence[Completion], completion_ids: Any, **_: Any
    ) -> list[float]:
        try:
            return [too_long(len(ids), budget, penalty) for ids in completion_ids]
        except TypeError:
            raise InputError(
                f"completion_ids should be token ids of each completion, not {shown(completion_ids)}."
            ) from None

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
    try:
        grade = parse_row(
            json.loads(ground_truth) if isinstance(ground_truth, str) else plain(ground_truth)
        ).grade(text_of(solution_str))
    except (InputError, json.JSONDecodeError) as error:
        raise InputError(f"solution_str or ground_truth: {error}") from error
    value = format_score if grade.format else 0.0
    if grade.correct:
        value = score
    return {"score": value, "acc": float(grade.correct), "format": float(grade.format)}


def _graded(
    completions: Sequence[Completion], columns: Mapping[str, Any]
) -> list[tuple[Row, Grade]]:
    texts, cells = list(map(text_of, _items("completions", completions))), dict[str, list[Any]]()

    def cell(name: str, index: int) -> Any:
        if name not in cells:
            cells[name] = _items(name, columns[name])
            if len(cells[name]) != len(texts):
                raise InputError(
                    f"{name} has {len(cells[name])} values, and there are {len(texts)} completions."
                )
        return cells[name][index]

    graded = []
    for index, text in enumerate(texts):
        known = task_of({"task": cell("task", index) if "task" in columns else None})
        names = ("task", "style", "template", *known.aliases, *known.fields)
        fields = {name: cell(name, index) for name in names if name in columns}
        row = parse_row({name: value for name, value in fields.items() if value is not None})
        graded.append((row, row.grade(text)))
    return graded


def _items(name: str, column: Any) -> list[Any]:
    items = plain([*column] if isinstance(column, Iterator) else column)
    if not isinstance(items, list):
        raise InputError(
            f"{name} should be a list with an item for each completion, not {shown(column)}."
        )
    return items
