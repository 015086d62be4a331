"""Countdown rows: generated from a distribution of puzzles, or imported, every one solved
exhaustively.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from countdown_rl.core import processes
from countdown_rl.core.errors import UsageError, input_as_usage
from countdown_rl.core.types import JsonObject, Record
from countdown_rl.data import generate
from countdown_rl.data.config import DataOptions
from countdown_rl.data.generate import MAX_WIDTH, PRESETS, Distribution, is_excluded
from countdown_rl.data.source import Dropped, RowSource
from countdown_rl.tasks import records
from countdown_rl.tasks.countdown import rules
from countdown_rl.tasks.countdown.task import NUMBERS, numbers_of
from countdown_rl.tasks.task import Row, Task

_RANGE = re.compile(r"([0-9]{1,99})(?:-([0-9]{1,99}))?(?:x([0-9]{1,3}))?").fullmatch


class CountdownSource(RowSource):
    """Puzzles of the distribution that the options ask for."""

    def __init__(self, task: Task, options: DataOptions) -> None:
        super().__init__(task, options)
        self._distribution = distribution_of(options)

    def excluded(self, reader: records.Reader, record: Record) -> str:
        """The puzzle of *record*; without a target, its numbers with every target."""
        try:
            row = self.find(reader, record)
        except records.NoRowError:
            if (nums := numbers_of(record)) is None:
                raise
            return " ".join(map(str, sorted(nums)))
        return f"{row.identity}={row['target']}"

    def find(self, reader: records.Reader, record: Record) -> Row:
        try:
            return super().find(reader, record)
        except records.NoRowError:  # other fields may have another meaning
            needed = {name: record[name] for name in (*NUMBERS, "target") if name in record}
            return self.reader().row(needed)

    def convert(self, row: Row, *, own_test: bool) -> JsonObject:
        nums, target = row["nums"], row["target"]
        wanted = self._distribution
        if len(nums) > rules.MAX_NUMBERS:
            raise Dropped("too-many-numbers", f"of more than {rules.MAX_NUMBERS} numbers")
        if target < 1:
            raise Dropped(
                "target-below-1", "with a target below 1, which the solver does not search"
            )
        if not own_test and is_excluded(self._excluded, nums, target):
            raise Dropped("excluded", "in a file of rows to keep out of the training data")
        puzzle = rules.Puzzle(tuple(nums), target, wanted.rule, wanted.operators)
        fields = generate.solved_row(puzzle)
        if not (fields["solutions"] or own_test or self.options.impossible):
            raise Dropped(
                "impossible", "proved to have no solution; --impossible 1 keeps such puzzles"
            )
        return fields

    def rows(self, sizes: Mapping[str, int]) -> dict[str, Iterator[JsonObject]]:
        plans = [
            generate.SplitPlan(self._distribution, self._excluded, split, n, seed=self.options.seed)
            for split, n in sizes.items()
        ]
        generate.check_sizes(plans)
        workers = processes.cpu_threads()
        return {plan.split: generate.rows(plan, workers=workers) for plan in plans}


def distribution_of(options: DataOptions) -> Distribution:
    """The distribution that *options* ask for."""
    wanted = replace(PRESETS[options.preset], impossible=options.impossible)
    with input_as_usage():
        if options.operators:
            wanted = replace(wanted, operators=rules.operators(options.operators))
        if options.rule:
            wanted = replace(wanted, rule=rules.rule(options.rule))
    if options.size:
        wanted = replace(wanted, sizes=_sizes(options.size))
    if options.numbers:
        values: list[int] = []
        ranges = options.numbers.split(",")
        for text in ranges:
            low, high, copies = _range("numbers", text)
            values += [*range(low, high + 1)] * copies
        are_tiles = len(ranges) > 1 or "x" in options.numbers
        wanted = replace(wanted, values=tuple(sorted(values)), tiles=are_tiles)
    if options.targets:
        low, high, _ = _range("targets", options.targets)
        wanted = replace(wanted, low=low, high=high)
    elif {"+", "-"}.isdisjoint(wanted.operators) and wanted.low < wanted.high:
        wanted = replace(wanted, high=9_999)  # few products are below 100
    if wanted.tiles and max(wanted.sizes) > len(wanted.values):
        raise UsageError(
            f"has {len(wanted.values)} tiles, too few for {max(wanted.sizes)} numbers.",
            option="numbers",
        )
    return wanted


def _sizes(specs: Iterable[str]) -> dict[int, float]:
    """Weights by count of numbers."""
    sizes: dict[int, float] = {}
    for spec in specs:
        size, _, weight = spec.partition("=")
        try:
            sizes[int(size)] = float(weight or 1)
            fits = 1 <= int(size) <= rules.MAX_NUMBERS and 0 < sizes[int(size)] < float("inf")
        except ValueError:
            fits = False
        if not fits:
            raise UsageError(
                f"{spec}: write 1 to {rules.MAX_NUMBERS}, or with a weight above 0: 4=0.5.",
                option="size",
            )
    return sizes


def _range(option: str, text: str) -> tuple[int, int, int]:
    """The lowest and the highest value of a range, and its copies."""
    match = _RANGE(text.strip())
    low, high, copies = 0, 0, 1
    if match:
        low, high, copies = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
    if not 1 <= low <= high or (copies != 1 and option == "targets"):
        tiles = "" if option == "targets" else ", or tiles such as 25,50,1-10x2"
        raise UsageError(
            f"{text}: write a range such as 10-100{tiles}, from 1 on, the lower end first.",
            option=option,
        )
    if high - low >= MAX_WIDTH:
        raise UsageError(
            f"{text}: a range has at most {MAX_WIDTH:,} values; lower its upper end.", option=option
        )
    return low, high, copies
