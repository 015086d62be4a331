"""Generate puzzles from a seed, with facts proved by the solver, one split at a time.

The random numbers of row *i* are a hash of the seed and *i*. They are drawn again until the puzzle is of the wanted
kind and differs from all earlier rows. So a longer file begins with the shorter one, and the number of workers
changes nothing. Where there are few puzzles, all of them are listed, and drawn from the list.
"""

import random
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, combinations, combinations_with_replacement, islice
from math import comb, prod
from typing import Any

import numpy as np

from countdown_rl.core.errors import InputError, UsageError
from countdown_rl.core.formatting import plural
from countdown_rl.core.types import JsonObject
from countdown_rl.tasks.countdown import kernel, kernel_numba, solver
from countdown_rl.tasks.countdown.rules import (
    DEFAULT_RULE,
    OPERATORS,
    RULES,
    Puzzle,
    Rule,
    split_of,
)
from countdown_rl.tasks.splits import PARTS, SPLITS, parts_of

#: Rows of one chunk, by the largest count of numbers: some seconds of work at most.
CHUNK = {5: 64, 6: 8}
#: Sets of numbers times targets up to which all puzzles are listed.
LISTED = 20_000
#: Sets of numbers that are tried for one row, by their count, before its puzzle is said not to exist: about a minute.
LIMITS = np.array((0, 300_000, 300_000, 300_000, 300_000, 100_000, 10_000), dtype=np.int64)
#: Repetitions of earlier or excluded puzzles before a size is taken to be exhausted.
MAX_REPEATED = 2_000
#: Limit on the count of values in a range.
MAX_WIDTH = 100_000

Array = Any  # of int64, for Numba
#: The next attempt, the count of numbers, and the row; None if it was not found.
Sampled = tuple[int, int, JsonObject | None]


@dataclass(frozen=True)
class Distribution:
    """A distribution of puzzles: ``sizes`` are weights by count of numbers.

    Numbers are drawn from ``values``, with replacement, or without if ``tiles`` is true. Targets are from ``low`` to
    ``high``, both included. ``impossible`` is the share of rows proved to have no solution.
    """

    sizes: dict[int, float]
    values: tuple[int, ...]
    low: int
    high: int
    tiles: bool = False
    rule: Rule = RULES[DEFAULT_RULE]
    operators: str = OPERATORS
    impossible: float = 0.0

    @property
    def is_narrow(self) -> bool:
        """True if there are few puzzles."""
        values = len(self.values)
        sets = [comb(values if self.tiles else values + size - 1, size) for size in self.sizes]
        return sum(sets) * (self.high - self.low + 1) <= LISTED


_TILES = (25, 50, 75, 100, *sorted([*range(1, 11)] * 2))
PRESETS = {
    "3to4": Distribution({3: 1, 4: 1}, tuple(range(1, 100)), 10, 100),
    "24": Distribution({4: 1}, tuple(range(1, 14)), 24, 24),
    "tv": Distribution({6: 1}, _TILES, 101, 999, tiles=True, rule=RULES["television"]),
}


def is_excluded(exclude: set[str], nums: Sequence[int], target: int) -> bool:
    """Return True if *exclude* holds ``numbers=target`` for the puzzle, or its numbers (``row.identity``) alone."""
    numbers = " ".join(map(str, sorted(nums)))
    return numbers in exclude or f"{numbers}={target}" in exclude


def zeros(*shape: int) -> Array:
    return np.zeros(shape, dtype=np.int64)


class SplitPlan:
    """The *n* rows of *split*: their count of numbers (``sizes``), and whether they are to have a solution, (rows,).

    ``limits`` are draws of one row by count of numbers, with those of other splits, which are not tried. ``listed`` are
    all puzzles of a narrow distribution, else none, by whether they have a solution and by their count of numbers.
    """

    def __init__(
        self, distribution: Distribution, exclude: set[str], split: str, n: int, *, seed: int
    ) -> None:
        values, most = sorted(distribution.values), max(distribution.sizes)
        largest = prod(values[-most:] if distribution.tiles else values[-1:] * most)
        if (
            16 * distribution.high * largest >= 1 << 62
            or distribution.high - distribution.low >= MAX_WIDTH
        ):
            options = "--numbers or --targets"
            raise UsageError(
                f"{options} are too large, or have over {MAX_WIDTH:,} values; lower the upper ends."
            )
        self.distribution, self.exclude, self.split, self.seed = distribution, exclude, split, seed
        self.sizes = zeros(n)
        self.solvable = np.diff(np.floor(np.arange(n + 1) * distribution.impossible + 1e-9)) == 0
        first, last = parts_of(split)
        self.limits = LIMITS * PARTS // (last - first + 1)
        self.choose_sizes(np.arange(n, dtype=np.int64), distribution.sizes)
        self.listed = _listed(self) if distribution.is_narrow else {}
        # Compile in this thread, as signals need it.
        _sample(self, np.arange(0, dtype=np.int64), 0, self.tables(), zeros(1), self.limits)

    def choose_sizes(self, rows: Array, weights: dict[int, float]) -> None:
        """Choose the count of numbers of *rows* by *weights*."""
        salt = 16 + SPLITS.index(self.split)
        uniform = (
            kernel.scramble(kernel.scramble(kernel.scramble(self.seed) ^ salt) ^ rows) / 2.0**61
        )
        edges = np.cumsum(list(weights.values())) / sum(weights.values())
        chosen = np.searchsorted(edges, uniform, side="right").clip(max=len(edges) - 1)
        self.sizes[rows] = np.array(list(weights))[chosen]

    def tables(self) -> tuple[kernel.Classes, kernel.Matches, Array]:
        """Working memory of the kernel; threads must not share it."""
        targets = self.distribution.high - self.distribution.low + 1
        return *kernel.tables(zeros, max(self.distribution.sizes), targets, 0), zeros(
            kernel.SCRATCH
        )


def rows(plan: SplitPlan, *, workers: int = 1) -> Iterator[JsonObject]:
    """The rows of *plan* in order, sampled ahead by *workers* threads.

    If no new puzzle of a size is found, rows of the other sizes make up for it; of any size, InputError is raised.
    """
    if plan.listed:
        for solvable, size in zip(plan.solvable.tolist(), plan.sizes.tolist(), strict=True):
            same = {key[1]: puzzles for key, puzzles in plan.listed.items() if key[0] == solvable}
            yield (same.get(size) or max(same.values(), key=len)).pop()
        return
    seen: set[str] = set()
    weights = {
        solvable: dict(plan.distribution.sizes) for solvable in (True, False)
    }  # of sizes not exhausted
    tables = plan.tables()
    for index, (attempt, size, row) in enumerate(chain.from_iterable(_chunks(plan, workers))):
        repeated = 0
        # The thread stopped at an earlier row, or did not know yet that a size is exhausted.
        if attempt == kernel.NOT_SAMPLED or size != plan.sizes[index]:
            attempt, _, row = _sample_one(plan, index, 0, tables)
        while (
            row is None
            or row["id"] in seen
            or is_excluded(plan.exclude, row["nums"], row["target"])
        ):
            repeated += 1
            if row is None or repeated > MAX_REPEATED:
                solvable, size = bool(plan.solvable[index]), int(plan.sizes[index])
                del weights[solvable][size]
                if not weights[solvable]:
                    kind = f"{'solvable' if solvable else 'impossible'} puzzle of {size} numbers"
                    change = "lower --n, or change --numbers, --targets or --operators"
                    raise InputError(
                        f"After {plural(index, 'row')} for {plan.split}, no new {kind} is found; {change}."
                    )
                same = (plan.solvable == solvable) & (plan.sizes == size)
                plan.choose_sizes(index + np.flatnonzero(same[index:]), weights[solvable])
                attempt = repeated = 0
            attempt, _, row = _sample_one(plan, index, attempt, tables)
        seen.add(row["id"])
        yield row


def check_sizes(plans: Sequence[SplitPlan]) -> None:
    """Raise UsageError if a narrow distribution has fewer puzzles than the rows of *plans*."""
    counts: dict[str, int] = {}
    enough = True
    for plan in plans:
        available = {True: 0, False: 0}
        for (solvable, _), rows_of_size in plan.listed.items():
            available[solvable] += len(rows_of_size)
        wanted = int(plan.solvable.sum())
        unsolvable = len(plan.solvable) - wanted
        counts[plan.split] = available[True]
        enough = enough and wanted <= available[True] and unsolvable <= available[False]
    if plans[0].distribution.is_narrow and not enough:
        puzzles = ", ".join(f"{count:,} for {split}" for split, count in counts.items())
        sizes = "".join(f" --{split} {counts[split]}" for split in counts if split != "train")
        raise UsageError(
            f"{sum(counts.values())}{sizes} is the most: there are {puzzles}, of all numbers and targets.",
            option="n",
        )


def _listed(plan: SplitPlan) -> dict[tuple[bool, int], list[JsonObject]]:
    """The puzzles of a narrow distribution in the split of *plan*, in a random order."""
    wanted, rng = plan.distribution, random.Random(f"{plan.seed} {plan.split}")
    choose: Any = combinations if wanted.tiles else combinations_with_replacement
    puzzles = defaultdict[tuple[bool, int], list[JsonObject]](list)
    for size in wanted.sizes:
        for numbers in sorted(set(choose(sorted(wanted.values), size))):
            if split_of(numbers) != plan.split:
                continue
            for target in range(wanted.low, wanted.high + 1):
                nums = tuple(rng.sample(numbers, size))
                if not is_excluded(plan.exclude, nums, target):
                    row = solved_row(Puzzle(nums, target, wanted.rule, wanted.operators))
                    puzzles[row["solutions"] > 0, size].append(row)
    for rows_of_size in puzzles.values():
        rng.shuffle(rows_of_size)
    return puzzles


def solved_row(puzzle: Puzzle) -> JsonObject:
    """The row of a puzzle, with its facts from the solver."""
    solved = solver.solve(puzzle)
    return _row(puzzle, solved.solutions, solved.solution, solved.needs)


def _row(puzzle: Puzzle, solutions: int, solution: str | None, needs: str | None) -> JsonObject:
    """The row of *puzzle*, without a rule or operators that are the default."""
    nums, rule, operators = list(puzzle.numbers), puzzle.rule.name, puzzle.operators
    row: JsonObject = {
        "id": puzzle.id,
        "nums": nums,
        "target": puzzle.target,
        "solutions": solutions,
    }
    row |= {"solution": solution, "needs": needs, "size": len(nums)}
    row |= {"rule": rule} if rule != DEFAULT_RULE else {}
    return row | ({"operators": operators} if operators != OPERATORS else {})


def _sample_one(plan: SplitPlan, index: int, attempt: int, tables: Any) -> Sampled:
    """The row at *index*, sampled in parts that are short enough for signals to be handled."""
    limits = plan.limits // 32
    limit = int(limits[plan.sizes[index]])
    for start in range(attempt, attempt + 32 * limit, limit):
        [sampled] = _sample(plan, np.array([index]), start, tables, zeros(1), limits)
        if sampled[0] >= 0:
            break
    return sampled


def _sample(
    plan: SplitPlan, indices: Array, start: int, tables: Any, stop: Array, limits: Array
) -> list[Sampled]:
    """The rows at *indices*, each sampled from its attempt *start* on.

    Rows after one that is not found within the *limits* of attempts are not sampled. *stop* is a flag, (1,), by which
    another thread ends this.
    """
    distribution, count = plan.distribution, len(indices)
    sampled = kernel.Rows(
        *(indices, plan.sizes[indices], plan.solvable[indices]),
        attempts=zeros(count) + kernel.NOT_SAMPLED,
        nums=zeros(count, max(distribution.sizes)),
        texts=np.zeros((count, kernel.TEXT), dtype=np.uint8),
        **{name: zeros(count) for name in ("targets", "counts", "plain", "lengths")},
    )
    values = np.array(distribution.values, dtype=np.int64)
    parts = *parts_of(plan.split), PARTS
    source = kernel.Source(
        plan.seed, SPLITS.index(plan.split), start, limits, values, distribution.tiles, *parts, stop
    )
    kernel_numba.draw(
        source, sampled, solver.goal(distribution, distribution.low, distribution.high), *tables
    )
    texts = sampled.texts.tobytes().decode("ascii")
    columns = (
        sampled.attempts,
        sampled.nums,
        sampled.sizes,
        sampled.targets,
        sampled.counts,
        sampled.plain,
    )
    rows, result = (
        zip(*(column.tolist() for column in (*columns, sampled.lengths)), strict=True),
        list[Sampled](),
    )
    for index, (attempt, nums, size, target, solutions, plain, length) in enumerate(rows):
        begin = index * kernel.TEXT
        text = texts[begin : begin + length] if solutions else None
        needs = None if not solutions else "add-sub" if plain else "mul-div"
        puzzle = Puzzle(tuple(nums[:size]), target, distribution.rule, distribution.operators)
        result.append(
            (attempt, size, None if attempt < 0 else _row(puzzle, solutions, text, needs))
        )
    return result


def _chunks(plan: SplitPlan, workers: int) -> Iterator[list[Sampled]]:
    """The rows in chunks, sampled ahead by threads, as the kernel releases the GIL."""
    stop, size = zeros(1), CHUNK.get(max(plan.distribution.sizes), 1_024)

    def sample(first: int) -> list[Sampled]:
        indices = np.arange(first, min(first + size, len(plan.sizes)), dtype=np.int64)
        return _sample(plan, indices, 0, plan.tables(), stop, plan.limits)

    pool = ThreadPoolExecutor(workers)
    pending = (pool.submit(sample, first) for first in range(0, len(plan.sizes), size))
    ahead = deque(islice(pending, workers + 1))
    try:
        while ahead:
            chunk = ahead.popleft().result()
            ahead.extend(islice(pending, 1))
            yield chunk
    finally:
        stop[0] = 1
        pool.shutdown(cancel_futures=True)
