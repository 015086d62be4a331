"""Import of published rows, of files or the Hub: checked one by one, split like generated rows.

Rows that are dropped are counted by the reason.
"""

import json
import posixpath
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from countdown_rl.core import hub_requests
from countdown_rl.core.errors import InputError, ModelError
from countdown_rl.data.source import Candidate, Dropped
from countdown_rl.tasks import files, layouts
from countdown_rl.tasks.countdown.rules import SPLITS

#: A published row: its split ("" in a file, where a field ``split`` may name it) and its fields.
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
    return lifted(((place, "", record) for place, record in files.records(Path(path))), str(path), on_note)


def lifted(
    records: Iterable[tuple[str, str, Mapping[str, Any]]], source: str, on_note: Callable[[str], None]
) -> Iterator[Published]:
    """The rows in *records* of *source*, each with its place and published split, in the layout of any project."""
    notes = {""}
    for place, split, record in records:
        with files.at(place):
            fields, note = layouts.lifted(record)
        if note not in notes:
            notes.add(note)
            on_note(f"{source}: {note}.")
        yield split or layouts.split_of(record), fields


def from_hub(name: str, revision: str | None) -> tuple[str, Iterator[Published]]:
    """The commit of the Hub data set *name*, ``NAME[:CONFIG]``, at *revision*, and its rows.

    Its files are downloaded to the cache of the Hub, or read there where the Hub cannot be reached. Held-out splits
    come first. Rows for training have the split "" where no test split is published.
    """
    from datasets import load_dataset, logging
    from huggingface_hub.utils import logging as hub_logging

    logging.set_verbosity(logging.CRITICAL)  # errors are reported once, in a sentence
    hub_logging.set_verbosity(logging.CRITICAL)
    repository, _, config = name.partition(":")
    directory = _download(repository, revision, ["README.md"])
    with _read_errors(name):
        chosen, files, patterns = _configuration(directory, repository, config)
    directory = _download(repository, directory.name, patterns)
    with _read_errors(name), TemporaryDirectory() as cache:  # HF_HOME may be read-only
        settings: Any = {"data_files": files, "streaming": True, "cache_dir": cache}
        splits = load_dataset(str(directory), chosen, **settings)
    published_test = any(layouts.held_out(split) == "test" for split in splits)

    def rows() -> Iterator[Published]:
        for split in sorted(splits, key=lambda split: ("test", "valid", None).index(layouts.held_out(split))):
            with _read_errors(name):
                for row in splits[split]:
                    yield str(split) if layouts.held_out(split) or published_test else "", row

    return directory.name, rows()


def _download(repository: str, revision: str | None, patterns: list[str] | None) -> Path:
    try:
        return hub_requests.download(repository, revision, allowed=patterns, ignored=None, repo_type="dataset")
    except ModelError as error:
        raise InputError(f"{str(error).rstrip('.')}; or give a downloaded file with --from.") from error


def _configuration(directory: Path, name: str, config: str) -> tuple[str | None, Any, list[str] | None]:
    """The configuration *config* of the data set *name*, by default the one that its card marks.

    Returns its name, its ``data_files``, and patterns of the files to download; None: as ``datasets`` finds them, all.
    """
    from huggingface_hub import DatasetCard

    card = directory / "README.md"
    listed = DatasetCard.load(card).data.get("configs") if card.is_file() else None
    configs: dict[str, Any] = {str(item["config_name"]): item for item in listed or [{"config_name": "default"}]}
    marked = [key for key, item in configs.items() if item.get("default") or key == "default" or len(configs) == 1]
    chosen = config or next(iter(marked or configs.keys() & {"main"}), "")
    if chosen not in configs:
        fault = f"has no configuration {config}" if config else "has several configurations, and none by default"
        raise InputError(f"{name} {fault}; choose one as {name}:CONFIG, of {', '.join(configs)}.")
    if not all("data_files" in item for item in configs.values()):
        return chosen if listed else None, None, None
    files = configs[chosen]["data_files"]
    paths = [item["path"] if isinstance(item, Mapping) else item for item in _listed(files)]
    patterns = [posixpath.normpath(path) for part in paths for path in _listed(part)]
    # In a pattern of the Hub, * matches a slash too.
    return chosen, files, ["README.md", *(pattern.replace("**/", "*").replace("**", "*") for pattern in patterns)]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


@contextmanager
def _read_errors(source: str) -> Iterator[None]:
    """Turn any error of a library into an InputError about *source*."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        text = hub_requests.words(error.__cause__ or error)
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
            row = candidate(published_split or str(reading.get("split") or ""), reading)
            limit = limits.get(row.split)
            if row.id in seen:
                raise Dropped("duplicate")
            if limit is not None and len(result.splits[row.split]) >= limit:
                raise Dropped(f"{row.split}-full", f"of the split {row.split}, which has all its rows")
            seen.add(row.id)
            made = row.make()
            if not result:
                result.unused = sorted(fields.keys() - made.keys() - reading.read - {"split"})
            result.splits[row.split].append(made)
        except Dropped as dropped:
            result.dropped[dropped.reason] += 1
            text = json.dumps(fields, ensure_ascii=False, default=str)
            example = f"{dropped.phrase} (such as row {result.read}, {text[:EXAMPLE]})"
            result.examples.setdefault(dropped.reason, example)
    if not result:
        reasons = "; ".join(f"{n:,} {result.examples[reason]}" for reason, n in result.dropped.most_common())
        raise InputError(f"None of the {result.read:,} rows can be used: {reasons or 'there are none'}.")
    if len(result) == n and not result.splits["train"]:
        raise InputError(
            f"The first {n:,} rows are all of held-out splits, which leaves none for training; raise --n, or give "
            "--test and --valid."
        )
    for split, limit in limits.items():
        if limit is not None and len(result.splits[split]) < limit:
            raise InputError(
                f"Only {len(result.splits[split]):,} of these rows belong to {split}, not {limit:,}; "
                f"lower --{split}{' or read more rows with --n' if len(result) == n else ''}."
            )
    return result
