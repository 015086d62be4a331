"""Rows as JSONL: one JSON object a line."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import jsonlines

from countdown_rl.errors import InputError
from countdown_rl.puzzle import rules
from countdown_rl.tasks import task
from countdown_rl.tasks.response_format import STYLES


def read_rows(path: Path) -> list[dict[str, Any]]:
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


def iter_rows(stream: IO[bytes], source: str) -> Iterator[dict[str, Any]]:
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
        for row in jsonlines.Reader(lines(), loads=_decoded).iter(allow_none=True, skip_empty=True):
            yield check(row)
    except jsonlines.InvalidLineError as error:
        raise InputError(f"{source}, line {number}: not JSON ({_short(error.__cause__ or error)}).") from error
    except InputError as error:
        raise InputError(f"{source}, line {number}: {str(error).rstrip('.')}.") from error


def check(row: Any) -> dict[str, Any]:
    """*row* itself, where it is a row of its task.

    Raises:
        InputError: the text says what is wrong, without a place.
    """
    if not isinstance(row, dict):
        raise InputError("not a JSON object")
    if (row.get("style") or "begun") not in STYLES:
        raise InputError(f"`style` should be one of {', '.join(STYLES)}")
    if task.of_row(row).name == "gsm8k":
        if not isinstance(row.get("question"), str) or not isinstance(row.get("gold"), str):
            raise InputError("a gsm8k row needs `question` and `gold`, both text")
        return row
    for key in ("nums", "target"):
        if key not in row:
            raise InputError(f"there is no `{key}`; `countdown-rl gen-data --from` imports what others publish")
    rules.of_row(row)
    return row


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
