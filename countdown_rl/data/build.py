"""The data artifact: from options to train, valid and test files, with what was measured on the way."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from countdown_rl import artifacts, processes
from countdown_rl.data import external, generate, jsonl
from countdown_rl.data.config import DataOptions
from countdown_rl.data.distribution import PRESETS, Distribution, Exclusion
from countdown_rl.data.enumeration import Stock
from countdown_rl.errors import InputError, UsageError
from countdown_rl.puzzle import rules
from countdown_rl.tasks.response_format import STYLES

_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?(?:x([0-9]{1,3}))?").fullmatch
#: Options that say how to run, or name files that the manifest's inputs describe better.
_SILENT = ("workers", "from_", "exclude")


def make(options: DataOptions, out: Path) -> dict[str, Any]:
    """Write the data artifact at *out*, generated or imported, and return its facts.

    Raises:
        UsageError: options that make no sense. InputError: more puzzles than there are, or bad input.
    """
    wanted = distribution(options)
    _check_task(options)
    artifacts.check_writable(out, "data")
    exclude = external.exclusion(map(Path, options.exclude))
    inputs: dict[str, Any] = {}
    if options.exclude:
        inputs["exclude"] = [artifacts.file_input(Path(path)) for path in options.exclude]
    facts: dict[str, Any] = {}
    made: dict[str, Iterable[dict[str, Any]]]
    if options.from_ or options.from_hub:
        found = _imported(options, wanted, exclude, inputs)
        facts |= {"read": found.read, "dropped": dict(sorted(found.dropped.items()))}
        made = dict(found.splits)
    else:
        stock = Stock(wanted, exclude)
        workers = options.workers or processes.cpu_threads()
        plans = [generate.plan(stock, *size, seed=options.seed) for size in split_sizes(options).items()]
        made = {plan.split: generate.rows(plan, workers=workers) for plan in plans}
    written = {key: value for key, value in asdict(options).items() if key not in _SILENT and value not in (None, ())}
    with artifacts.writing(out, "data", options=written, inputs=inputs) as draft:
        draft.facts |= {**facts, "splits": {}}
        for split, rows in made.items():
            tally: Counter[tuple[str, str]] = Counter()
            jsonl.write_rows(draft.path / f"{split}.jsonl", _counted(_styled(rows, options.style), tally))
            draft.facts["splits"][split] = _facts(tally)
        return dict(draft.facts)


def _check_task(options: DataOptions) -> None:
    styles = {"countdown": ("begun", "own"), "gsm8k": tuple(STYLES)}.get(options.task)
    if styles is None:
        raise UsageError(f"There is no task {options.task!r}; take countdown or gsm8k.")
    if options.style is not None and options.style not in styles:
        raise UsageError(f"--style of {options.task} is one of {', '.join(styles)}.")
    if options.from_ and options.from_hub:
        raise UsageError("Give --from or --from-hub, not both.")
    if options.revision and not options.from_hub:
        raise UsageError("--revision goes with --from-hub.")
    if options.task == "gsm8k" and not (options.from_ or options.from_hub):
        raise UsageError("--task gsm8k needs --from FILE or --from-hub openai/gsm8k.")


def _imported(
    options: DataOptions, wanted: Distribution, exclude: Exclusion, inputs: dict[str, Any]
) -> external.Import:
    if options.from_hub:
        commit, rows = external.from_hub(options.from_hub, options.revision)
        inputs["from"] = {"hub": options.from_hub, "revision": commit}
    else:
        path = Path(options.from_ or "")
        rows = external.from_file(path)
        inputs["from"] = artifacts.file_input(path) if path.is_file() else {}
    limits = {"valid": options.valid, "test": options.test}
    if options.task == "gsm8k":
        return external.problems(rows, options.n, limits=limits)
    return external.countdown(
        rows, options.n, rule=wanted.rule, operators=wanted.operators, exclude=exclude, limits=limits,
        impossible=options.impossible > 0,
    )  # fmt: skip


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
            wanted = replace(wanted, rule=rules.rule(options.rule))
        if options.operators:
            wanted = replace(wanted, operators=rules.operators(options.operators))
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
        tally["rows", ""] += 1
        if "size" in row:
            tally["size", str(row["size"])] += 1
            tally["needs", row["needs"] or "impossible"] += 1
        yield row


def _facts(tally: Counter[tuple[str, str]]) -> dict[str, Any]:
    facts: dict[str, Any] = {"rows": tally.pop(("rows", ""), 0)}
    for (what, value), count in sorted(tally.items()):
        facts.setdefault(what, {})[value] = count
    return facts
