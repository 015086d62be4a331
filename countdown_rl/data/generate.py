"""Generate puzzles from a seed, with facts proved by the solver, one split at a time.

The random numbers of row *i* are a hash of the seed and *i*. They are drawn again until the puzzle
is of the wanted kind and differs from all earlier rows. So a longer file begins with the shorter
one, and the number of workers changes nothing. Where there are few puzzles, all of them are listed,
and drawn from the list.
"""

import random
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, combinations, combinations_with_replacement, islice
from math import comb, prod

import numpy as np
from numpy.typing import NDArray

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
#: Sets of numbers that are tried for one row, by their count, before its puzzle is said not to
#: exist: about a minute.
LIMITS = np.array((0, 300_000, 300_000, 300_000, 300_000, 100_000, 10_000), dtype=np.int64)
#: Repetitions of earlier or excluded puzzles before a size is taken to be exhausted.
MAX_REPEATED = 2_000
#: Limit on the count of values in a range.
MAX_WIDTH = 100_000

Array = NDArray[np.int64]
#: The next attempt, the count of numbers, and the row; None if it was not found.
Attempt = tuple[int, int, JsonObject | None]
#: Working memory of the kernel.
Tables = tuple[kernel.Classes, kernel.Matches, Array]


@dataclass(frozen=True)
class Distribution:
    """A distribution of puzzles: ``sizes`` are weights by count of numbers.

    Numbers are drawn from ``values``, with replacement, or without if ``tiles`` is true. Targets
    are from ``low`` to ``high``, both included. ``impossible`` is the share of rows proved to have
    no solution.
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
    """True if a puzzle is kept out of the rows.

    Args:
        exclude: puzzles as ``numbers=target``, or ``numbers`` for those with any target; the numbers
            are in ascending order, as in ``row.identity``.
        nums: the numbers of the puzzle.
        target: its target.
    """
    numbers = " ".join(map(str, sorted(nums)))
    return numbers in exclude or f"{numbers}={target}" in exclude


def zeros(*shape: int) -> Array:
    return np.zeros(shape, dtype=np.int64)


class SplitPlan:
    """The *n* rows of *split*.

    Attributes:
        sizes: their count of numbers, (rows,).
        solvable: whether they are to have a solution, (rows,).
        weights: those of the sizes of which there may be new puzzles, by ``solvable``.
        limits: draws of one row by count of numbers, with those of other splits, which are not
            tried.
        listed: all puzzles of a narrow distribution, else none, by ``solvable`` and size.
    """

    def __init__(
        self, distribution: Distribution, exclude: set[str], split: str, n: int, *, seed: int
    ) -> None:
        values = sorted(distribution.values)
        most = max(distribution.sizes)
        largest = prod(values[-most:] if distribution.tiles else values[-1:] * most)
        targets = distribution.high - distribution.low + 1
        if 16 * distribution.high * largest >= 1 << 62 or targets > MAX_WIDTH:
            raise UsageError(
                f"--numbers or --targets are too large, or have over {MAX_WIDTH:,} values; "
                "lower the upper ends."
            )
        self.distribution = distribution
        self.exclude = exclude
        self.split = split
        self.seed = seed
        self.sizes = zeros(n)
        self.solvable = np.diff(np.floor(np.arange(n + 1) * distribution.impossible + 1e-9)) == 0
        first, last = parts_of(split)
        self.limits = LIMITS * PARTS // (last - first + 1)
        self.weights = {solvable: dict(distribution.sizes) for solvable in (True, False)}
        self.choose_sizes(np.arange(n), distribution.sizes)
        self.listed = _listed(self) if distribution.is_narrow else {}
        # Compile in this thread, as signals need it.
        _sample(self, zeros(0), 0, self.tables(), zeros(1), self.limits)

    def choose_sizes(self, rows: Array, weights: Mapping[int, float]) -> None:
        """Choose the count of numbers of *rows* by *weights*."""
        salt = 16 + SPLITS.index(self.split)
        state = kernel.scramble(kernel.scramble(kernel.scramble(self.seed) ^ salt) ^ rows)
        edges = np.cumsum(list(weights.values())) / sum(weights.values())
        chosen = np.searchsorted(edges, state / 2.0**61, side="right").clip(max=len(edges) - 1)
        self.sizes[rows] = np.array(list(weights))[chosen]

    def replace_size(self, index: int) -> None:
        """Choose another count of numbers for the row at *index* and those after it that are like
        it.

        Raises InputError if there is no new puzzle of any count.
        """
        solvable, size = bool(self.solvable[index]), int(self.sizes[index])
        weights = self.weights[solvable]
        del weights[size]
        if not weights:
            kind = f"{'solvable' if solvable else 'impossible'} puzzle of {size} numbers"
            raise InputError(
                f"After {plural(index, 'row')} for {self.split}, no new {kind} is found; "
                "lower --n, or change --numbers, --targets or --operators."
            )
        same = (self.solvable == solvable) & (self.sizes == size)
        self.choose_sizes(index + np.flatnonzero(same[index:]), weights)

    def tables(self) -> Tables:
        """Working memory of the kernel; threads must not share it."""
        targets = self.distribution.high - self.distribution.low + 1
        tables = kernel.tables(zeros, max(self.distribution.sizes), targets, 0)
        return *tables, zeros(kernel.SCRATCH)


def rows(plan: SplitPlan, *, workers: int = 1) -> Iterator[JsonObject]:
    """The rows of *plan* in order.

    If no new puzzle of a size is found, rows of the other sizes make up for it.

    Args:
        plan: the rows of a split.
        workers: number of threads that sample ahead.

    Raises:
        InputError: there is no new puzzle of any size.
    """
    if plan.listed:
        for solvable, size in zip(plan.solvable.tolist(), plan.sizes.tolist(), strict=True):
            same = {key[1]: puzzles for key, puzzles in plan.listed.items() if key[0] == solvable}
            yield (same.get(size) or max(same.values(), key=len)).pop()
        return
    seen: set[str] = set()
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
                plan.replace_size(index)
                attempt = repeated = 0
            attempt, _, row = _sample_one(plan, index, attempt, tables)
        seen.add(row["id"])
        yield row


def check_sizes(plans: Sequence[SplitPlan]) -> None:
    """Raise UsageError if a narrow distribution has fewer puzzles than the rows of *plans*."""
    counts = {}
    is_enough = True
    for plan in plans:
        available = Counter[bool]()
        for (solvable, _), puzzles in plan.listed.items():
            available[solvable] += len(puzzles)
        counts[plan.split] = available[True]
        is_enough = is_enough and Counter(plan.solvable.tolist()) <= available
    if plans[0].distribution.is_narrow and not is_enough:
        numbers = ", ".join(f"{count:,} for {split}" for split, count in counts.items())
        sizes = "".join(f" --{split} {counts[split]}" for split in counts if split != "train")
        raise UsageError(
            f"{sum(counts.values())}{sizes} is the most: there are {numbers}, of all numbers and "
            "targets.",
            option="n",
        )


def _listed(plan: SplitPlan) -> dict[tuple[bool, int], list[JsonObject]]:
    """The puzzles of a narrow distribution in the split of *plan*, in a random order."""
    wanted = plan.distribution
    rng = random.Random(f"{plan.seed} {plan.split}")
    values = sorted(wanted.values)
    puzzles = defaultdict[tuple[bool, int], list[JsonObject]](list)
    for size in wanted.sizes:
        repeated = combinations_with_replacement(values, size)
        for numbers in sorted(set(combinations(values, size) if wanted.tiles else repeated)):
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
    return _row(puzzle, solver.solve(puzzle))


def _row(puzzle: Puzzle, solved: solver.Solved) -> JsonObject:
    """The row of *puzzle*, without a rule or operators that are the default."""
    row: JsonObject = {
        "id": puzzle.id,
        "nums": list(puzzle.numbers),
        "target": puzzle.target,
        **vars(solved),
        "size": len(puzzle.numbers),
    }
    if puzzle.rule.name != DEFAULT_RULE:
        row["rule"] = puzzle.rule.name
    if puzzle.operators != OPERATORS:
        row["operators"] = puzzle.operators
    return row


def _sample_one(plan: SplitPlan, index: int, attempt: int, tables: Tables) -> Attempt:
    """The row at *index*, sampled in parts that are short enough for signals to be handled."""
    limits = plan.limits // 32
    limit = int(limits[plan.sizes[index]])
    for start in range(attempt, attempt + 32 * limit, limit):
        [sampled] = _sample(plan, np.array([index]), start, tables, zeros(1), limits)
        if sampled[0] >= 0:
            break
    return sampled


def _sample(
    plan: SplitPlan, indices: Array, start: int, tables: Tables, stop: Array, limits: Array
) -> list[Attempt]:
    """Sample rows.

    Args:
        plan: the rows of a split.
        indices: the rows to sample.
        start: the first attempt of each.
        tables: working memory.
        stop: a flag, (1,), by which another thread ends this.
        limits: attempts at a row by its count of numbers; rows after one that is not found are not
            sampled.
    """
    distribution = plan.distribution
    count = len(indices)
    sampled = kernel.Rows(
        indices=indices,
        sizes=plan.sizes[indices],
        solvable=plan.solvable[indices],
        attempts=zeros(count) + kernel.NOT_SAMPLED,
        nums=zeros(count, max(distribution.sizes)),
        targets=zeros(count),
        counts=zeros(count),
        plain=zeros(count),
        lengths=zeros(count),
        texts=np.zeros((count, kernel.TEXT), dtype=np.uint8),
    )
    source = kernel.Source(
        plan.seed,
        SPLITS.index(plan.split),
        start,
        limits,
        np.array(distribution.values),
        distribution.tiles,
        *parts_of(plan.split),
        PARTS,
        stop,
    )
    rule, operators = distribution.rule, distribution.operators
    goal = solver.goal(rule, operators, distribution.low, distribution.high)
    kernel_numba.draw(source, sampled, goal, *tables)

    texts = sampled.texts.tobytes().decode("ascii")
    columns = (
        sampled.attempts,
        sampled.nums,
        sampled.sizes,
        sampled.targets,
        sampled.counts,
        sampled.plain,
        sampled.lengths,
    )
    facts = zip(*(column.tolist() for column in columns), strict=True)
    rows = list[Attempt]()
    for i, (attempt, nums, size, target, solutions, plain, length) in enumerate(facts):
        row = None
        if attempt >= 0:
            puzzle = Puzzle(tuple(nums[:size]), target, rule, operators)
            begin = i * kernel.TEXT
            text = texts[begin : begin + length]
            row = _row(puzzle, solver.facts(solutions, plain, text))
        rows.append((attempt, size, row))
    return rows


def _chunks(plan: SplitPlan, workers: int) -> Iterator[list[Attempt]]:
    """The rows in chunks, sampled ahead by threads, as the kernel releases the GIL."""
    stop = zeros(1)
    count = len(plan.sizes)
    size = CHUNK.get(max(plan.distribution.sizes), 1_024)

    def sample(first: int) -> list[Attempt]:
        indices = np.arange(first, min(first + size, count))
        return _sample(plan, indices, 0, plan.tables(), stop, plan.limits)

    pool = ThreadPoolExecutor(workers)
    pending = (pool.submit(sample, first) for first in range(0, count, size))
    ahead = deque(islice(pending, workers + 1))
    try:
        while ahead:
            chunk = ahead.popleft().result()
            ahead.extend(islice(pending, 1))
            yield chunk
    finally:
        stop[0] = 1
        pool.shutdown(cancel_futures=True)
