"""Reward functions for other trainers: TRL's ``reward_funcs`` and verl's ``compute_score``.

    trainer = GRPOTrainer(model, reward_funcs=[correct, format_reward], train_dataset=dataset)

The columns of the data set describe the puzzle: ``nums`` and ``target``, or the fields of another
task, as :meth:`countdown_rl.Row.to_trl` returns them. Other columns are ignored.
"""

import json
from collections.abc import Callable, Mapping, Sequence

from countdown_rl.tasks.registry import rows_of
from countdown_rl.tasks.task import Completion, Grade, text_of


def correct(completions: Sequence[Completion], **columns: object) -> list[float]:
    """1.0 for each completion whose answer is correct by exact arithmetic, else 0.0."""
    return [float(grade.correct) for grade in _graded(completions, columns)]


def format_reward(completions: Sequence[Completion], **columns: object) -> list[float]:
    """1.0 for each completion that has reasoning and then an answer, each in its tags, else 0.0."""
    return [float(grade.format) for grade in _graded(completions, columns)]


def length(budget: int, penalty: float = 0.5) -> Callable[..., list[float]]:
    """Return a reward function: minus *penalty* for each completion of at
    least *budget* tokens, else 0.0.
    """

    def length_reward(
        completions: object, completion_ids: Sequence[Sequence[int]], **_: object
    ) -> list[float]:
        return [-penalty if len(ids) >= budget else 0.0 for ids in completion_ids]

    return length_reward


def compute_score(
    data_source: object,
    solution_str: str,
    ground_truth: str | Mapping[str, object],
    extra_info: object = None,
    *,
    score: float = 1.0,
    format_score: float = 0.0,
    **_: object,
) -> dict[str, float]:
    """verl's custom reward function (``custom_reward_function.path`` and ``.name``).

    Args:
        solution_str: the completion, without the prompt.
        ground_truth: the fields of the row, as a mapping or JSON, such as
            ``{"nums": [3, 7, 50], "target": 46}``.
        score, format_score: of a correct completion, and of a wrong one in the right format.

    Returns:
        ``score``, which verl trains on, and ``acc`` and ``format``, which it logs.
    """
    fields = json.loads(ground_truth) if isinstance(ground_truth, str) else ground_truth
    # Fields of a table may be arrays of NumPy, or missing.
    (row,) = rows_of({name: [value] for name, value in fields.items()}, 1)
    grade = row.grade(solution_str)
    value = format_score if grade.format else 0.0
    if grade.correct:
        value = score
    return {"score": value, "acc": float(grade.correct), "format": float(grade.format)}


def _graded(completions: Sequence[Completion], columns: Mapping[str, object]) -> list[Grade]:
    """Grade *completions* by those of *columns* that describe the rows of their tasks."""
    rows = rows_of(columns, len(completions))
    texts = map(text_of, completions)
    return [row.grade(text) for row, text in zip(rows, texts, strict=True)]
