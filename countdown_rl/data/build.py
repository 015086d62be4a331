"""The data artifact: from options to train, valid and test files, with counts of what they hold."""

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, nullcontext
from dataclasses import asdict, replace
from itertools import chain, count
from pathlib import Path
from pkgutil import resolve_name

from countdown_rl.core import artifacts, hub
from countdown_rl.core.errors import InputError, ModelError, UsageError, input_as_usage
from countdown_rl.core.manifest import file_input
from countdown_rl.core.types import JsonObject, Record
from countdown_rl.data.config import DataOptions
from countdown_rl.data.source import OnRow, RowSource, ignore
from countdown_rl.tasks import files, jsonl, registry
from countdown_rl.tasks.splits import held_out

#: Options that the manifest leaves out: they name files, which are among the inputs.
_FILES = {"from_", "test_from", "exclude"}
#: Options that apply to the tasks that name them.
_PUZZLES = frozenset[str]().union(*(task.data_options for task in registry.own_tasks()))


def make(options: DataOptions, out: Path, on_row: OnRow = ignore) -> JsonObject:
    """Write the data artifact at *out*, generated or imported.

    Args:
        options: the rows to make.
        out: the directory to write.
        on_row: called with the count of rows so far, and of all.

    Returns:
        the facts of the artifact. An import adds ``reasons``, why rows were dropped, in words with
        an example, and ``notes``, where the rows were in their records.

    Raises:
        UsageError: options contradict each other, or ask for more puzzles than there are.
        InputError: a file has no rows, or too few.
    """
    source = _source(options)
    artifacts.check_writable(out, "data")

    inputs: JsonObject = {}
    for path in map(jsonl.suite_file, options.exclude):
        source.exclude(files.records(path))
        inputs.setdefault("exclude", []).append(file_input(path))
    sizes = options
    if options.test_from:
        path = jsonl.suite_file(options.test_from)
        source.import_rows(files.records(path), sys.maxsize, {}, own_test=True)
        inputs["test"] = file_input(path)
        sizes = replace(options, test=0)

    splits: Mapping[str, Iterable[JsonObject]] = source.splits
    if options.from_ or options.from_hub:
        published, entry = _published(options, source)
        limits = {"valid": sizes.valid, "test": sizes.test}
        source.import_rows(published, options.n, limits, on_row=on_row)
        inputs["from"] = entry or file_input(Path(options.from_ or ""))
    else:
        own = {"test": source.splits["test"]} if options.test_from else {}
        splits = {**source.rows(split_sizes(sizes)), **own}

    omitted = _FILES | (_PUZZLES - source.task.data_options)
    recorded = {
        name: value
        for name, value in asdict(options).items()
        if value not in (None, ()) and name not in omitted
    }
    number = count(1)
    with artifacts.writing(out, "data", options=recorded, inputs=inputs) as draft:
        if source.read:
            draft.facts |= {"read": source.read, "dropped": dict(sorted(source.dropped.items()))}
        draft.facts["splits"] = {}
        for split, rows in splits.items():
            shared = _layout(options)
            if source.has_moved:
                shared["split"] = split
            draft.facts["splits"][split] = _write(
                draft.path / f"{split}.jsonl",
                rows,
                shared,
                lambda: on_row(next(number), options.n),
            )
    if not source.read:
        return draft.facts
    reasons = {reason: source.examples[reason] for reason, _ in source.dropped.most_common()}
    return draft.facts | {"reasons": reasons, "notes": sorted(source.notes)}


def generate(options: DataOptions, split: str) -> Iterator[JsonObject]:
    """The rows of one *split* that :func:`make` generates for *options*; none if there is no such
    split.
    """
    source = _source(options)
    sizes = {name: size for name, size in split_sizes(options).items() if name == split}
    for rows in source.rows(sizes).values():
        for row in rows:
            yield row | _layout(options)


def _published(
    options: DataOptions, source: RowSource
) -> tuple[Iterable[files.PlacedRecord], JsonObject]:
    """The rows of ``from_`` or ``from_hub``, held-out splits first, and the manifest entry of the
    latter.
    """
    if options.from_hub:
        name, _, revision = options.from_hub.partition("@")
        repository, _, config = name.partition(":")
        try:  # to the Hub's cache, where it is found offline too
            directory = hub.download(repository, revision or None, repo_type="dataset")
        except ModelError as error:
            text = str(error).rstrip(".")
            raise InputError(f"{text}; or give a downloaded file with --from.") from error
        entry = {"hub": repository, "revision": directory.name}
        if config:
            entry["config"] = config
        return files.data_set(directory, name, config or None), entry
    file = Path(options.from_ or "")
    jsonl.check_training(file)

    def in_splits(are_held_out: bool) -> Iterator[files.PlacedRecord]:
        reader = source.reader()
        for number, (place, record) in enumerate(files.records(file, options.records or ""), 1):
            source.total = number
            if bool(held_out(reader.split(record))) == are_held_out:
                yield place, record

    return chain(in_splits(True), in_splits(False)), {}


def _layout(options: DataOptions) -> dict[str, str]:
    """The fields of every row that decide on its prompt."""
    fields = {"style": options.style, "template": options.template}
    return {name: text for name, text in fields.items() if text is not None}


def _source(options: DataOptions) -> RowSource:
    """The source of the rows of *options*; a UsageError if one does not apply to their task."""
    by_task = f"--task {options.task}"
    with input_as_usage(by_task):
        task = registry.task(options.task)
    styles = task.row.styles
    if options.style not in (None, *styles):
        raise UsageError(
            f"{options.style} is not for {by_task}; take {' or '.join(styles)}.", option="style"
        )
    for name in _PUZZLES - task.data_options:
        if getattr(options, name) != getattr(DataOptions, name):
            raise UsageError(f"does not apply to {by_task}; leave it out.", option=name)
    if options.from_ and options.from_hub:
        raise UsageError("Give --from or --from-hub, not both.")
    if options.test_from and options.test is not None:
        raise UsageError("has all test puzzles; leave out --test.", option="test_from")
    return resolve_name(task.source)(task, options)


def split_sizes(options: DataOptions) -> dict[str, int]:
    """The number of rows of each split. Raises UsageError if nothing is left for training."""
    tenth = min(1_000, max(1, options.n // 10))
    test = tenth if options.test is None else options.test
    valid = tenth if options.valid is None else options.valid
    train = options.n - valid - test
    if train < 1:
        raise UsageError(
            f"--valid {valid} and --test {test} leave no rows for training out of --n {options.n}."
        )
    return {"train": train, "valid": valid, "test": test}


def _write(
    path: Path, rows: Iterable[JsonObject], shared: Record, on_row: Callable[[], None]
) -> JsonObject:
    """Write the *rows* of a split with the *shared* fields, and count them, also by group.

    Raises UsageError if the prompt of the user's own cannot be rendered, or does not show all of a
    row.
    """
    groups = defaultdict[str, Counter[str]](Counter)
    total = 0

    def counted() -> Iterator[JsonObject]:
        nonlocal total
        for row in rows:
            total += 1
            on_row()
            row |= shared
            parsed = registry.parse_row(row)
            if parsed.template is not None:
                with input_as_usage("--prompt"):
                    parsed.prompt()
            for group, value in parsed.groups.items():
                groups[group][value] += 1
            yield row

    with closing(rows) if isinstance(rows, Generator) else nullcontext():  # ends its threads
        jsonl.write_rows(path, counted())
    counts = {group: dict(sorted(groups[group].items())) for group in sorted(groups)}
    return {"rows": total, "groups": counts}
