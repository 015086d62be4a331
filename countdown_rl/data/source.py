"""Rows of a task: sampled one by one from a seed, or imported from published ones and split like
these.
"""

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from countdown_rl.core.errors import InputError, UsageError
from countdown_rl.core.formatting import flag, plural
from countdown_rl.core.types import JsonObject, Record
from countdown_rl.data.config import DataOptions
from countdown_rl.tasks import files, records
from countdown_rl.tasks.splits import SPLITS, held_out
from countdown_rl.tasks.task import Row, Task

#: Called with the count of rows so far, and of all.
OnRow = Callable[[int, int], None]
#: Most rows of each split; None if any number.
Limits = Mapping[str, int | None]
#: Attempts at one row.
LIMIT = 10_000
#: Characters shown of a row that was dropped.
EXAMPLE = 100


def ignore(done: int, total: int) -> None:
    """Show no progress."""


class Dropped(Exception):  # noqa: N818 - not an error
    """A published row that is not imported: the reason as a key and as a phrase."""


class RowSource:
    """Rows of *task*, by its ``draw`` and ``import_row``.

    Attributes:
        splits: imported rows.
        read: number of published rows that were read, of ``total``.
        dropped: number of rows left out, by reason.
        examples: a phrase with the first of these, by reason.
        notes: the layouts of the files.
        has_moved: an imported row is in another split than its own.
    """

    def __init__(self, task: Task, options: DataOptions) -> None:
        self.task = task
        self.options = options
        self.read = self.total = 0
        self.splits: dict[str, list[JsonObject]] = {split: [] for split in SPLITS}
        self.dropped = Counter[str]()
        self.examples: dict[str, str] = {}
        self.notes = set[str]()
        self.has_moved = False
        self._ids = set[str]()  # of imported rows
        self._excluded = set[str]()  # identities
        self._split_of: dict[str, str] = {}  # by identity

    def reader(self) -> records.Reader:
        """A reader of the records of one file."""
        options = self.options
        own = [name for name in ("rule", "operators") if getattr(options, name)]
        return records.Reader(options.field, self.task, own)

    def exclude(self, rows: Iterable[files.PlacedRecord]) -> None:
        """Keep what equals one of the published *rows* out of all splits."""
        reader = self.reader()
        for place, record in rows:
            with files.at(place):
                self._excluded.add(self.excluded(reader, record))

    def excluded(self, reader: records.Reader, record: Record) -> str:
        """The identity that *record* keeps out. Raises InputError if it has no row."""
        return self.find(reader, record).identity

    def find(self, reader: records.Reader, record: Record) -> Row:
        """The row of the task in a published *record*."""
        return reader.row(record)

    def convert(self, row: Row, *, own_test: bool) -> JsonObject:
        """The fields of the published *row* as written; *own_test* for a test row of the user's
        own. Raises Dropped.
        """
        if row.identity in self._excluded and not own_test:
            raise Dropped("excluded", "in a file of rows to keep out of the training data")
        rest = {key: value for key, value in row.items() if key not in ("id", "split")}
        return {"id": row.id, "task": self.task.name, **rest}

    def rows(self, sizes: Mapping[str, int]) -> dict[str, Iterator[JsonObject]]:
        """New rows for each split, as many as *sizes* says; row i depends on the seed and i alone."""
        if self.task.draw is None:
            name = self.task.name
            raise UsageError(f"{name} has no generator; give --from or --from-hub.", option="task")
        draw = self.task.draw
        return {split: self._sampled(draw, split, count) for split, count in sizes.items()}

    def _sampled(
        self, draw: Callable[[random.Random], Record], split: str, count: int
    ) -> Iterator[JsonObject]:
        seen: set[str] = set()
        for index in range(count):
            for attempt in range(LIMIT):
                fields = draw(random.Random(f"{self.options.seed} {split} {index} {attempt}"))
                row = self.task.row({"task": self.task.name, **fields})
                if row.split == split and row.id not in seen and row.identity not in self._excluded:
                    break
            else:
                raise InputError(
                    f"After {index} rows for {split}, {LIMIT:,} draws gave no new one; lower --n."
                )
            seen.add(row.id)
            yield {"id": row.id, **row}

    def import_rows(
        self,
        rows: Iterable[files.PlacedRecord],
        n: int,
        limits: Limits,
        *,
        own_test: bool = False,
        on_row: OnRow = ignore,
    ) -> None:
        """Add published rows that are new and not dropped to ``splits``.

        Args:
            rows: published rows, those of held-out splits first.
            n: most rows to add.
            limits: most rows of a split.
            own_test: these are test rows of the user's own, which nothing keeps out.
            on_row: called with the count of rows so far, and of all.

        Raises:
            InputError: no row can be used, or a split has fewer rows than its limit.
        """
        added = 0
        reader = self.reader()
        for place, record in rows:
            if added == n:
                break
            self.read += 1
            on_row(self.read, self.total or n)
            try:
                with files.at(place):
                    self._import(reader, record, limits, own_test)
            except Dropped as dropped:
                reason, phrase = dropped.args
                self.dropped[reason] += 1
                text = json.dumps(record, ensure_ascii=False, default=str)[:EXAMPLE]
                self.examples.setdefault(reason, f"{phrase} (such as {place}, {text})")
            else:
                added += 1
        if not added:
            reasons = "; ".join(
                f"{times:,} {self.examples[reason]}" for reason, times in self.dropped.most_common()
            )
            raise InputError(
                f"None of the {plural(self.read, 'row')} can be used: {reasons or 'there are none'}."
            )
        if added == n and not self.splits["train"]:
            raise InputError(
                f"The first {plural(n, 'row')} are all held out, none for training; raise --n."
            )
        for split, limit in limits.items():
            available = len(self.splits[split])
            if limit is not None and available < limit:
                raise InputError(
                    f"{plural(available, 'row')} for {split}, fewer than {limit:,}; lower {flag(split)}."
                )

    def _import(
        self, reader: records.Reader, record: Record, limits: Limits, own_test: bool
    ) -> None:
        """Add the row in *record*. Raises Dropped if it is left out.

        A held-out row keeps its split, the others go to their own. None joins a published test
        split: it becomes a validation row.
        """
        published = reader.split(record)
        try:
            row = self.find(reader, record)
        except records.NoRowError as error:
            raise Dropped(
                "not-a-row",
                f"that are none of the task {self.task.name}: {error}; state it by --field NAME=EXPR "
                "(numbers(FIELD) has the numbers in a text)",
            ) from error
        fields = self.convert(row, own_test=own_test)
        split = "test"
        if not own_test:
            own_split = "valid" if published and row.own_split == "test" else row.own_split
            split = held_out(published) or own_split
            if self._split_of.setdefault(row.identity, split) != split:
                raise Dropped("held-out", "equal to a row of a published test or validation split")
        if fields["id"] in self._ids:
            raise Dropped("duplicate", "equal to an earlier row")
        limit = limits.get(split)
        if limit is not None and len(self.splits[split]) >= limit:
            raise Dropped(f"{split}-full", f"of the split {split}, which has all its rows")
        self._ids.add(fields["id"])
        if own_test:
            self._excluded.add(row.identity)  # from the other splits
        self.splits[split].append(fields)
        self.has_moved |= split != row.own_split
        if reader.note:
            self.notes.add(f"{reader.note}.")
