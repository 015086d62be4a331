"""JSON Lines files of rows: one JSON object a line."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import jsonlines

from countdown_rl.errors import InputError
from countdown_rl.tasks.registry import parse_row
from countdown_rl.tasks.task import Row


def read_rows(path: Path) -> list[Row]:
    """The rows of a JSONL file, validated by their task.

    Raises:
        InputError: the file is missing or empty, or a line is no row; the text names the file, the line and the
            fault.
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
        for fields in jsonlines.Reader(lines(), loads=_decode).iter(allow_none=True, skip_empty=True):
            yield parse_row(fields)
    except jsonlines.InvalidLineError as error:
        cause = " ".join(str(error.__cause__ or error).split())[:80]
        raise InputError(f"{source}, line {number}: not JSON ({cause}).") from error
    except InputError as error:
        raise InputError(f"{source}, line {number}: {str(error).rstrip('.')}.") from error


def read_objects(path: Path) -> list[dict[str, Any]]:
    """The objects in a file that this tool wrote. Read as bytes: a text's lines also end at other characters, which a
    model may have written."""
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write *rows* as JSONL, with keys in their order."""
    with Path(path).open("w", encoding="utf-8", newline="\n") as stream:
        writer(stream).write_all(rows)


def append_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Append *rows* to the JSONL file *path*."""
    with Path(path).open("a", encoding="utf-8", newline="\n") as stream:
        writer(stream).write_all(rows)


def writer(stream: IO[str]) -> jsonlines.Writer:
    """A writer of rows to *stream*."""
    return jsonlines.Writer(stream, dumps=_encode)


_encode_text = json.JSONEncoder(ensure_ascii=False).encode  # `json.dumps` would make an encoder for every row
_encode_ascii = json.JSONEncoder().encode
#: Half a surrogate pair, which JSON may hold and UTF-8 may not, and controls that a terminal would obey.
_CONTROL = re.compile("[\x80-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]").search


def _encode(row: Any) -> str:
    line = _encode_text(row)
    return _encode_ascii(row) if not line.isascii() and _CONTROL(line) else line


def _decode(line: str | bytes) -> Any:
    try:
        return json.loads(line)
    except RecursionError as error:
        raise ValueError("nested too deep") from error
