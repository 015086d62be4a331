"""The data artifact: from options to train, valid and test files, with counts of what they hold."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from countdown_rl import artifacts, processes
from countdown_rl.data import external, generate, jsonl
from countdown_rl.data.config import DataOptions
from countdown_rl.data.distribution import PRESETS, Distribution, Exclusion
from countdown_rl.data.enumeration import Enumeration
from countdown_rl.errors import InputError, UsageError
from countdown_rl.puzzle import rules

_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?(?:x([0-9]{1,3}))?").fullmatch
#: Options that the manifest leaves out: one changes no rows, the others name files that are among the inputs.
_UNRECORDED = ("workers", "from_", "test_from", "exclude")

#: Called with the count of rows so far, and of all.
OnRow = Callable[[int, int], None]


def make(options: DataOptions, out: Path, on_row: OnRow = lambda count, total: None) -> dict[str, Any]:
    """Write the data artifact at *out*, generated or imported, and return its facts.

    Those of an import have also ``reasons``: why rows were dropped, in words with an example.

    Args:
        on_row: called with the count of rows so far, and of all.

    Raises:
        UsageError: an option cannot be read, or options contradict each other.
        InputError: more puzzles are wanted than there are, or an input cannot be used.
    """
    wanted = distribution(options)
    _check_source(options)
    artifacts.check_writable(out, "data")
    exclude = external.exclusion(map(Path, options.exclude))
    inputs: dict[str, Any] = {}
    if options.exclude:
        inputs["exclude"] = [artifacts.file_input(Path(path)) for path in options.exclude]
    own = None
    if options.test_from:
        own = external.test_rows(Path(options.test_from), wanted)
        inputs["test"] = artifacts.file_input(Path(options.test_from))
        exclude.hands.update(tuple(sorted(row["nums"])) for row in own.splits["test"])
    imports = [] if own is None else [own]
    test = options.test if own is None else 0
    splits: dict[str, Iterable[dict[str, Any]]]
    if options.from_ or options.from_hub:
        inputs["from"], imported = _import(replace(options, test=test), wanted, exclude, on_row)
        imports.append(imported)
        splits = dict(imported.splits)
    else:
        enumeration = Enumeration(wanted, exclude)
        sizes = split_sizes(replace(options, test=test))
        plans = [generate.plan(enumeration, *size, seed=options.seed) for size in sizes.items()]
        workers = options.workers or processes.cpu_threads()
        splits = {plan.split: generate.rows(plan, workers=workers) for plan in plans}
    if own is not None:
        splits["test"] = own.splits["test"]
    recorded = {k: value for k, value in asdict(options).items() if k not in _UNRECORDED and value not in (None, ())}
    with artifacts.writing(out, "data", options=recorded, inputs=inputs) as draft:
        if imports:
            dropped = sum((item.dropped for item in imports), Counter())
            draft.facts |= {"read": sum(item.read for item in imports), "dropped": dict(sorted(dropped.items()))}
        draft.facts["splits"] = {}
        written = 0
        for split, rows in splits.items():
            counts: Counter[tuple[str, str]] = Counter()
            on_split = partial(lambda before, count: on_row(before + count, options.n), written)
            counted = _counted(rows, options.style, counts, on_split)
            jsonl.write_rows(draft.path / f"{split}.jsonl", counted)
            written += counts["rows", ""]
            draft.facts["splits"][split] = _facts(counts)
    reasons = {key: text for item in imports for key, text in item.reasons().items()}
    return draft.facts | ({"reasons": reasons} if imports else {})


def _check_source(options: DataOptions) -> None:
    if options.task == "countdown" and options.style == "lines":
        raise UsageError("--style lines is for --task gsm8k; take begun or own.")
    if options.from_ and options.from_hub:
        raise UsageError("Give --from or --from-hub, not both.")
    if options.test_from and (options.test is not None or options.task == "gsm8k"):
        raise UsageError("--test-from has all test puzzles, of Countdown; leave out --test and --task.")
    if options.revision and not options.from_hub:
        raise UsageError("--revision goes with --from-hub.")
    if options.task == "gsm8k" and not (options.from_ or options.from_hub):
        raise UsageError("--task gsm8k needs --from FILE or --from-hub openai/gsm8k.")


def _import(
    options: DataOptions, wanted: Distribution, exclude: Exclusion, on_row: OnRow
) -> tuple[Any, external.Import]:
    """The input as manifests record it, and the imported rows."""
    if options.from_hub:
        commit, published = external.from_hub(options.from_hub, options.revision)
        source = {"hub": options.from_hub, "revision": commit}
    else:
        path = Path(options.from_ or "")
        published = external.from_file(path)
        source = artifacts.file_input(path) if path.is_file() else {}
    puzzles = external.puzzles(wanted, exclude, impossible=options.impossible > 0)
    candidate = puzzles if options.task == "countdown" else external.problem
    limits = {"valid": options.valid, "test": options.test}
    imported = external.import_rows(published, options.n, candidate, limits, lambda count: on_row(count, options.n))
    return source, imported


def split_sizes(options: DataOptions) -> dict[str, int]:
    """The number of rows of each split. Raises UsageError if nothing is left for training."""
    tenth = min(1_000, max(1, options.n // 10))
    test = tenth if options.test is None else options.test
    valid = tenth if options.valid is None else options.valid
    train = options.n - valid - test
    if train < 1:
        raise UsageError(f"--valid {valid} and --test {test} leave no rows for training out of --n {options.n}.")
    return {"train": train, "valid": valid, "test": test}


def distribution(options: DataOptions) -> Distribution:
    """The distribution that *options* ask for.

    Raises:
        UsageError: one of them cannot be read, or they contradict each other.
    """
    preset = PRESETS[options.preset]
    try:
        operators = rules.operators(options.operators) if options.operators else preset.operators
    except InputError as error:
        raise UsageError(str(error)) from None
    wanted = replace(
        preset,
        impossible=options.impossible,
        balance=tuple(sorted(set(options.balance))),
        rule=rules.rule(options.rule) if options.rule else preset.rule,
        operators=operators,
        sizes=_sizes(options.size) or preset.sizes,
    )
    if options.numbers:
        values, tiles = _numbers(options.numbers)
        wanted = replace(wanted, values=values, tiles=tiles)
    if options.targets:
        match = _RANGE(options.targets)
        if not match or match[3]:
            raise UsageError(f"--targets {options.targets}: write LOW-HIGH, e.g. 10-100.")
        low, high = int(match[1]), int(match[2] or match[1])
        if not 1 <= low <= high:
            raise UsageError(f"--targets {options.targets}: targets begin at 1, the lower one first.")
        wanted = replace(wanted, low=low, high=high)
    if wanted.tiles and max(wanted.sizes) > len(wanted.values):
        raise UsageError(f"--numbers has {len(wanted.values)} tiles, too few for puzzles of {max(wanted.sizes)}.")
    return wanted


def _sizes(specs: Iterable[str]) -> dict[int, float]:
    """Weights by count of numbers."""
    sizes: dict[int, float] = {}
    for spec in specs:
        size, _, weight = spec.partition("=")
        try:
            sizes[int(size)] = float(weight or 1)
        except ValueError:
            raise UsageError(f"--size {spec}: write a number, or a number and a weight such as 4=0.5.") from None
        if not 1 <= int(size) <= rules.MAX_NUMBERS or not 0 < sizes[int(size)] < float("inf"):
            raise UsageError(f"--size {spec}: puzzles have 1 to {rules.MAX_NUMBERS} numbers, and weights are above 0.")
    return sizes


def _numbers(spec: str) -> tuple[tuple[int, ...], bool]:
    """The values to draw from, and whether they are tiles."""
    items = [_RANGE(item.strip()) for item in spec.split(",")]
    values: list[int] = []
    for item in items:
        if not item:
            raise UsageError(f"--numbers {spec}: write a range such as 1-99, or tiles such as 25,50,1-10x2.")
        low, high = int(item[1]), int(item[2] or item[1])
        if not 1 <= low <= high or high - low > 100_000:
            raise UsageError(f"--numbers {spec}: numbers begin at 1, the lower one first.")
        values += list(range(low, high + 1)) * int(item[3] or 1)
    return tuple(sorted(values)), len(items) > 1 or any(item and item[3] for item in items)


def _counted(
    rows: Iterable[dict[str, Any]], style: str | None, counts: Counter[tuple[str, str]], on_row: Callable[[int], None]
) -> Iterator[dict[str, Any]]:
    """The rows, with a *style* if there is one, counted on the way into *counts*."""
    for count, row in enumerate(rows, 1):
        counts["rows", ""] = count
        on_row(count)
        if "size" in row:
            counts["size", str(row["size"])] += 1
            counts["needs", row["needs"] or "impossible"] += 1
        yield row if style is None else row | {"style": style}


def _facts(counts: Counter[tuple[str, str]]) -> dict[str, Any]:
    facts: dict[str, Any] = {"rows": counts.pop(("rows", ""), 0)}
    for (name, value), count in sorted(counts.items()):
        facts.setdefault(name, {})[value] = count
    return facts
