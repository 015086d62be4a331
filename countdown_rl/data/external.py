"""Import of published rows, of files or the Hub: checked one by one, split like generated rows.

Rows that are dropped are counted by the reason.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from countdown_rl.data import files, layouts
from countdown_rl.data.source import Candidate, Dropped
from countdown_rl.errors import InputError
from countdown_rl.puzzle.rules import SPLITS

#: A published row: its split ("" in a file) and its fields.
Published = tuple[str, Mapping[str, Any]]

#: Characters shown of a row that was dropped.
EXAMPLE = 100


@dataclass
class Import:
    """Rows by split, and the number of rows read.

    Attributes:
        dropped: the number of rows left out, by reason.
        examples: a phrase with the first of them, by reason.
        unused: the columns of the first row that neither are in the data nor were read.
    """

    splits: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {split: [] for split in SPLITS})
    read: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    unused: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return sum(map(len, self.splits.values()))


def from_file(path: Path, on_note: Callable[[str], None] = lambda _: None) -> Iterator[Published]:
    """The rows of a file in any format and layout; *on_note* is called with where they lie in the records."""
    notes = set[str]()
    for place, record in files.records(Path(path)):
        with files.at(place):
            fields, note = layouts.lifted(record)
        if note and note not in notes:
            notes.add(note)
            on_note(f"{path}: {note}.")
        yield layouts.split_of(record), fields


def from_hub(name: str, revision: str | None) -> tuple[str, Iterator[Published]]:
    """The commit of a Hub data set at *revision*, and its rows."""
    from datasets import get_dataset_config_names, load_dataset
    from huggingface_hub import HfApi

    with _read_errors(name):
        commit = str(HfApi().dataset_info(name, revision=revision).sha)
        configurations = get_dataset_config_names(name, revision=commit)
        configuration = "main" if "main" in configurations else configurations[0]
        splits = load_dataset(name, configuration, revision=commit, streaming=True)

    def rows() -> Iterator[Published]:
        with _read_errors(name):
            # The test split first: it stays whole where a problem is in another split as well.
            for split, published in sorted(splits.items(), key=lambda item: item[0] != "test"):
                for row in published:
                    yield str(split), row

    return commit, rows()


@contextmanager
def _read_errors(source: str) -> Iterator[None]:
    """Turn any error of a library into an InputError about *source*."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        from huggingface_hub.errors import HfHubHTTPError, HTTPError

        if isinstance(error, ConnectionError | HTTPError) and not isinstance(error, HfHubHTTPError):
            raise InputError(
                f"{source} cannot be read, as the Hub cannot be reached; check the network, or give a downloaded file "
                "with --from."
            ) from error
        text = " ".join(str(error.__cause__ or error).split())[:160] or type(error).__name__
        raise InputError(f"{source} cannot be read: {text}.") from error


def import_rows(
    rows: Iterable[Published],
    n: int,
    candidate: Callable[[str, Mapping[str, Any]], Candidate],
    limits: Mapping[str, int | None],
    on_row: Callable[[int], None] = lambda count: None,
) -> Import:
    """The first *n* rows that are new and not dropped, of a split at most its limit.

    Args:
        candidate: as :meth:`RowSource.candidate`.
        on_row: called with the count of rows so far.
    """
    result = Import()
    seen: set[str] = set()
    for published_split, fields in rows:
        if len(result) == n:
            break
        result.read += 1
        on_row(len(result))
        try:
            reading = layouts.Tracked(fields)
            row = candidate(published_split, reading)
            limit = limits.get(row.split)
            if row.id in seen:
                raise Dropped("duplicate")
            if limit is not None and len(result.splits[row.split]) >= limit:
                raise Dropped("split-full")
            seen.add(row.id)
            made = row.make()
            if not result:
                result.unused = sorted(fields.keys() - made.keys() - reading.read)
            result.splits[row.split].append(made)
        except Dropped as dropped:
            result.dropped[dropped.reason] += 1
            text = json.dumps(fields, ensure_ascii=False, default=str)
            example = f"{dropped.phrase} (such as row {result.read}, {text[:EXAMPLE]})"
            result.examples.setdefault(dropped.reason, example)
    if not result:
        reasons = "; ".join(f"{n:,} {result.examples[reason]}" for reason, n in result.dropped.most_common())
        raise InputError(f"None of the {result.read:,} rows can be used: {reasons or 'there are none'}.")
    for split, limit in limits.items():
        if limit is not None and len(result.splits[split]) < limit:
            raise InputError(
                f"Only {len(result.splits[split]):,} of these rows belong to {split}, not {limit:,}; "
                f"lower --{split}{' or read more rows with --n' if len(result) == n else ''}."
            )
    return result
