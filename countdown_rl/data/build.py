"""The data artifact: from options to train, valid and test files, with counts of what they hold."""

import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, nullcontext
from dataclasses import asdict, replace
from itertools import chain, count
from pathlib import Path
from pkgutil import resolve_name

from countdown_rl.core import artifacts
from countdown_rl.core.errors import UsageError, input_as_usage
from countdown_rl.core.manifest import file_input
from countdown_rl.core.types import JsonObject
from countdown_rl.data import external
from countdown_rl.data.config import DataOptions
from countdown_rl.data.source import OnRow, RowSource, ignore
from countdown_rl.tasks import files, jsonl, registry
from countdown_rl.tasks.splits import held_out
from countdown_rl.tasks.task import Task

#: Options that the manifest leaves out: one changes no rows, the others name files that are among the inputs.
UNRECORDED = {"from_", "test_from", "exclude"}
#: Options that apply to the tasks that name them.
_PUZZLES = frozenset[str]().union(*(task.data_options for task in registry.own_tasks()))


def make(options: DataOptions, out: Path, on_row: OnRow = ignore) -> JsonObject:
    """Write the data artifact at *out*, generated or imported, and return its facts.

    An import adds ``reasons``: why rows were dropped, in words with an example; and ``notes``: where the rows were in
    their records.
    """
    task = _task(options)
    source: RowSource = resolve_name(task.source)(task, options)
    artifacts.check_writable(out, "data")
    inputs: JsonObject = {}
    for path in map(jsonl.suite_file, options.exclude):
        source.exclude(files.records(path))
        inputs.setdefault("exclude", []).append(file_input(path))
    sizes = options
    if options.test_from:
        path, sizes = jsonl.suite_file(options.test_from), replace(options, test=0)
        source.import_rows(files.records(path), sys.maxsize, {}, own_test=True)
        inputs["test"] = file_input(path)
    splits: JsonObject = source.splits
    if options.from_ or options.from_hub:
        published, entry = _published(options, source)
        limits = {"valid": sizes.valid, "test": sizes.test}
        source.import_rows(published, options.n, limits, on_row=on_row)
        inputs["from"] = entry or file_input(Path(options.from_ or ""))
    else:
        own = {"test": splits["test"]} if options.test_from else {}
        splits = source.rows(split_sizes(sizes)) | own
    rows = (
        (split, registry.parse_row(row)) for split, rows in source.splits.items() for row in rows
    )
    moved = any(row.own_split != split for split, row in rows)
    done, omitted = count(1), UNRECORDED | (_PUZZLES - task.data_options)
    recorded = {
        key: value
        for key, value in asdict(options).items()
        if value not in (None, ()) and key not in omitted
    }
    with artifacts.writing(out, "data", options=recorded, inputs=inputs) as draft:
        if source.read:
            draft.facts |= {"read": source.read, "dropped": dict(sorted(source.dropped.items()))}
        draft.facts["splits"] = {}
        for split, rows in splits.items():
            shared = _layout(options) | ({"split": split} if moved else {})
            written = _write(
                draft.path / f"{split}.jsonl", rows, shared, lambda: on_row(next(done), options.n)
            )
            draft.facts["splits"][split] = written
    if not source.read:
        return draft.facts
    reasons = {reason: source.examples[reason] for reason, _ in source.dropped.most_common()}
    return draft.facts | {"reasons": reasons, "notes": sorted(source.notes)}


def generate(options: DataOptions, split: str) -> Iterator[JsonObject]:
    """The rows of one *split* that :func:`make` generates for *options*; none if there is no such split."""
    task, sizes = _task(options), split_sizes(options)
    source: RowSource = resolve_name(task.source)(task, options)
    for rows in source.rows({name: sizes[name] for name in sizes if name == split}).values():
        yield from (row | _layout(options) for row in rows)


def _published(
    options: DataOptions, source: RowSource
) -> tuple[Iterable[files.PlacedRecord], JsonObject]:
    """The rows of ``from_`` or ``from_hub``, held-out splits first, and the manifest entry of the latter."""
    if options.from_hub:
        name, _, revision = options.from_hub.partition("@")
        commit, published = external.from_hub(name, revision or None)
        repository, _, config = name.partition(":")
        entry = {"hub": repository, "revision": commit} | ({"config": config} if config else {})
        return published, entry
    file = Path(options.from_ or "")
    jsonl.check_training(file)

    def part(is_held_out: bool) -> Iterator[files.PlacedRecord]:
        reader, source.total = source.reader(), 0
        for place, record in files.records(file, options.records or ""):
            source.total += 1
            if bool(held_out(reader.split(record))) == is_held_out:
                yield place, record

    return chain(part(True), part(False)), {}


def _layout(options: DataOptions) -> dict[str, str]:
    """The fields of every row that decide on its prompt."""
    return {
        key: text for key in ("style", "template") if (text := getattr(options, key)) is not None
    }


def _task(options: DataOptions) -> Task:
    """The task of *options*; a UsageError if another option does not apply to it."""
    file, hub, by_task = "--from", "--from-hub", f"--task {options.task}"
    with input_as_usage(by_task):
        task = registry.task(options.task)
    if options.style not in (None, *(styles := task.row.styles)):
        raise UsageError(
            f"{options.style} is not for {by_task}; take {' or '.join(styles)}.", option="style"
        )
    for name in _PUZZLES - task.data_options:
        if getattr(options, name) != getattr(type(options), name, None):
            raise UsageError(f"does not apply to {by_task}; leave it out.", option=name)
    if options.from_ and options.from_hub:
        raise UsageError(f"Give {file} or {hub}, not both.")
    if options.test_from and options.test is not None:
        raise UsageError("has all test puzzles; leave out --test.", option="test_from")
    return task


def split_sizes(options: DataOptions) -> dict[str, int]:
    """The number of rows of each split. Raises UsageError if nothing is left for training."""
    tenth = min(1_000, max(1, options.n // 10))
    test = tenth if options.test is None else options.test
    valid = tenth if options.valid is None else options.valid
    train = options.n - valid - test
    if train < 1:
        held, total = f"--valid {valid} and --test {test}", f"--n {options.n}"
        raise UsageError(f"{held} leave no rows for training out of {total}.")
    return {"train": train, "valid": valid, "test": test}


def _write(
    path: Path,
    rows: Iterable[JsonObject],
    shared: Mapping[str, str],
    on_row: Callable[[], None],
) -> JsonObject:
    """Write the *rows* of a split with the *shared* fields, and count them, also by group.

    Raises UsageError if the prompt of the user's own cannot be rendered, or does not show all of a row.
    """
    groups: dict[str, Counter[str]] = {}
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
                groups.setdefault(group, Counter())[value] += 1
            yield row

    with closing(rows) if isinstance(rows, Generator) else nullcontext():  # ends its threads
        jsonl.write_rows(path, counted())
    return {
        "rows": total,
        "groups": {group: dict(sorted(groups[group].items())) for group in sorted(groups)},
    }
