"""JSON Lines files of rows: one JSON object a line."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import jsonlines

from countdown_rl import artifacts, typed_json
from countdown_rl.errors import InputError
from countdown_rl.tasks.registry import parse_row
from countdown_rl.tasks.task import Row


def test_file(data: Path) -> Path:
    """The file *data*, or that of the test split in the data artifact *data*."""
    if not data.is_dir():
        return data
    artifacts.read(data, "data")
    return data / "test.jsonl"


def read_rows(path: Path) -> list[Row]:
    """The rows of a JSONL file, validated by their task; an error names the file, the line and the fault."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path} does not exist or is no file; `countdown-rl gen-data` makes data.")
    with path.open("rb") as stream:
        rows = [parse(line, place) for place, line in numbered(stream, str(path))]
    if not rows:
        raise InputError(f"{path} is empty; make it again with `countdown-rl gen-data` and a larger --n.")
    return rows


def numbered(stream: Iterable[bytes], source: str) -> Iterator[tuple[str, bytes]]:
    """Each line of *stream* that is not blank, after its place, such as ``rows.jsonl, line 3``."""
    return ((f"{source}, line {number}", line) for number, line in enumerate(stream, 1) if line.strip())


def parse(line: bytes, place: str) -> Row:
    """The row in *line*; an error begins with *place*."""
    try:
        return parse_row(decode(line))
    except InputError as error:
        raise InputError(f"{place}: {str(error).rstrip('.')}.") from error


def decode(line: bytes) -> dict[str, Any]:
    """The JSON object in *line*."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON ({' '.join(str(error).split())[:80]})") from error
    if not isinstance(fields, dict):
        raise InputError("not a JSON object")
    return fields


def read_objects(path: Path) -> list[dict[str, Any]]:
    """The objects in a file that this tool wrote. Read as bytes: a text's lines also end at other characters, which a
    model may have written."""
    lines = path.read_bytes().splitlines()
    return [typed_json.parse(line, f"{path}, line {number},") for number, line in enumerate(lines, 1)]


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]], *, append: bool = False) -> None:
    """Write *rows* as JSONL, with keys in their order, or append them to the file."""
    with Path(path).open("a" if append else "w", encoding="utf-8", newline="\n") as stream:
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
