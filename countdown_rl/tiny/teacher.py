"""Baseline ``teacher``: the search that countdown-tiny was pretrained on, without a mistake."""

import random

from countdown_rl.errors import InputError
from countdown_rl.inference.generate import Completion
from countdown_rl.models import reference
from countdown_rl.tasks.response_format import ANSWER_CLOSE
from countdown_rl.tasks.task import Row
from countdown_rl.tiny import traces


class Teacher:
    """The search of :mod:`countdown_rl.tiny.traces`.

    Args:
        max_new_tokens: its budget, in tokens of countdown-tiny.
    """

    def __init__(self, max_new_tokens: int) -> None:
        from tokenizers import Tokenizer

        model = reference.resolve("countdown-tiny")
        self._plan = traces.plan_of(model.manifest.facts if model.manifest else {})
        self._tokenizer = Tokenizer.from_file(str(reference.local_path(model) / "tokenizer.json"))
        self._budget = max_new_tokens

    def complete(self, row: Row, seed: str) -> Completion:
        """A trace in the order drawn with *seed*, cut off at the budget.

        Raises:
            InputError: no trace is written for *row*, or the plan is for puzzles of other sizes.
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
        reason = traces.unsupported(row)
        if not reason and len(row["nums"]) not in self._plan:
            reason = f"are for puzzles of {' and '.join(map(str, self._plan))} numbers"
        if reason:
            raise InputError(f"the traces of teacher {reason}; give --data other puzzles.")

    def _count(self, texts: list[str]) -> list[int]:
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [len(encoding) + text.endswith(ANSWER_CLOSE) for encoding, text in zip(encodings, texts, strict=True)]
