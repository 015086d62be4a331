"""Read the records of a file: JSON Lines, a JSON array or object, CSV, Parquet or Arrow, plain or compressed.

The content decides on the format. Memory does not grow with the file, except for JSON that is not one object a line,
and Parquet from a pipe.
"""

import bz2
import csv
import gzip
import io
import json
import lzma
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO

from countdown_rl.core import artifacts
from countdown_rl.core.errors import InputError, first_line
from countdown_rl.core.manifest import MANIFEST

#: Rows of a table that are decoded at once.
BATCH = 1_024
#: The key of an object that holds the rows of a file.
LISTS = ("data", "rows", "examples", "instances", "records", "samples", "generations", "results")
KINDS = "JSON Lines, JSON, CSV, Parquet and Arrow, plain or compressed by gzip, bzip2, xz or zstd"

#: Faults of a stream; those of pyarrow are among them.
_FAULTS = (
    OSError,
    EOFError,
    ValueError,
    NotImplementedError,
    csv.Error,
    zlib.error,
    lzma.LZMAError,
)
#: Called with the fault of a single record; it raises it, or returns so that the next ones are read.
OnError = Callable[[InputError], None]
#: Lines with their numbers.
Lines = Iterator[tuple[int, str]]
#: The fields of a record, after its place for error messages, such as ``rows.jsonl, line 3``.
Record = tuple[str, dict[str, Any]]


@contextmanager
def at(place: str) -> Iterator[None]:
    """Begin an InputError about a record with its *place*."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{place}: {str(error).rstrip('.')}.") from error


def records(path: Path) -> Iterator[Record]:
    """The records of the file at *path*, at least one."""
    if path.is_dir():
        kind = (
            "is a data directory"
            if (path / MANIFEST).is_file()
            else f"has no {MANIFEST}, so it is no data directory"
        )
        raise InputError(f"{path} {kind}; give one of its files, such as {path}/train.jsonl.")
    if not path.is_file():
        raise InputError(
            f"{path} does not exist or is no file; check the path (`countdown-rl gen-data` makes data)."
        )
    artifacts.check_no_pointer(path, InputError)
    record = None
    with path.open("rb") as stream:
        for record in read(stream, str(path)):
            yield record
    if record is None:
        raise InputError(f"{path} is empty: it has no rows.")


def stop(error: InputError) -> None:
    """Raise *error*."""
    raise error


def read(stream: BinaryIO, source: str, on_error: OnError = stop) -> Iterator[Record]:
    """The records of *stream*, which *source* names. Raises InputError if it cannot be read any further."""
    try:
        data = _decompressed(stream)
        head = data.peek(8)[:8]
        if head.startswith((b"PAR1", b"ARROW1", b"\xff\xff\xff\xff")):
            yield from _table(data, head, source)
            return
        text = io.TextIOWrapper(
            data, json.detect_encoding(head[:4]), errors="surrogateescape", newline="\n"
        )
        lines = ((number, line) for number, line in enumerate(text, 1) if line.strip())
        if (first := next(lines, None)) is not None:
            is_json = first[1].lstrip()[:1] in ("{", "[") or not {".json", ".jsonl"}.isdisjoint(
                Path(source).suffixes
            )
            # A cell of a table may have empty lines.
            rest = lines if is_json else enumerate(text, first[0] + 1)
            yield from (_json if is_json else _csv)(chain([first], rest), source, on_error)
    except InputError:
        raise
    except _FAULTS as error:
        raise InputError(f"{source} cannot be read: {first_line(error)}.") from error


def _decompressed(stream: BinaryIO) -> Any:
    data: Any = stream if hasattr(stream, "peek") else io.BufferedReader(stream)
    head = data.peek(6)[:6]
    for magic, decompress in (
        (b"\x1f\x8b", gzip.open),
        (b"BZh", bz2.open),
        (b"\xfd7zXZ\0", lzma.open),
    ):
        if head.startswith(magic):
            return decompress(data)
    if head.startswith(b"(\xb5/\xfd"):
        import pyarrow

        return io.BufferedReader(pyarrow.CompressedInputStream(data, "zstd"))
    return data


def _json(lines: Lines, source: str, on_error: OnError) -> Iterator[Record]:
    """The records of JSON: an object a line, or one value in the whole file."""
    head, first, by_line = list(islice(lines, 2)), None, True
    with suppress(InputError):
        first = _loads(head[0][1])
    items: Iterator[tuple[str, Any]] = (
        (f"{source}, line {number}", line) for number, line in chain(head, lines)
    )
    if len(head) == 1 or not isinstance(first, dict):
        head += lines
        try:
            items, by_line = _items(_loads("".join(line for _, line in head)), source), False
        except InputError as error:
            if head[0][1].strip() in ("{", "["):  # else the line may be the only faulty one
                raise InputError(f"{source}: {error}.") from error
    for place, item in items:
        try:
            fields = _loads(item) if by_line else item
            if not isinstance(fields, dict):
                raise InputError("not a JSON object")
        except InputError as error:
            on_error(InputError(f"{place}: {error}."))
        else:
            yield place, fields


def _items(value: Any, source: str) -> Iterator[tuple[str, Any]]:
    """The rows of a file that is one JSON *value*: those of a list, or of an object that holds one; else the value."""
    around: dict[str, str] = {}
    if isinstance(value, dict) and (
        key := next((key for key in LISTS if _is_list_of_objects(value.get(key))), None)
    ):
        around = {
            name: text for name, text in value.items() if isinstance(text, str)
        }  # such as the split
        value = value[key]
    value = _by_column(value)
    if not _is_list_of_objects(value):
        yield f"{source}, line 1", value
        return
    for row, item in enumerate(value, 1):
        yield f"{source}, row {row}", around | item if isinstance(item, dict) else item


def _by_column(value: Any) -> Any:
    """The rows of a table that is an object of columns or of rows by index, as of pandas; other values unchanged."""
    columns = [_by_index(column) for column in value.values()] if isinstance(value, dict) else []
    lengths = {
        len(column) if isinstance(column, list) and not _is_chat(column) else 0
        for column in columns
    }
    if len(columns) < 2 or len(lengths) > 1 or 0 in lengths:
        return _by_index(value)
    return [dict(zip(value, row, strict=True)) for row in zip(*columns, strict=True)]


def _by_index(value: Any) -> Any:
    return (
        [*value.values()]
        if isinstance(value, dict) and value and all(map(str.isdecimal, value))
        else value
    )


def _is_chat(column: list[Any]) -> bool:
    return any(isinstance(cell, dict) and not {"role", "from"}.isdisjoint(cell) for cell in column)


def _is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(item, dict) for item in value)


def _loads(text: str) -> Any:
    try:
        text.encode()  # bytes that are not UTF-8
        value = json.loads(text)
        if isinstance(value, dict) and text.count('":') + text.count('" :') > len(value):
            json.loads(text, object_pairs_hook=_check_unique)
        return value
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON ({' '.join(str(error).split())[:80]})") from error


def _check_unique(pairs: list[tuple[str, Any]]) -> None:
    for name, count in Counter(name for name, _ in pairs).items():
        if count > 1:
            raise ValueError(f"the key {name!r} occurs twice")


def _csv(lines: Lines, source: str, on_error: OnError) -> Iterator[Record]:
    """The records of a table with a header, with commas, semicolons, tabs or bars between its cells, which are text."""
    csv.field_size_limit(1 << 28)
    number, header = next(lines)
    delimiter = max(",;\t|", key=header.count)
    if "\0" in header or _NOT_UTF8(header) or not (delimiter in header or _NAME(header)):
        raise InputError(f"{source} cannot be read: it is none of {KINDS}.")
    table = csv.DictReader(
        chain([header], (line for _, line in lines)), delimiter=delimiter, strict=True
    )
    table.fieldnames = [name.strip() for name in table.fieldnames or ()]
    for fields in table:
        place = f"{source}, line {number + table.line_num - 1}"
        fields.pop("", None)  # the index that pandas wrote
        cells = fields.values()
        if None in fields or None in cells:
            on_error(InputError(f"{place}: there are not as many cells as in the header."))
        elif any(map(_NOT_UTF8, cells)):
            on_error(InputError(f"{place}: not UTF-8."))
        else:
            yield place, fields


_NAME = re.compile(r"\"?[\w.-]+\"?\s*").fullmatch
_NOT_UTF8 = re.compile("[\ud800-\udfff]").search  # what `surrogateescape` makes of other bytes


def _table(data: Any, head: bytes, source: str) -> Iterator[Record]:
    """The rows of a Parquet or Arrow file, or of an Arrow stream, as ``datasets`` saves."""
    import pyarrow.ipc
    import pyarrow.parquet

    batches: Iterable[Any]
    if head[:4] == b"\xff\xff\xff\xff":
        batches = pyarrow.ipc.open_stream(data)
    else:
        data = data if data.seekable() else io.BytesIO(data.read())
        if head[:4] == b"PAR1":
            batches = pyarrow.parquet.ParquetFile(data).iter_batches(BATCH)
        else:
            arrow = pyarrow.ipc.open_file(data)
            batches = map(arrow.get_batch, range(arrow.num_record_batches))
    parts = (
        batch.slice(start, BATCH) for batch in batches for start in range(0, batch.num_rows, BATCH)
    )
    for row, fields in enumerate(chain.from_iterable(part.to_pylist() for part in parts), 1):
        yield f"{source}, row {row}", fields
