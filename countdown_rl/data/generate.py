"""Generate puzzles from a seed, with facts proved by the solver, one split at a time.

The random numbers of row *i* are a hash of the seed and *i*. They are drawn again until the puzzle is of the wanted
kind and differs from all earlier rows. So a longer file begins with the shorter one, and the number of workers
changes nothing.
"""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from math import prod
from typing import Any

import numpy as np

from countdown_rl.core.errors import InputError, UsageError
from countdown_rl.core.formatting import flag, plural
from countdown_rl.data.distribution import Distribution, Exclusion, is_excluded
from countdown_rl.tasks.countdown import kernel, kernel_numba, solver
from countdown_rl.tasks.countdown.rules import DEFAULT_RULE, OPERATORS, Puzzle
from countdown_rl.tasks.splits import PARTS, SPLITS, parts_of

#: Rows of one chunk.
CHUNK = 1_024
#: Sets of numbers that are tried for one row, by their count, before its puzzle is said not to exist: about a minute.
LIMITS = np.array((0, 300_000, 300_000, 300_000, 300_000, 100_000, 10_000), dtype=np.int64)
#: Repetitions of earlier or excluded puzzles before a size is taken to be exhausted.
MAX_REPEATED = 2_000
#: Limit on the count of values in a range.
MAX_WIDTH = 100_000

Array = Any  # of int64, for Numba


def zeros(*shape: int) -> Array:
    return np.zeros(shape, dtype=np.int64)


@dataclass
class SplitPlan:
    """The rows of a split.

    Attributes:
        sizes, solvable: for each row its count of numbers, and whether it is to have a solution, (rows,).
        limits: draws of one row by count of numbers. Draws of other splits, which are not tried, are included.
    """

    distribution: Distribution
    exclude: Exclusion
    split: str
    seed: int
    sizes: Array
    solvable: Array
    limits: Array

    def choose_sizes(self, rows: Array, weights: dict[int, float]) -> None:
        """Choose the count of numbers of *rows* by *weights*."""
        salt = 16 + SPLITS.index(self.split)
        uniform = kernel.scramble(kernel.scramble(kernel.scramble(self.seed) ^ salt) ^ rows) / 2.0**61
        edges = np.cumsum(list(weights.values())) / sum(weights.values())
        chosen = np.searchsorted(edges, uniform, side="right").clip(max=len(edges) - 1)
        self.sizes[rows] = np.array(list(weights))[chosen]

    def tables(self) -> tuple[kernel.Classes, kernel.Matches, Array]:
        """Working memory of the kernel; threads must not share it."""
        targets = self.distribution.high - self.distribution.low + 1
        return *kernel.tables(zeros, max(self.distribution.sizes), targets, 0), zeros(kernel.SCRATCH)


def plan_split(distribution: Distribution, exclude: Exclusion, split: str, n: int, *, seed: int) -> SplitPlan:
    """Plan the *n* rows of *split*."""
    values, most = sorted(distribution.values), max(distribution.sizes)
    largest = prod(values[-most:] if distribution.tiles else values[-1:] * most)
    if 16 * distribution.high * largest >= 1 << 62 or distribution.high - distribution.low >= MAX_WIDTH:
        raise UsageError(
            f"Products of such {flag('numbers')} and {flag('targets')} are too large for the solver, or the range of "
            f"targets is wider than {MAX_WIDTH:,}; lower the upper ends."
        )
    rows = np.arange(n, dtype=np.int64)
    impossible = np.floor(np.arange(n + 1) * distribution.impossible + 1e-9)
    first, last = parts_of(split)
    limits = LIMITS * PARTS // (last - first + 1)
    plan = SplitPlan(distribution, exclude, split, seed, zeros(n), np.diff(impossible) == 0, limits)
    plan.choose_sizes(rows, distribution.sizes)
    _sample(plan, rows[:0], 0, plan.tables(), zeros(1), limits)  # compile in this thread, as signals need it
    return plan


def rows(plan: SplitPlan, *, workers: int = 1) -> Iterator[dict[str, Any]]:
    """The rows of *plan* in order, sampled ahead by *workers* threads.

    If no new puzzle of a size is found, rows of the other sizes make up for it.

    Raises:
        InputError: no new puzzle of any size is found.
    """
    seen: set[str] = set()
    weights = {solvable: dict(plan.distribution.sizes) for solvable in (True, False)}  # of sizes not exhausted
    tables = plan.tables()
    for first, sampled in _chunks(plan, workers):
        for offset, row in enumerate(_described(plan, sampled)):
            index, attempt, repeated = first + offset, int(sampled.attempts[offset]), 0
            # The thread stopped at an earlier row, or did not know yet that a size is exhausted.
            if attempt == kernel.NOT_SAMPLED or sampled.sizes[offset] != plan.sizes[index]:
                attempt, row = _sample_one(plan, index, 0, tables)
            while row is None or row["id"] in seen or is_excluded(plan.exclude, row["nums"], row["target"]):
                repeated += 1
                if row is None or repeated > MAX_REPEATED:
                    solvable, size = bool(plan.solvable[index]), int(plan.sizes[index])
                    del weights[solvable][size]
                    if not weights[solvable]:
                        kind = f"{'solvable' if solvable else 'impossible'} puzzle of {size} numbers"
                        raise InputError(
                            f"After {plural(index, 'row')} for {plan.split}, no new {kind} is found; lower "
                            f"{flag('n')}, or change {flag('numbers')}, {flag('targets')} or {flag('operators')}."
                        )
                    same = (plan.solvable == solvable) & (plan.sizes == size)
                    plan.choose_sizes(index + np.flatnonzero(same[index:]), weights[solvable])
                    attempt = repeated = 0
                attempt, row = _sample_one(plan, index, attempt, tables)
            seen.add(row["id"])
            yield row


def solved_row(puzzle: Puzzle) -> dict[str, Any]:
    """The row of a puzzle, with its facts from the solver."""
    solved = solver.solve(puzzle)
    return _row(puzzle, list(puzzle.numbers), puzzle.target, solved.solutions, solved.solution, solved.needs)


def _row(
    terms: Puzzle | Distribution, nums: list[int], target: int, solutions: int, solution: str | None, needs: str | None
) -> dict[str, Any]:
    """A row of a data set by the rule and operators of *terms*, which are left out if they are the default."""
    rule, operators = terms.rule.name, terms.operators
    row = {
        "id": Puzzle(tuple(nums), target, terms.rule, operators).id,
        "nums": nums,
        "target": target,
        "solutions": solutions,
        "solution": solution,
        "needs": needs,
        "size": len(nums),
    }
    if rule != DEFAULT_RULE:
        row["rule"] = rule
    if operators != OPERATORS:
        row["operators"] = operators
    return row


def _described(plan: SplitPlan, sampled: kernel.Rows) -> Iterator[dict[str, Any] | None]:
    """The rows as dictionaries; None for a row that was not found."""
    texts = sampled.texts.tobytes().decode("ascii")
    columns = (sampled.attempts, sampled.nums, sampled.sizes, sampled.targets, sampled.counts, sampled.plain)
    rows = zip(*(column.tolist() for column in (*columns, sampled.lengths)), strict=True)
    for start, (attempt, nums, size, target, count, plain, length) in enumerate(rows):
        text = texts[start * kernel.TEXT : start * kernel.TEXT + length] if count else None
        needs = None if not count else "add-sub" if plain else "mul-div"
        yield None if attempt < 0 else _row(plan.distribution, nums[:size], target, count, text, needs)


def _sample_one(
    plan: SplitPlan, index: int, attempt: int, tables: tuple[Any, ...]
) -> tuple[int, dict[str, Any] | None]:
    """The next attempt and the row at *index*, sampled in parts that are short enough for signals to be handled."""
    limits = plan.limits // 32
    limit = int(limits[plan.sizes[index]])
    for start in range(attempt, attempt + 32 * limit, limit):
        sampled = _sample(plan, np.array([index]), start, tables, zeros(1), limits)
        if sampled.attempts[0] >= 0:
            break
    return int(sampled.attempts[0]), next(_described(plan, sampled))


def _sample(
    plan: SplitPlan, indices: Array, start: int, tables: tuple[Any, ...], stop: Array, limits: Array
) -> kernel.Rows:
    """The rows at *indices*, each sampled from its attempt *start* on.

    Rows after one that is not found within the *limits* of attempts are not sampled. *stop* is a flag, (1,), by which
    another thread ends this.
    """
    distribution, count = plan.distribution, len(indices)
    sampled = kernel.Rows(
        indices,
        plan.sizes[indices],
        plan.solvable[indices],
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
        np.array(distribution.values, dtype=np.int64),
        distribution.tiles,
        *parts_of(plan.split),
        PARTS,
        stop,
    )
    kernel_numba.draw(source, sampled, solver.goal(distribution, distribution.low, distribution.high), *tables)
    return sampled


def _chunks(plan: SplitPlan, workers: int) -> Iterator[tuple[int, kernel.Rows]]:
    """The rows in chunks, each with its first index; sampled ahead by threads, as the kernel releases the GIL."""
    stop = zeros(1)

    def sample(first: int) -> tuple[int, kernel.Rows]:
        indices = np.arange(first, min(first + CHUNK, len(plan.sizes)), dtype=np.int64)
        return first, _sample(plan, indices, 0, plan.tables(), stop, plan.limits)

    pool = ThreadPoolExecutor(workers)
    pending = (pool.submit(sample, first) for first in range(0, len(plan.sizes), CHUNK))
    ahead = deque(islice(pending, workers + 1))
    try:
        while ahead:
            chunk = ahead.popleft().result()
            ahead.extend(islice(pending, 1))
            yield chunk
    finally:
        stop[0] = 1
        pool.shutdown(cancel_futures=True)
