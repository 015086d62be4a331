"""Rows of a task: sampled one by one from a seed, or imported from published ones and split like these."""

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from countdown_rl.core.errors import InputError, UsageError
from countdown_rl.core.formatting import flag, plural
from countdown_rl.data.config import DataOptions
from countdown_rl.data.external import Published
from countdown_rl.tasks import files, records
from countdown_rl.tasks.splits import SPLITS, held_out
from countdown_rl.tasks.task import Row, Task

#: Attempts at one row.
LIMIT = 10_000
#: Characters shown of a row that was dropped.
EXAMPLE = 100


class Dropped(Exception):  # noqa: N818 - not an error
    """A published row that is not imported: the reason as a key and as a phrase."""

    def __init__(self, reason: str, phrase: str) -> None:
        super().__init__(reason)
        self.reason, self.phrase = reason, phrase


@dataclass
class Import:
    """Imported rows by split.

    Attributes:
        dropped, examples: by reason, the number of rows left out, and a phrase with the first of them.
        notes: where the rows were in their records.
        unused: the columns of the first row that are not in the data.
    """

    splits: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {split: [] for split in SPLITS})
    ids: set[str] = field(default_factory=set)
    read: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    notes: set[str] = field(default_factory=set)
    unused: set[str] = field(default_factory=set)


class RowSource:
    """Rows of *task*, by its ``draw`` and ``import_row``."""

    def __init__(self, task: Task, options: DataOptions) -> None:
        self.task, self.options, self.imported = task, options, Import()
        self._excluded: set[str] = set()  # identities
        self._splits: dict[str, str] = {}  # by identity

    def exclude(self, record: Mapping[str, Any]) -> None:
        """Keep what equals the row in *record* out of all splits. Raises InputError if there is none."""
        self.hold_out(self.find(record).row)

    def hold_out(self, row: Row) -> None:
        """Keep out every row that must not be in another split than *row*."""
        self._excluded.add(row.identity)

    def find(self, record: Mapping[str, Any]) -> records.Match:
        """The row of the task in a published *record*."""
        return records.find_row(record, self.task)

    def convert(self, row: Row, *, own_test: bool) -> dict[str, Any]:
        """The fields of the published *row* as they are written; *own_test* for a test row of the user's own.

        Raises:
            Dropped: it is left out.
        """
        if row.identity in self._excluded and not own_test:
            raise Dropped("excluded", "in a file of rows to keep out of the training data")
        rest = {key: value for key, value in row.items() if key not in ("id", "split")}
        return {"id": row.id, "task": self.task.name, **rest}

    def rows(self, sizes: Mapping[str, int]) -> dict[str, Iterator[dict[str, Any]]]:
        """New rows for each split, as many as *sizes* says; row i depends on the seed and i alone."""
        if self.task.draw is None:
            raise UsageError(
                f"{flag('task')} {self.task.name} has no generator; give {flag('from_')} FILE or {flag('from_hub')} "
                "NAME."
            )
        return {split: self._sampled(self.task.draw, split, count) for split, count in sizes.items()}

    def _sampled(
        self, draw: Callable[[random.Random], Mapping[str, Any]], split: str, count: int
    ) -> Iterator[dict[str, Any]]:
        seen: set[str] = set()
        for index in range(count):
            for attempt in range(LIMIT):
                fields = draw(random.Random(f"{self.options.seed} {split} {index} {attempt}"))
                row = self.task.row({"task": self.task.name, **fields})
                if row.split == split and row.id not in seen and row.identity not in self._excluded:
                    break
            else:
                raise InputError(
                    f"After {plural(index, 'row')} for {split}, {LIMIT:,} draws gave no new one; lower {flag('n')}."
                )
            seen.add(row.id)
            yield {"id": row.id, **row}

    def import_rows(
        self,
        published: Iterable[Published],
        n: int,
        limits: Mapping[str, int | None],
        *,
        own_test: bool = False,
        on_row: Callable[[int], None] = lambda count: None,
    ) -> None:
        """Add the first *n* rows that are new and not dropped to ``imported``, at most *limits* of a split.

        Args:
            published: rows of held-out splits first.
            own_test: they are test rows of the user's own, which nothing keeps out.
            on_row: called with the count of rows so far.
        """
        result, count = self.imported, 0
        for place, split, record in published:
            if count == n:
                break
            result.read += 1
            on_row(count)
            try:
                with files.at(place):
                    unused = self._import(split, record, limits, own_test)
            except Dropped as dropped:
                result.dropped[dropped.reason] += 1
                text = json.dumps(record, ensure_ascii=False, default=str)[:EXAMPLE]
                result.examples.setdefault(dropped.reason, f"{dropped.phrase} (such as {place}, {text})")
            else:
                result.unused |= set() if count else unused
                count += 1
        if not count:
            reasons = [f"{times:,} {result.examples[reason]}" for reason, times in result.dropped.most_common()]
            raise InputError(
                f"None of the {plural(result.read, 'row')} can be used: {'; '.join(reasons) or 'there are none'}."
            )
        if count == n and not result.splits["train"]:
            raise InputError(
                f"The first {plural(n, 'row')} are all held out, which leaves none for training; raise {flag('n')}."
            )
        for split, limit in limits.items():
            if limit is not None and (available := len(result.splits[split])) < limit:
                raise InputError(
                    f"Only {available:,} of these rows belong to {split}, not {limit:,}; lower {flag(split)}."
                )

    def _import(
        self, published_split: str, record: Mapping[str, Any], limits: Mapping[str, int | None], own_test: bool
    ) -> set[str]:
        """Add the row in *record* and return the names of its unused fields. Raises Dropped if it is left out."""
        try:
            match = self.find(record)
        except records.NoRowError as error:
            raise Dropped("not-a-row", f"that are none of the task {self.task.name}: {error}") from error
        fields, result = self.convert(match.row, own_test=own_test), self.imported
        split = "test" if own_test else self._split(match.row, published_split)
        if fields["id"] in result.ids:
            raise Dropped("duplicate", "equal to an earlier row")
        if (limit := limits.get(split)) is not None and len(result.splits[split]) >= limit:
            raise Dropped(f"{split}-full", f"of the split {split}, which has all its rows")
        result.ids.add(fields["id"])
        result.splits[split].append(fields)
        if match.note:
            result.notes.add(f"{match.note}.")
        return match.unused - fields.keys()

    def _split(self, row: Row, published: str) -> str:
        """The split of a published row: a held-out one keeps its split, the others go to their own.

        No row joins a published test split: it becomes a validation row.
        """
        own = row.own_split
        split = held_out(published) or ("valid" if published and own == "test" else own)
        if self._splits.setdefault(row.identity, split) != split:
            raise Dropped("held-out", "equal to a row of a published test or validation split")
        return split
