"""Baselines: what a task has to compare a model with.

Each takes the place of a model in an evaluation: same rows, same response format, same grader.
"""

import random
from collections.abc import Sequence

from countdown_rl.errors import InputError
from countdown_rl.inference.generate import Completion
from countdown_rl.models import reference
from countdown_rl.tasks import registry, traces
from countdown_rl.tasks.countdown import CountdownRow
from countdown_rl.tasks.response_format import ANSWER_CLOSE, ANSWER_OPEN
from countdown_rl.tasks.task import Baseline, Row, resolve


def find(name: str, rows: Sequence[Row]) -> Baseline | None:
    """The baseline called *name* of the task of *rows*; None where no task has such a baseline.

    Raises:
        InputError: only another task has it.
    """
    tasks = {row.task for row in rows}
    if name not in registry.baseline_names():
        return None
    found = [baseline for task in tasks if (baseline := registry.task(task).baselines.get(name))]
    if len(tasks) > 1 or not found:
        raise InputError(f"{name} is no baseline of the task {' or '.join(sorted(tasks))}; give --model a model.")
    return found[0]


def complete(baseline: Baseline, row: Row, seed: str) -> Completion:
    """The completion of *row* by a *baseline* that gives answers alone: empty thinking, and its answer.

    Args:
        seed: of its random numbers, together with the row.
    """
    answer = resolve(baseline.answer or "")(row, random.Random(seed))
    line = "\n" if row.style.lines else ""
    text = f"{row.style.opening}\n</{row.style.tag}>\n{ANSWER_OPEN}{line}{answer}{line}{ANSWER_CLOSE}"
    return Completion(text, 0, True)


class Teacher:
    """The search that countdown-tiny was trained on, without a mistake (:mod:`countdown_rl.tasks.traces`).

    Args:
        max_new_tokens: its budget, in tokens of countdown-tiny.
    """

    def __init__(self, max_new_tokens: int) -> None:
        from tokenizers import Tokenizer

        model = reference.resolve("countdown-tiny")
        self._plan = traces.plan_of(model.manifest.facts if model.manifest else {})
        self._tokenizer = Tokenizer.from_file(str(reference.files(model) / "tokenizer.json"))
        self._budget = max_new_tokens

    def complete(self, row: Row, seed: str) -> Completion:
        """A trace in the order drawn with *seed*, cut off at the budget.

        Raises:
            InputError: the plan is for puzzles of other sizes, or the row is in the style ``lines``.
        """
        self._check(row)
        trace = traces.trace(row, self._plan, random.Random(seed), max_lines=self._budget)
        text = row.style.opening + trace.text
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        if len(ids) < self._budget:  # the end is a token
            return Completion(text, len(ids) + 1, True)
        return Completion(self._tokenizer.decode(ids[: self._budget]), self._budget, False)

    def expected_accuracy(self, row: Row) -> float:
        """The exact probability that its answer to *row* is complete within the budget."""
        self._check(row)
        budget = self._budget - self._count([row.style.opening])[0]
        (probability,) = traces.expected_accuracy(row, self._plan, self._count, budgets=(budget,))
        return probability

    def _check(self, row: Row) -> None:
        if not isinstance(row, CountdownRow) or len(row["nums"]) not in self._plan:
            sizes = " and ".join(map(str, self._plan))
            raise InputError(f"teacher knows puzzles of {sizes} numbers only; give --data such puzzles.")
        if not traces.supports(row.puzzle):
            raise InputError("teacher uses all operators; give --data puzzles that allow them.")

    def _count(self, texts: list[str]) -> list[int]:
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [len(encoding) + text.endswith(ANSWER_CLOSE) for encoding, text in zip(encodings, texts, strict=True)]
