"""Records of a file: JSON Lines, a JSON array or object, CSV, Parquet or Arrow, plain or compressed.

The format is found by the content; the name decides only where that could be two. Memory does not grow with the file,
except for JSON that is not one object a line, UTF-16, and Parquet from a pipe.
"""

import bz2
import csv
import gzip
import io
import json
import lzma
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from countdown_rl.core.errors import InputError, first_line

#: Bytes that a file may expand to, or times its size: one row of gigabytes takes all memory.
MAX_BYTES, MAX_RATIO = 1 << 28, 100
#: Rows of a Parquet file that are decoded at once.
BATCH = 1_024
#: The key of an object that holds the rows of a file.
LISTS = ("data", "rows", "examples", "instances", "records", "samples")

_DELIMITERS = ",;\t|"
_NAME = re.compile(r"[\w.-]+").fullmatch


#: What can be read, for error messages.
KINDS = "JSON Lines, JSON, CSV, Parquet and Arrow, plain or compressed by gzip, bzip2, xz or zstd"

#: Called with the fault of a single record; it raises it, or returns so that the next ones are read.
OnError = Callable[[InputError], None]
#: Lines with their numbers.
Lines = Iterable[tuple[int, bytes]]


class Record(NamedTuple):
    """The fields of a record, after its place for error messages, such as ``rows.jsonl, line 3``."""

    place: str
    fields: dict[str, Any]


def _stop(error: InputError) -> None:
    raise error


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
        example = next((f", such as {file.name}" for file in sorted(path.iterdir()) if file.is_file()), "")
        raise InputError(f"{path} has no manifest.json, so it is no data directory; give one of its files{example}.")
    if not path.is_file():
        raise InputError(f"{path} does not exist or is no file; `countdown-rl gen-data` makes data.")
    with path.open("rb") as stream:
        record = None
        for record in read(stream, str(path)):
            yield record
    if record is None:
        raise InputError(f"{path} is empty: it has no rows.")


def read(stream: BinaryIO, source: str, on_error: OnError = _stop) -> Iterator[Record]:
    """The records of *stream*, which *source* names.

    Raises:
        InputError: the stream cannot be read any further.
    """
    try:
        data = _decompressed(stream, source)
        head = data.peek(8)[:8]
        if head[:4] == b"PAR1":
            yield from _parquet(data, source)
        elif head[:6] == b"ARROW1" or head[:4] == b"\xff\xff\xff\xff":
            yield from _arrow(data, source)
        elif head[:4] == b"PK\x03\x04":
            raise InputError(f"{source} is a zip archive or a spreadsheet; give the file in it, or save it as CSV.")
        elif head == b"version ":
            raise InputError(f"{source} is the pointer to a file in Git LFS; run `git lfs pull` where it is from.")
        else:
            yield from _text(data, source, on_error)
    except InputError:
        raise
    except (OSError, EOFError, ValueError, NotImplementedError, zlib.error, lzma.LZMAError) as error:  # pyarrow's too
        raise InputError(f"{source} cannot be read: {first_line(error)}") from error


class _Bounded(io.RawIOBase):
    """A decompressed stream of at most *limit* bytes."""

    def __init__(self, stream: Any, limit: int, source: str) -> None:
        self._stream, self._left, self._source = stream, limit, source

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read(len(buffer))
        self._left -= len(data)
        if self._left < 0:
            raise _expands(self._source)
        buffer[: len(data)] = data
        return len(data)


def _expands(source: str) -> InputError:
    return InputError(f"{source} expands to more than {MAX_RATIO} times its size; give it without compression.")


def _limit(stream: BinaryIO) -> int:
    """The bytes that *stream* may expand to."""
    try:
        status = os.fstat(stream.fileno())
        size = status.st_size if stat.S_ISREG(status.st_mode) else 0
    except OSError:  # bytes in memory
        size = 0
    return max(MAX_BYTES, MAX_RATIO * size)


def _decompressed(stream: BinaryIO, source: str) -> io.BufferedReader:
    """*stream*, without its compression."""
    data: Any = stream if hasattr(stream, "peek") else io.BufferedReader(stream)
    head = data.peek(6)[:6]
    if head[:2] == b"\x1f\x8b":
        opened: Any = gzip.GzipFile(fileobj=data)
    elif head[:3] == b"BZh":
        opened = bz2.BZ2File(data)
    elif head == b"\xfd7zXZ\0":
        opened = lzma.LZMAFile(data)  # noqa: SIM115 - *data* is the caller's
    elif head[:4] == b"(\xb5/\xfd":
        import pyarrow

        opened = pyarrow.CompressedInputStream(data, "zstd")
    else:
        return data
    return io.BufferedReader(_Bounded(opened, _limit(stream), source))


def _text(data: io.BufferedReader, source: str, on_error: OnError) -> Iterator[Record]:
    """The records of JSON or CSV."""
    encoding = json.detect_encoding(data.peek(4)[:4])
    stream: Any = data
    if not encoding.startswith("utf-8"):
        stream = io.BytesIO(data.read().decode(encoding).removeprefix("\ufeff").encode())
    elif encoding == "utf-8-sig":
        data.read(3)
    lines = enumerate(stream, 1)
    first = next(((number, line) for number, line in lines if line.strip()), None)
    if first is None:
        return
    named_json = {".json", ".jsonl", ".ndjson"} & set(Path(source.lower()).suffixes[-2:])
    kind = _json if named_json or first[1].lstrip()[:1] in (b"{", b"[") else _csv
    yield from kind(*first, lines, source, on_error)


def _json(number: int, first: bytes, lines: Lines, source: str, on_error: OnError) -> Iterator[Record]:
    """The records of JSON: an object a line, or one value in the whole file."""
    place = f"{source}, line {number}"
    whole = None
    try:
        _loads(first)
    except json.JSONDecodeError as error:
        if error.pos >= len(error.doc.rstrip()):  # the value goes on in the next line
            rest = [line for _, line in lines]
            whole, lines = b"".join([first, *rest]), enumerate(rest, number + 1)
    except (ValueError, RecursionError):
        pass  # reported below
    else:
        following = next(((later, line) for later, line in lines if line.strip()), None)
        if following is None:
            whole = first
        else:
            lines = chain([following], lines)
    if whole is not None:
        try:
            with at(place):
                value = _loads(whole)
        except json.JSONDecodeError as error:
            if first.lstrip()[:1] == b"[":
                raise InputError(f"{source}, line {number + error.lineno - 1}: not JSON ({error.msg}).") from error
        except (ValueError, RecursionError):
            pass
        else:
            yield from _unwrapped(value, source, place, on_error)
            return
    for later, line in chain([(number, first)], lines):
        if line.strip():
            yield from _record(line, f"{source}, line {later}", on_error)


def _record(value: Any, place: str, on_error: OnError) -> Iterator[Record]:
    """The record at *place*, a JSON *value* or its text, unless it is faulty."""
    try:
        value = _loads(value) if isinstance(value, bytes) else value
        if isinstance(value, dict):
            yield Record(place, value)
            return
        fault = "not a JSON object"
    except InputError as error:
        fault = str(error)
    except (ValueError, RecursionError) as error:
        fault = f"not JSON ({' '.join(str(error).split())[:80]})"
    on_error(InputError(f"{place}: {fault}."))


def _unwrapped(value: Any, source: str, place: str, on_error: OnError) -> Iterator[Record]:
    """The records of a file that is one JSON *value*: a list of objects, an object that holds one, or a record."""
    around: dict[str, str] = {}
    # A file of lines has one row, even if it has such a field.
    lines = {".jsonl", ".ndjson"} & set(Path(source.lower()).suffixes[-2:])
    keys = [key for key in LISTS if not lines and isinstance(value, dict) and _is_list_of_objects(value.get(key))]
    if keys:
        if keys[1:]:
            raise InputError(f"{place}: there are rows in `{keys[0]}` and in `{keys[1]}`; give a file of each.")
        around = {key: text for key, text in value.items() if isinstance(text, str)}  # such as the task or the split
        value = value[keys[0]]
    items = value if _is_list_of_objects(value) else None
    for row, item in enumerate(items or [value], 1):
        fields = {**around, **item} if isinstance(item, dict) else item
        yield from _record(fields, f"{source}, row {row}" if items else place, on_error)


def _is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(item, dict) for item in value)


def _loads(text: bytes) -> Any:
    return _DECODER.decode(text.decode())


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        raise InputError(f"`{next(name for name in names if names.count(name) > 1)}` is there twice")
    return fields


_DECODER = json.JSONDecoder(object_pairs_hook=_without_duplicates)  # `json.loads` would make one for every line


def _csv(number: int, first: bytes, lines: Lines, source: str, on_error: OnError) -> Iterator[Record]:
    """The records of a table with a header, with commas, semicolons, tabs or bars between its cells, which are text."""
    csv.field_size_limit(MAX_BYTES)
    header = first.decode(errors="replace")
    if "\ufffd" in header or "\0" in header:
        raise InputError(f"{source} cannot be read: it is none of {KINDS}.")
    texts = (line.decode() for _, line in chain([(number, first)], lines))
    delimiter = max(_DELIMITERS, key=lambda mark: len(next(csv.reader([header.split("\r")[0]], delimiter=mark))))
    table = csv.reader(texts, delimiter=delimiter, strict=True)
    try:
        names = [name.strip() for name in next(table)]
        if len(names) == 1 and not _NAME(names[0]):
            raise InputError(f"{source} cannot be read: it is none of {KINDS}.")
        if repeated := next((name for name in names if name and names.count(name) > 1), None):
            raise InputError(f"{source}, line {number}: the column `{repeated}` is there twice.")
        while True:
            place = f"{source}, line {number + table.line_num}"
            if (cells := next(table, None)) is None:
                return
            if len(cells) == len(names):
                # A column without a name is an index that pandas wrote.
                yield Record(place, {name: cell for name, cell in zip(names, cells, strict=True) if name})
            elif cells:
                on_error(InputError(f"{place}: {len(cells)} cells under a header of {len(names)}."))
    except csv.Error as error:
        raise InputError(f"{source}, line {number + table.line_num - 1}: not CSV ({error}).") from error
    except UnicodeError as error:
        raise InputError(f"{source}, line {number + table.line_num}: not UTF-8 ({error}).") from error


def _parquet(data: Any, source: str) -> Iterator[Record]:
    """The rows of a Parquet file, decoded in batches that no repeated value can make large."""
    import pyarrow.parquet

    limit = _limit(data)
    file = pyarrow.parquet.ParquetFile(data if data.seekable() else io.BytesIO(data.read()))
    groups = [file.metadata.row_group(index) for index in range(file.num_row_groups)]
    columns = [group.column(index) for group in groups for index in range(group.num_columns)]
    sizes = [column.total_uncompressed_size + 8 * column.num_values for column in columns]
    if sum(sizes) > limit:
        raise _expands(source)
    rows = max(1, min(BATCH, MAX_BYTES // 16 // max(sizes, default=1)))
    yield from _rows(file.iter_batches(rows), limit, source)


def _arrow(data: Any, source: str) -> Iterator[Record]:
    """The rows of an Arrow file or stream, as ``datasets`` saves."""
    import pyarrow.ipc

    limit = _limit(data)
    if data.peek(6)[:6] == b"ARROW1":
        file = pyarrow.ipc.open_file(data if data.seekable() else io.BytesIO(data.read()))
        batches: Iterable[Any] = map(file.get_batch, range(file.num_record_batches))
    else:
        batches = pyarrow.ipc.open_stream(data)
    yield from _rows(batches, limit, source)


def _rows(batches: Iterable[Any], limit: int, source: str) -> Iterator[Record]:
    row = 0
    for batch in batches:
        limit -= batch.nbytes
        if limit < 0:
            raise _expands(source)
        names = batch.schema.names
        if repeated := next((name for name in names if names.count(name) > 1), None):
            raise InputError(f"{source}: the column `{repeated}` is there twice.")
        for start in range(0, batch.num_rows, BATCH):
            for fields in batch.slice(start, BATCH).to_pylist():
                row += 1
                yield Record(f"{source}, row {row}", fields)
