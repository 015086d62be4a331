"""Rows of files, and JSON Lines that this package writes: one JSON object a line."""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from pkgutil import resolve_name

import jsonlines

from countdown_rl.core import artifacts, typed_json
from countdown_rl.core.errors import InputError, UsageError
from countdown_rl.core.formatting import flag
from countdown_rl.core.manifest import MANIFEST
from countdown_rl.core.types import JsonObject, Record
from countdown_rl.tasks import files, records, registry
from countdown_rl.tasks.task import Row

#: Begins the name of a benchmark suite where a file of rows is given: ``suite:NAME`` or
#: ``suite:NAME/TIER``.
SUITE = "suite:"


def test_file(data: Path) -> Path:
    """The file *data*, that of the suite that it names, or that of the test split in the data
    artifact *data*.
    """
    if str(data).startswith(SUITE):
        name, _, tier = str(data).removeprefix(SUITE).partition("/")
        suites: dict[str, str] = {}
        for task in map(registry.task, registry.names()):
            suites.update(task.suites)
        if name not in suites:
            raise InputError(f"there is no suite {name}; take {' or '.join(suites)}.")
        return resolve_name(suites[name])(name, tier)
    if not (data / MANIFEST).is_file():
        return data
    artifacts.read(data, "data")
    return data / "test.jsonl"


def in_suite(row: Row) -> bool:
    """True if a suite, whose rows are of the test split alone, has a row that must be in one split
    with *row*.
    """
    return row.own_split == "test" and row.identity in _suite_identities(row.task)


@cache
def _suite_identities(name: str) -> set[str]:
    identities = set[str]()
    for suite in registry.task(name).suites:
        rows = read_rows(test_file(Path(f"{SUITE}{suite}")))
        identities.update(row.identity for row in rows)
    return identities


def suite_name(data: Path | str | None) -> str:
    """The name of the suite *data*, with its tier; "" of a file."""
    return str(data).removeprefix(SUITE) if str(data).startswith(SUITE) else ""


def suite_file(name: str) -> Path:
    """The file *name*, or that of the suite."""
    path = Path(name)
    return test_file(path) if name.startswith(SUITE) else path


def check_training(data: Path | str | None) -> None:
    """Raise UsageError if *data* is a suite."""
    if str(data).startswith(SUITE):
        test_file(Path(str(data)))  # it may be misspelled
        raise UsageError(
            f"{data} is a benchmark, which no training may see; make rows for training by gen-data."
        )


def check_rules(data: Path | None, **settings: object) -> None:
    """Raise UsageError if *settings* would grade the suite *data* by other rules."""
    if not str(data).startswith(SUITE):
        return
    for name, value in settings.items():
        if value is not None:
            raise UsageError(f"{data} states its own rules; leave {flag(name)} out.")


def read_rows(path: Path, on_note: Callable[[str], None] = lambda _: None) -> list[Row]:
    """The rows of the file or directory at *path*, all of one task.

    Args:
        path: a file of any layout.
        on_note: called with the layout, if it is that of another tool.
    """
    reader = records.Reader()
    rows: list[Row] = []
    for place, record in files.records(Path(path)):
        with files.at(place):
            row = reader.row(record)
            if rows and row.task != rows[0].task:
                raise InputError(
                    f"it is of the task {row.task}, others are of {rows[0].task}; give each its own file"
                )
            rows.append(row)
    if reader.note:
        on_note(f"{path}: {reader.note}.")
    return rows


def read_objects(path: Path) -> Iterator[JsonObject]:
    """The objects in a file that this tool wrote."""
    with path.open("rb") as lines:  # lines of text also end at other characters
        for number, line in enumerate(lines, 1):
            yield typed_json.parse(line, f"{path}, line {number},")


def write_rows(path: Path, rows: Iterable[Record], *, append: bool = False) -> None:
    """Write *rows* as JSON Lines."""
    with Path(path).open("a" if append else "w", encoding="utf-8", newline="\n") as stream:
        jsonlines.Writer(stream, dumps=encode).write_all(rows)


#: `json.dumps` would make an encoder for every row.
_encode_text = json.JSONEncoder(ensure_ascii=False).encode
_encode_ascii = json.JSONEncoder().encode
#: Half a surrogate pair, which JSON may hold and UTF-8 may not, and controls that a terminal would
#: obey.
_CONTROL = re.compile("[\x80-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]").search


def encode(row: object) -> str:
    """Return *row* as a line of JSON, in ASCII where a character is no text in UTF-8 or a terminal."""
    line = _encode_text(row)
    return _encode_ascii(row) if not line.isascii() and _CONTROL(line) else line
