"""The data artifact: from options to train, valid and test files, with what was measured on the way."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from countdown_rl import artifacts, dataset, generator, puzzle
from countdown_rl.errors import InputError, UsageError
from countdown_rl.generator import PRESETS, Distribution
from countdown_rl.options import DataOptions

_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?(?:x([0-9]{1,3}))?").fullmatch
#: Options that say how to run rather than what comes out.
_SILENT = ("workers",)


def make(options: DataOptions, out: Path) -> dict[str, Any]:
    """Write the data artifact at *out* and return its facts.

    Raises:
        UsageError: options that make no sense. InputError: more puzzles than there are.
    """
    wanted = distribution(options)
    sizes = split_sizes(options)
    written = {key: value for key, value in asdict(options).items() if key not in _SILENT and value not in (None, ())}
    with artifacts.writing(out, "data", options=written) as draft:
        draft.facts["splits"] = {}
        for split, count in sizes.items():
            rows = generator.rows(wanted, split, count, seed=options.seed, workers=options.workers or generator.cores())
            tally: Counter[tuple[str, str]] = Counter()
            dataset.write_rows(draft.path / f"{split}.jsonl", _counted(_styled(rows, options.style), tally))
            draft.facts["splits"][split] = {"rows": count, **_facts(tally)}
        return dict(draft.facts)


def split_sizes(options: DataOptions) -> dict[str, int]:
    """How many rows each split gets.

    Raises:
        UsageError: nothing is left for training.
    """
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
    if options.preset not in PRESETS:
        raise UsageError(f"There is no preset {options.preset!r}; take one of {', '.join(PRESETS)}.")
    wanted = replace(PRESETS[options.preset], impossible=options.impossible, balance=_balance(options.balance))
    try:
        if options.rule:
            wanted = replace(wanted, rule=puzzle.rule(options.rule))
        if options.operators:
            wanted = replace(wanted, signs=puzzle.signs(options.operators.replace(" ", "")))
    except InputError as error:
        raise UsageError(str(error)) from None
    if options.size:
        wanted = replace(wanted, sizes=_sizes(options.size))
    if options.numbers:
        values, tiles = _numbers(options.numbers)
        wanted = replace(wanted, values=values, tiles=tiles)
    if options.targets:
        found = _RANGE(options.targets)
        if not found or found[3]:
            raise UsageError(f"--targets {options.targets}: write LOW-HIGH, e.g. 10-100.")
        low, high = int(found[1]), int(found[2] or found[1])
        if not 1 <= low <= high:
            raise UsageError(f"--targets {options.targets}: targets begin at 1, the lower one first.")
        wanted = replace(wanted, low=low, high=high)
    if wanted.tiles and max(wanted.sizes) > len(wanted.values):
        raise UsageError(f"--numbers has {len(wanted.values)} tiles, too few for puzzles of {max(wanted.sizes)}.")
    return wanted


def _sizes(specs: Iterable[str]) -> dict[int, float]:
    sizes: dict[int, float] = {}
    for spec in specs:
        size, _, weight = spec.partition("=")
        try:
            sizes[int(size)] = float(weight or 1)
        except ValueError:
            raise UsageError(f"--size {spec}: write a number, or a number and a weight such as 4=0.5.") from None
        if not 1 <= int(size) <= puzzle.MAX_NUMBERS or not 0 < sizes[int(size)] < float("inf"):
            raise UsageError(f"--size {spec}: puzzles have 1 to {puzzle.MAX_NUMBERS} numbers, and weights are above 0.")
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
    tiles = len(items) > 1 or any(item and item[3] for item in items)
    return tuple(sorted(values)), tiles


def _balance(wanted: Iterable[str]) -> tuple[str, ...]:
    chosen = tuple(sorted(set(wanted)))
    if set(chosen) - {"needs", "difficulty"}:
        raise UsageError("--balance takes needs and difficulty.")
    return chosen


def _styled(rows: Iterable[dict[str, Any]], style: str | None) -> Iterator[dict[str, Any]]:
    if style is None:
        yield from rows
        return
    for row in rows:
        yield {**row, "style": style}


def _counted(rows: Iterable[dict[str, Any]], tally: Counter[tuple[str, str]]) -> Iterator[Mapping[str, Any]]:
    for row in rows:
        tally["size", str(row["size"])] += 1
        tally["needs", row["needs"] or "impossible"] += 1
        yield row


def _facts(tally: Counter[tuple[str, str]]) -> dict[str, dict[str, int]]:
    facts: dict[str, dict[str, int]] = {}
    for (what, value), count in sorted(tally.items()):
        facts.setdefault(what, {})[value] = count
    return facts
