"""Rows of a task: drawn one by one from a seed, or imported from published ones."""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from countdown_rl.core.errors import InputError, UsageError
from countdown_rl.data.config import DataOptions
from countdown_rl.tasks.layouts import held_out
from countdown_rl.tasks.task import Row, Task

#: Attempts at one row.
LIMIT = 10_000


class Dropped(Exception):  # noqa: N818 - not an error
    """A row that is not imported: the reason in a word, and in a phrase."""

    _PHRASES: ClassVar = {
        "duplicate": "equal to an earlier row",
        "excluded": "in a file of rows to keep out of the training data",
        "held-out": "equal to a row of a published test or validation split",
    }

    def __init__(self, reason: str, phrase: str = "") -> None:
        super().__init__(reason)
        self.reason, self.phrase = reason, phrase or self._PHRASES[reason]


@dataclass(frozen=True)
class Candidate:
    """A row that may be imported: what identifies it, its split, and a function that makes it or raises Dropped."""

    id: str
    split: str
    make: Callable[[], dict[str, Any]]


class RowSource:
    """Rows of *task*, by its ``draw`` and ``import_row``."""

    def __init__(self, task: Task, options: DataOptions) -> None:
        self.task, self.options = task, options
        self._kept_out: set[str] = set()
        self._splits: dict[str, str] = {}  # by identity

    def keep_out(self, fields: Mapping[str, Any]) -> None:
        """Keep what equals the row of *fields* out of all splits. Raises InputError where they are no row."""
        self.keep_out_identity(self._imported(fields))

    def keep_out_identity(self, row: Row) -> None:
        """Keep out every row that must not be in another split than *row*."""
        self._kept_out.add(row.identity)

    def candidate(self, published_split: str, fields: Mapping[str, Any], *, own_test: bool = False) -> Candidate:
        """The candidate of a published row.

        Args:
            published_split: the name of its split; "" where no test split was published.
            own_test: the row is a test puzzle of the user's own, which nothing keeps out.
        """
        try:
            row = self._imported(fields)
        except InputError as error:
            raise Dropped("not-a-row", f"that are none of the task {self.task.name}: {error}") from None
        if row.identity in self._kept_out and not own_test:
            raise Dropped("excluded")
        split = "test" if own_test else self._split(row.identity, row.split, published_split)
        return Candidate(row.id, split, lambda: {"id": row.id, **row})

    def _split(self, identity: str, own: str, published: str) -> str:
        """The split of a published row: a held-out one stays what it is, the others go where their *own* split is.

        No row joins a published test split: it becomes a validation row. Held-out rows have to come first.
        """
        split = held_out(published) or ("valid" if published and own == "test" else own)
        if self._splits.setdefault(identity, split) != split:
            raise Dropped("held-out")
        return split

    def rows(self, sizes: Mapping[str, int]) -> dict[str, Iterator[dict[str, Any]]]:
        """New rows for each split, as many as *sizes* says; row i depends on the seed and i alone."""
        if self.task.draw is None:
            raise UsageError(f"--task {self.task.name} has no generator; give --from FILE or --from-hub NAME.")
        return {split: self._drawn(self.task.draw, split, count) for split, count in sizes.items()}

    def _drawn(
        self, draw: Callable[[random.Random], Mapping[str, Any]], split: str, count: int
    ) -> Iterator[dict[str, Any]]:
        seen: set[str] = set()
        for index in range(count):
            for attempt in range(LIMIT):
                row = self._row(draw(random.Random(f"{self.options.seed} {split} {index} {attempt}")))
                if row.split == split and row.id not in seen and row.identity not in self._kept_out:
                    break
            else:
                raise InputError(f"After {index:,} rows for {split}, {LIMIT:,} draws gave no new one; lower --n.")
            seen.add(row.id)
            yield {"id": row.id, **row}

    def _imported(self, fields: Mapping[str, Any]) -> Row:
        return self._row(self.task.import_row(fields) if self.task.import_row else fields)

    def _row(self, fields: Mapping[str, Any]) -> Row:
        return self.task.row({"task": self.task.name, **fields})
