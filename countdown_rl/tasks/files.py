"""Records of a file: JSON Lines, a JSON array or object, CSV, Parquet or Arrow, plain or compressed.

The format is found by the content; the name decides only where that could be two. Memory does not grow with the file,
except for JSON that is not one object a line, and Parquet from a pipe.
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
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from countdown_rl.core.errors import InputError, first_line

#: Bytes that a file may expand to, or times its size: one row of gigabytes takes all memory.
MAX_BYTES, MAX_RATIO = 1 << 28, 100
#: Rows of a Parquet file that are decoded at once.
BATCH = 1_024
#: The key of an object that holds the rows of a file.
LISTS = ("data", "rows", "examples", "instances", "records", "samples")
KINDS = "JSON Lines, JSON, CSV, Parquet and Arrow, plain or compressed by gzip, bzip2, xz or zstd"

#: Called with the fault of a single record; it raises it, or returns so that the next ones are read.
OnError = Callable[[InputError], None]
#: Lines with their numbers.
Lines = Iterator[tuple[int, str]]


class Record(NamedTuple):
    """The fields of a record, after its place for error messages, such as ``rows.jsonl, line 3``."""

    place: str
    fields: dict[str, Any]


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
    record = None
    with path.open("rb") as stream:
        for record in read(stream, str(path)):
            yield record
    if record is None:
        raise InputError(f"{path} is empty: it has no rows.")


def _raise(error: InputError) -> None:
    raise error


def read(stream: BinaryIO, source: str, on_error: OnError = _raise) -> Iterator[Record]:
    """The records of *stream*, which *source* names.

    Raises:
        InputError: the stream cannot be read any further.
    """
    try:
        data, compressed = _decompressed(stream)
        head = data.peek(8)[:8]
        if head.startswith((b"PAR1", b"ARROW1", b"\xff\xff\xff\xff")):
            yield from _table(data, head, source)
        elif head[:4] == b"PK\x03\x04":
            raise InputError(f"{source} is a zip archive or a spreadsheet; give the file in it, or save it as CSV.")
        elif head == b"version ":
            raise InputError(f"{source} is the pointer to a file in Git LFS; run `git lfs pull` where it is from.")
        else:
            encoding = json.detect_encoding(head[:4])
            text = io.TextIOWrapper(data, encoding, errors="surrogateescape", newline="\n")
            yield from _text(_lines(text, _limit(stream) if compressed else sys.maxsize, source), source, on_error)
    except InputError:
        raise
    except (OSError, EOFError, ValueError, NotImplementedError, zlib.error, lzma.LZMAError) as error:  # pyarrow's too
        raise InputError(f"{source} cannot be read: {first_line(error)}") from error


def _decompressed(stream: BinaryIO) -> tuple[Any, bool]:
    """*stream* without its compression, and whether it had one."""
    data: Any = stream if hasattr(stream, "peek") else io.BufferedReader(stream)
    head = data.peek(6)[:6]
    for magic, decompress in ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ\0", lzma.open)):
        if head.startswith(magic):
            return decompress(data), True
    if head.startswith(b"(\xb5/\xfd"):
        import pyarrow

        return io.BufferedReader(pyarrow.CompressedInputStream(data, "zstd")), True
    return data, False


def _limit(stream: BinaryIO) -> int:
    """The bytes that *stream* may expand to."""
    try:
        status = os.fstat(stream.fileno())
    except OSError:  # bytes in memory
        return MAX_BYTES
    return max(MAX_BYTES, MAX_RATIO * status.st_size * stat.S_ISREG(status.st_mode))


def _check_size(left: int, source: str) -> None:
    if left < 0:
        raise InputError(f"{source} expands to more than {MAX_RATIO} times its size; give it without compression.")


def _lines(stream: io.TextIOWrapper, limit: int, source: str) -> Lines:
    """The lines of *stream*, which have at most *limit* characters together; bytes not of UTF-8 are surrogates."""
    number = 0
    while line := stream.readline(min(limit + 1, sys.maxsize)):
        number, limit = number + 1, limit - len(line)
        _check_size(limit, source)
        yield number, line


def _text(lines: Lines, source: str, on_error: OnError) -> Iterator[Record]:
    """The records of JSON or CSV."""
    for number, first in lines:
        if first.strip():
            named_json = _has_suffix(source, ".json", ".jsonl", ".ndjson")
            kind = _json if named_json or first.lstrip()[:1] in ("{", "[") else _csv
            yield from kind(chain([(number, first)], lines), source, on_error)


def _has_suffix(source: str, *suffixes: str) -> bool:
    """True where one of *suffixes* ends the name, but for that of a compression."""
    return not set(suffixes).isdisjoint(Path(source.lower()).suffixes[-2:])


def _json(lines: Lines, source: str, on_error: OnError) -> Iterator[Record]:
    """The records of JSON: an object a line, or one value in the whole file."""
    lines = ((number, line) for number, line in lines if line.strip())
    head = list(islice(lines, 2))
    first = head[0][1]
    goes_on = _goes_on(first)
    if len(head) == 1 or goes_on:
        head += lines
        try:
            value = _loads("".join(line for _, line in head))
        except InputError as error:
            if goes_on and first.lstrip()[:1] == "[":
                number = head[min(getattr(error.__cause__, "lineno", 1), len(head)) - 1][0]
                raise InputError(f"{source}, line {number}: {error}.") from error
        else:
            yield from _checked(_items(value, source, head[0][0]), lambda item: item, on_error)
            return
    yield from _checked(((f"{source}, line {number}", line) for number, line in chain(head, lines)), _loads, on_error)


def _checked(items: Iterable[tuple[str, Any]], load: Callable[[Any], Any], on_error: OnError) -> Iterator[Record]:
    """The records that *load* makes of *items*, each after its place, without the faulty ones."""
    for place, item in items:
        try:
            fields = load(item)
            if not isinstance(fields, dict):
                raise InputError("not a JSON object")
        except InputError as error:
            on_error(InputError(f"{place}: {error}."))
        else:
            yield Record(place, fields)


def _items(value: Any, source: str, number: int) -> Iterator[tuple[str, Any]]:
    """The rows of a file that is one JSON *value*: those of a list, or of an object that holds one; else the value."""
    around: dict[str, str] = {}
    # A file of lines has one row, even if it has such a field.
    if isinstance(value, dict) and not _has_suffix(source, ".jsonl", ".ndjson"):
        keys = [key for key in LISTS if _is_list_of_objects(value.get(key))]
        if keys[1:]:
            raise InputError(f"{source}: there are rows in `{keys[0]}` and in `{keys[1]}`; give a file of each.")
        if keys:
            around = {key: text for key, text in value.items() if isinstance(text, str)}  # such as the split
            value = value[keys[0]]
    if not _is_list_of_objects(value):
        yield f"{source}, line {number}", value
        return
    for row, item in enumerate(value, 1):
        yield f"{source}, row {row}", around | item if isinstance(item, dict) else item


def _is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(item, dict) for item in value)


def _goes_on(line: str) -> bool:
    """True where the JSON value in *line* goes on in the next one."""
    try:
        _loads(line)
    except InputError as error:
        cause = error.__cause__
        return isinstance(cause, json.JSONDecodeError) and cause.pos >= len(line.rstrip())
    return False


def _loads(text: str) -> Any:
    try:
        text.encode()  # bytes that are not UTF-8
        return _DECODER.decode(text)
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON ({' '.join(str(error).split())[:80]})") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The fields *pairs*. Raises InputError where a name stands twice."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        _check_names([name for name, _ in pairs])
    return fields


def _check_names(names: Sequence[str]) -> None:
    if repeated := next((name for name in names if name and names.count(name) > 1), None):
        raise InputError(f"`{repeated}` is there twice")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique)  # `json.loads` would make one for every line


def _csv(lines: Lines, source: str, on_error: OnError) -> Iterator[Record]:
    """The records of a table with a header, with commas, semicolons, tabs or bars between its cells, which are text."""
    csv.field_size_limit(MAX_BYTES)
    number, header = next(lines)
    delimiter = max(",;\t|", key=header.count)
    if "\0" in header or _NOT_UTF8(header) or not (delimiter in header or _NAME(header)):
        raise InputError(f"{source} cannot be read: it is none of {KINDS}.")
    table = csv.DictReader(chain([header], (line for _, line in lines)), delimiter=delimiter, strict=True)
    place = f"{source}, line {number}"
    try:
        names = [name.strip() for name in table.fieldnames or ()]
        with at(place):
            _check_names(names)
        table.fieldnames = names
        for fields in table:
            place = f"{source}, line {number + table.line_num - 1}"
            fields.pop("", None)  # the index that pandas wrote
            cells = fields.values()
            if None in fields or None in cells:
                on_error(InputError(f"{place}: there are not as many cells as in the header."))
            elif any(map(_NOT_UTF8, cells)):
                on_error(InputError(f"{place}: not UTF-8."))
            else:
                yield Record(place, fields)
    except csv.Error as error:
        raise InputError(f"{source}, line {number + table.reader.line_num - 1}: not CSV ({error}).") from error


_NAME = re.compile(r"\"?[\w.-]+\"?\s*").fullmatch
_NOT_UTF8 = re.compile("[\ud800-\udfff]").search  # what `surrogateescape` makes of other bytes


def _table(data: Any, head: bytes, source: str) -> Iterator[Record]:
    """The rows of a Parquet or Arrow file, or of an Arrow stream, as ``datasets`` saves."""
    import pyarrow.ipc
    import pyarrow.parquet

    left = _limit(data)
    batches: Iterable[Any]
    if head[:4] == b"\xff\xff\xff\xff":
        batches = pyarrow.ipc.open_stream(data)
    else:
        data = data if data.seekable() else io.BytesIO(data.read())
        if head[:4] == b"PAR1":
            file = pyarrow.parquet.ParquetFile(data)
            groups = [file.metadata.row_group(index) for index in range(file.num_row_groups)]
            columns = [group.column(index) for group in groups for index in range(group.num_columns)]
            sizes = [column.total_uncompressed_size + 8 * column.num_values for column in columns]
            _check_size(left - sum(sizes), source)
            # A batch that no repeated value can make large.
            batches = file.iter_batches(max(1, min(BATCH, MAX_BYTES // 16 // max(sizes, default=1))))
        else:
            arrow = pyarrow.ipc.open_file(data)
            batches = map(arrow.get_batch, range(arrow.num_record_batches))
    row = 0
    for batch in batches:
        left -= batch.nbytes
        _check_size(left, source)
        with at(source):
            _check_names(batch.schema.names)
        for start in range(0, batch.num_rows, BATCH):
            for fields in batch.slice(start, BATCH).to_pylist():
                row += 1
                yield Record(f"{source}, row {row}", fields)
