"""Read the records of a file: JSON Lines, JSON or CSV, plain or gzipped.

The library ``datasets`` reads Parquet and Arrow files, directories and shards. JSON Lines and CSV
are streamed.
"""

import csv
import gzip
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any

import jmespath
from jmespath.exceptions import JMESPathError

from countdown_rl.core import artifacts
from countdown_rl.core.errors import CountdownError, InputError, UsageError, first_line
from countdown_rl.core.manifest import MANIFEST
from countdown_rl.core.types import JsonObject, Record
from countdown_rl.tasks.splits import held_out

KINDS = "JSON Lines, JSON and CSV, plain or gzipped, Parquet and Arrow"
#: The first bytes of Parquet and Arrow files, and of Arrow streams.
_TABLES = {b"PAR1": "parquet", b"ARRO": "arrow", b"\xff\xff\xff\xff": "arrow"}
#: Keys of JSON documents of other tools, and the key among them that holds the records.
_DOCUMENTS = (
    ({"eval", "samples"}, "samples"),  # a log of Inspect
    ({"average_best_score", "results"}, "results"),  # an evaluation of reasoning-gym
)
_LARGEST_CELL = 1 << 28

#: Called with the fault of a single record; it raises it, or returns so that the next ones are
#: read.
OnError = Callable[[InputError], None]
#: A record after its place for error messages, such as ``rows.jsonl, line 3``.
PlacedRecord = tuple[str, Record]
#: The number of a line, and the line.
_Line = tuple[int, bytes]
#: The rows of a data set, by the name of their split.
_Splits = Mapping[str, Iterable[JsonObject]]


@contextmanager
def at(place: str) -> Iterator[None]:
    """Begin an InputError about a record with its *place*."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{place}: {str(error).rstrip('.')}.") from error


def stop(error: InputError) -> None:
    """Raise *error*."""
    raise error


def records(path: Path, expression: str = "", on_error: OnError = stop) -> Iterator[PlacedRecord]:
    """The records of the file or directory *path*, at least one.

    Args:
        path: a file of any format, or a directory of a data set.
        expression: where the records are in a JSON document, in JMESPath; "" for a list of records.
        on_error: called with the fault of each record that cannot be read.
    """
    if (path / MANIFEST).is_file():
        raise InputError(
            f"{path} is an artifact; give one of its files, such as {path}/train.jsonl."
        )
    if not path.exists():
        raise InputError(
            f"{path} does not exist; check the path (`countdown-rl gen-data` makes puzzles)."
        )
    is_empty = True
    for record in _of_path(path, expression, on_error):
        is_empty = False
        yield record
    if is_empty:
        raise InputError(f"{path} is empty: it has no rows.")


def _of_path(path: Path, expression: str, on_error: OnError) -> Iterator[PlacedRecord]:
    if path.is_dir():
        yield from data_set(path, str(path))
        return
    artifacts.check_no_pointer(path, InputError)
    with path.open("rb") as stream:
        yield from read(stream, str(path), expression, on_error)


def read(
    stream: Any, source: str, expression: str = "", on_error: OnError = stop
) -> Iterator[PlacedRecord]:
    """The records of the binary *stream*, which *source* names, as :func:`records`.

    The stream has ``peek``, as standard input has, which typeshed does not know.
    """
    head = stream.peek(4)[:4]
    try:
        if head in _TABLES or head[:2] == b"PK":
            if not Path(source).is_file():
                raise InputError(f"{source} is a table; give it as a file, not as a pipe.")
            yield from _table(source, _TABLES[head]) if head in _TABLES else _inspect(source)
            return
        if head.startswith(b"\x1f\x8b"):
            stream = gzip.open(stream)  # noqa: SIM115 - the caller closes the file
        lines = ((number, line) for number, line in enumerate(stream, 1) if not line.isspace())
        first = next(lines, None)
        if first is None:
            return
        text = first[1].removeprefix(b"\xef\xbb\xbf").lstrip()
        if text[:1] in (b"{", b"[") or source.removesuffix(".gz").endswith((".json", ".jsonl")):
            yield from _json(first, lines, source, expression, on_error)
        else:
            yield from _csv(first, stream, source, on_error)
    except CountdownError:
        raise
    except (OSError, EOFError, ValueError, csv.Error) as error:
        raise InputError(f"{source} cannot be read: {first_line(error)}.") from error


def _json(
    first: _Line,
    lines: Iterator[_Line],
    source: str,
    expression: str,
    on_error: OnError,
) -> Iterator[PlacedRecord]:
    """The records of JSON: an object a line, or one document."""
    head = [first, *islice(lines, 1)]
    is_document = bool(expression) or first[1].strip() in (b"{", b"[")
    if is_document or len(head) == 1 or not _is_object(first[1]):
        head += lines
        try:
            document = _loads(b"".join(line for _, line in head))
        except InputError as error:
            if is_document:
                raise InputError(f"{source}: {error}.") from error
        else:
            yield from _items(document, source, expression, on_error)
            return
    for number, line in chain(head, lines):
        place = f"{source}, line {number}"
        try:
            fields = _loads(line)
            if not isinstance(fields, dict):
                raise InputError("not a JSON object")
        except InputError as error:
            on_error(InputError(f"{place}: {error}."))
        else:
            yield place, fields


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(_loads(line), dict)
    except InputError:
        return False


def _loads(text: bytes) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON ({' '.join(str(error).split())[:80]})") from error


def _items(
    document: object, source: str, expression: str, on_error: OnError
) -> Iterator[PlacedRecord]:
    """The records of a JSON *document*: those of a list, where *expression* says, or the document."""
    items = document
    place = f"{source}, row"
    if expression:
        try:
            items = jmespath.search(expression, document)
        except JMESPathError as error:
            raise UsageError(f"{expression}: {first_line(error)}.", option="records") from error
        if not isinstance(items, list) or not items:
            raise UsageError(
                f"{expression} gives no list of records of {source}.", option="records"
            )
    elif isinstance(document, dict):
        lists = [name for keys, name in _DOCUMENTS if keys <= document.keys()]
        if lists and isinstance(document[lists[0]], list):
            items = document[lists[0]]
        else:
            items = [document]
            place = f"{source}, line"
    if not isinstance(items, list):
        raise InputError(f"{source} has no records: it should be a list of JSON objects.")
    for number, item in enumerate(items, 1):
        if isinstance(item, dict):
            yield f"{place} {number}", item
        else:
            on_error(InputError(f"{place} {number}: not a JSON object."))


def _csv(first: _Line, stream: Any, source: str, on_error: OnError) -> Iterator[PlacedRecord]:
    """The records of a table with a header; cells are text."""
    csv.field_size_limit(_LARGEST_CELL)
    number, line = first
    header = line.decode("utf-8-sig")
    delimiter = max(",;\t|", key=header.count)
    if "\0" in header or not (delimiter in header or header.strip().isidentifier()):
        raise InputError(f"{source} cannot be read: it is none of {KINDS}.")
    names = next(csv.reader([header], delimiter=delimiter, strict=True))
    text = io.TextIOWrapper(stream, "utf-8", newline="")
    table = csv.DictReader(text, [name.strip() for name in names], delimiter=delimiter, strict=True)
    for fields in table:
        place = f"{source}, line {number + table.line_num}"
        fields.pop("", None)  # the index that pandas wrote
        if None in fields or None in fields.values():
            on_error(InputError(f"{place}: there are not as many cells as in the header."))
        else:
            yield place, fields


def _inspect(source: str) -> Iterator[PlacedRecord]:
    """The samples of an ``.eval`` log of Inspect."""
    from inspect_ai.log import read_eval_log

    with library_errors(source):
        log = read_eval_log(source)
    for number, sample in enumerate(log.samples or (), 1):
        yield f"{source}, row {number}", sample.model_dump(mode="json")


def _table(source: str, kind: str) -> Iterator[PlacedRecord]:
    """The rows of a Parquet or Arrow file."""
    from datasets import load_dataset

    with library_errors(source):
        rows = load_dataset(kind, data_files=source, split="train", streaming=True)
    yield from _rows({"": rows}, source)


def data_set(
    directory: Path, source: str, configuration: str | None = None
) -> Iterator[PlacedRecord]:
    """The rows of a data set in *directory*, those of held-out splits first.

    The field ``split`` has the name of a split, but of one for training only where there is a test
    split.
    """
    from datasets import Dataset, load_dataset, load_from_disk

    with library_errors(source):
        if any((directory / name).is_file() for name in ("state.json", "dataset_dict.json")):
            saved = load_from_disk(str(directory))
            splits: _Splits = {"": saved} if isinstance(saved, Dataset) else saved
        else:
            splits = load_dataset(str(directory), configuration, streaming=True)
    yield from _rows(splits, source)


def _rows(splits: _Splits, source: str) -> Iterator[PlacedRecord]:
    order = ("test", "valid", None)
    meanings = {name: held_out(name) for name in splits}
    number = 0
    for name in sorted(splits, key=lambda name: order.index(meanings[name])):
        stated = {"split": name} if meanings[name] or "test" in meanings.values() else {}
        with library_errors(source):
            for row in splits[name]:
                number += 1
                yield f"{source}, row {number}", stated | row


@contextmanager
def library_errors(source: str) -> Iterator[None]:
    """Turn any error of a library into an InputError about *source*."""
    try:
        yield
    except (InputError, ImportError, GeneratorExit):
        raise
    except Exception as error:
        cause = first_line(error.__cause__ or error)
        raise InputError(f"{source} cannot be read: {cause}.") from error
