"""Rows as JSONL: one JSON object a line."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import jsonlines

from countdown_rl.errors import InputError
from countdown_rl.tasks.task import Row, parse_row


def read_rows(path: Path) -> list[Row]:
    """The rows of a JSONL file, each checked to be what its task needs.

    Raises:
        InputError: the file is missing or empty, or a line is no JSON object or lacks something; the text
            names the file, the line and what is wrong with it.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path} does not exist or is no file; `countdown-rl gen-data` makes data.")
    with path.open("rb") as stream:
        rows = list(iter_rows(stream, str(path)))
    if not rows:
        raise InputError(f"{path} is empty; make it again with `countdown-rl gen-data` and a larger --n.")
    return rows


def iter_rows(stream: IO[bytes], source: str) -> Iterator[Row]:
    """The rows of *stream* one by one, in constant memory; blank lines are skipped.

    Raises:
        InputError: as :func:`read_rows`, with *source* for the file's name.
    """
    number = 0

    def lines() -> Iterator[bytes]:
        nonlocal number
        for number, line in enumerate(stream, 1):  # noqa: B007 - counted for the errors below
            yield line

    try:
        for fields in jsonlines.Reader(lines(), loads=_decoded).iter(allow_none=True, skip_empty=True):
            yield parse_row(fields)
    except jsonlines.InvalidLineError as error:
        raise InputError(f"{source}, line {number}: not JSON ({_short(error.__cause__ or error)}).") from error
    except InputError as error:
        raise InputError(f"{source}, line {number}: {str(error).rstrip('.')}.") from error


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write *rows* as JSONL, keys in the order they have."""
    with Path(path).open("w", encoding="utf-8", newline="\n") as stream:
        writer(stream).write_all(rows)


def append_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write *rows* at the end of the JSONL file *path*."""
    with Path(path).open("a", encoding="utf-8", newline="\n") as stream:
        writer(stream).write_all(rows)


def writer(stream: IO[str]) -> jsonlines.Writer:
    """What writes rows to *stream*, one by one."""
    return jsonlines.Writer(stream, dumps=_encoded)


_encode = json.JSONEncoder(ensure_ascii=False).encode  # `json.dumps` would make an encoder for every row
_escape = json.JSONEncoder().encode
_SURROGATE = re.compile("[\ud800-\udfff]").search


def _encoded(row: Any) -> str:
    line = _encode(row)
    # Half a surrogate pair can be written as an escape only; JSON may hold one, UTF-8 may not.
    return _escape(row) if not line.isascii() and _SURROGATE(line) else line


def _decoded(line: str | bytes) -> Any:
    try:
        return json.loads(line)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:80]
