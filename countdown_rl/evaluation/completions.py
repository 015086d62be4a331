"""Completions made elsewhere: the row of each record, and its completions."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from countdown_rl.core.errors import InputError, UsageError
from countdown_rl.core.types import Record
from countdown_rl.inference.engine import Completion
from countdown_rl.tasks import files, records, registry
from countdown_rl.tasks.task import Row

#: The name of standard input in messages.
STDIN = "standard input"
#: Fields of a row that say by which rules it is answered.
_RULES = ("rule", "operators")
_Key = TypeVar("_Key")


class Answered(NamedTuple):
    """A row with completions, and the place of their record in the file."""

    row: Row
    completions: list[Completion]
    place: str


class Reader:
    """Reader of completions: finds the row and the completions of each record.

    A record names its row by the row's fields, by its id in *known*, or by its prompt.

    Args:
        known: the rows that the completions belong to; none if the file has them.
        fields: where a record has what, as ``NAME=EXPR``.
        expression: where the records are in a JSON document.
        settings: fields of the rows: ``style`` replaces theirs, ``rule`` and ``operators`` fill theirs.
    """

    def __init__(
        self,
        known: Sequence[Row] = (),
        fields: Sequence[str] = (),
        expression: str = "",
        **settings: str | None,
    ) -> None:
        self._settings = {name: value for name, value in settings.items() if value is not None}
        self._reader = records.Reader(fields, own=self._settings)
        self._expression = expression
        known = [self._with_settings(row) for row in known]
        self.rows = {row.id: row for row in known}
        self._by_name = _unique((str(row["id"]), row) for row in known if "id" in row)
        self._by_prompt = _unique((row.prompt().user.strip(), row) for row in self.rows.values())
        self._by_question = _unique((_question(row), row) for row in self.rows.values())
        self._task = ""

    def read(self, source: str, on_error: files.OnError = files.stop) -> Iterator[Answered]:
        """The completions of the file or directory *source*, or of stdin for ``-``.

        *on_error* is called with the fault of a record that has none.
        """
        if source == "-":
            placed = files.read(sys.stdin.buffer, STDIN, self._expression, on_error)
        else:
            placed = files.records(Path(source), self._expression, on_error)
        for place, record in placed:
            try:
                with files.at(place):
                    if self._reader.is_repeated(record):
                        continue
                    row, completions = self._answered(record)
            except InputError as error:
                on_error(error)
            else:
                yield Answered(row, completions, place)

    def _answered(self, record: Record) -> tuple[Row, list[Completion]]:
        if self._reader.has_failed(record):
            return self._row(record), [Completion("", None, None, {"reason": "failed"})]
        turns = self._reader.completions(record)
        row = self._row(record)
        if self._task not in ("", row.task):
            raise InputError(
                f"it is of the task {row.task}, others are of {self._task}; give each its own file"
            )
        self._task = row.task
        completions = []
        usage = self._reader.usage(record, len(turns))
        for turn, (tokens, ended) in zip(turns, usage, strict=True):
            completions.append(Completion(turn.text(row.style), tokens, ended))
        return row, completions

    def _row(self, record: Record) -> Row:
        """The row of *record*.

        Raises InputError if its fields, id and prompt name none, or different ones.
        """
        asked, text = records.asked(self._reader.prompt(record, records.QUESTIONS))
        prompted = self._by_prompt.get(text)
        known_as = self._reader.id(record)
        named = None if known_as is None else self._by_name.get(str(known_as))
        try:
            row = self._with_settings(self._reader.row(record))
        except records.NoRowError as error:
            stated = named or prompted or (asked and self._with_settings(asked))
            if stated is None:
                raise InputError(_unknown(record, str(error), known_as)) from error
            row = stated
        else:
            if asked and not row.get("rule") and _question(row) == _question(asked):
                row = self._with_settings(type(row)({**asked, **row}))
            if named and _question(named) != _question(row):
                raise InputError(
                    f"its fields are {row.headline}, its id is that of {named.headline}; correct one"
                )
        for other in (prompted, asked):
            if other and not self._is_same(row, other):
                noun = registry.task(row.task).noun
                raise InputError(
                    f"its prompt asks another {noun} than {row.headline}, or by other rules; "
                    "correct one"
                )
        if not self.rows:
            return row
        known = self.rows.get(row.id)
        if known is None and row.keys().isdisjoint(_RULES):
            known = self._by_question.get(_question(row))
        if known is None:
            raise InputError(f"{row.headline} is not in --data")
        return known

    def _is_same(self, row: Row, asked: Row) -> bool:
        if self._settings.keys().isdisjoint(_RULES):
            return row.id == asked.id
        return _question(row) == _question(asked)

    def _with_settings(self, row: Row) -> Row:
        for name, value in self._settings.items():
            if name not in registry.task(row.task).fields:
                raise UsageError(f"rows of {row.task} have no {name}; leave it out.", option=name)
            other = type(row)({**row, name: value})
            if name != "style" and row.get(name) and other.id != row.id:
                raise InputError(
                    f"its `{name}` is {row[name]}, and --{name} is {value}; leave one out"
                )
            row = other
        return row


def _question(row: Row) -> tuple[str, str, str]:
    """The task of *row*, and what it asks, whatever its rules."""
    return row.task, row.identity, row.reference


def _unique(pairs: Iterable[tuple[_Key, Row]]) -> dict[_Key, Row | None]:
    """The row of each key; None if several have it."""
    rows: dict[_Key, Row | None] = {}
    for key, row in pairs:
        other = rows.setdefault(key, row)
        if other and other.id != row.id:
            rows[key] = None
    return rows


def _unknown(record: Record, fault: str, known_as: object) -> str:
    """The sentence about a *record* that names no row."""
    remedy = "--field nums=EXPR and --field target=EXPR (numbers(FIELD) has the numbers in a text)"
    if known_as is not None:
        remedy = f"an id of exactly one row of --data, or {remedy}"
    return (
        f"its fields ({fault}), its id and its prompt name no row for certain; its fields are "
        f"{', '.join(record)}; give {remedy}"
    )
