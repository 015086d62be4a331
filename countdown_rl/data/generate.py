"""Generation of puzzles: sampled from a seed, with facts proved by the solver, one split at a time.

Row *i* of a split depends on the seed and *i* alone: its random numbers are a hash of the two, tried again until
the puzzle is of a requested cell and is no earlier row. So a longer file begins with the shorter one, and the number
of workers changes nothing. Only where more than half of all puzzles are wanted are they listed and shuffled.
"""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from math import prod
from typing import Any

import numpy as np

from countdown_rl.core.errors import InputError, UsageError
from countdown_rl.data import enumeration
from countdown_rl.data.distribution import DIFFICULTY, IMPOSSIBLE, NEEDS, Distribution, Exclusion, is_excluded
from countdown_rl.data.enumeration import Array, zeros
from countdown_rl.tasks.countdown import kernel, kernel_numba, rules, solver
from countdown_rl.tasks.countdown.rules import DEFAULT_RULE, OPERATORS, PARTS, SPLITS, Puzzle

#: Attempts at one row, and rows of one chunk.
LIMIT = 300_000
CHUNK = 1_024
#: Sets of numbers, by size, among which a puzzle has to be; those of 5 and 6 are solved in about five seconds.
_MAX_SETS = (0, LIMIT, LIMIT, LIMIT, LIMIT, 50_000, 3_000)
#: Repetitions of earlier or excluded puzzles after which there are taken to be no others.
_MAX_REPEATED = 10_000


@dataclass
class SplitPlan:
    """The rows of a split.

    Attributes:
        sizes, cells: counts of numbers, and the cells that will do, as bits, (rows,).
        attempts, targets, nums: those of rows taken from a list, (rows,) and (rows, numbers); attempts are -2 there.
        listed: by size and cells, all puzzles in random order.
    """

    distribution: Distribution
    exclude: Exclusion
    split: str
    seed: int
    sizes: Array
    cells: Array
    attempts: Array
    targets: Array
    nums: Array
    listed: dict[tuple[int, int], Array] = field(default_factory=dict)

    def limit(self, size: int) -> int:
        """The attempts that sample about ``_MAX_SETS`` sets of *size* numbers of the split."""
        first, last = rules.parts_of(self.split)
        return min(LIMIT, _MAX_SETS[size] * PARTS // (last - first + 1))

    def tables(self) -> tuple[kernel.Classes, kernel.Matches, Array]:
        """Working memory of the kernel; threads must not share it."""
        targets = self.distribution.high - self.distribution.low + 1
        return *kernel.tables(zeros, max(self.distribution.sizes), targets, 0), zeros(kernel.SCRATCH)


def plan_split(distribution: Distribution, exclude: Exclusion, split: str, n: int, *, seed: int) -> SplitPlan:
    """Plan the *n* rows of *split*. Where puzzles of a size run out, the other sizes make up for it."""
    values, most = sorted(distribution.values), max(distribution.sizes)
    largest = prod(values[-most:] if distribution.tiles else values[-1:] * most)
    if 16 * distribution.high * largest >= 1 << 62 or distribution.high - distribution.low >= 100_000:
        raise UsageError("Such large numbers or targets cannot be sampled; lower --numbers or --targets.")
    if n > (bound := distribution.upper_bound()):
        raise InputError(f"There are at most {bound:,} such puzzles, not {n:,}; lower --n or widen the options.")
    indices = np.arange(n, dtype=np.int64)
    before = np.floor(indices * distribution.impossible + 1e-9).astype(np.int64)
    impossible = np.floor((indices + 1) * distribution.impossible + 1e-9).astype(np.int64) > before
    in_turn = np.array(distribution.balanced_cells(), dtype=np.int64)
    cells = np.where(impossible, IMPOSSIBLE, in_turn[(indices - before) % len(in_turn)])
    plan = SplitPlan(distribution, exclude, split, seed, zeros(n), cells, zeros(n), zeros(n), zeros(n, most))
    for kind in np.unique(cells).tolist():
        _choose_sizes(plan, kind)
    for (size, kind), puzzles in plan.listed.items():
        selected = np.flatnonzero((plan.sizes == size) & (cells == kind))
        plan.attempts[selected] = -2
        plan.targets[selected], plan.nums[selected, :size] = puzzles[: len(selected), 0], puzzles[: len(selected), 1:]
    return plan


def _choose_sizes(plan: SplitPlan, cells: int) -> None:
    """Choose the sizes of the rows of *cells* by their weights, as far as there are puzzles."""
    rows = np.flatnonzero(plan.cells == cells)
    wanted = len(rows)
    weights = dict(plan.distribution.sizes)
    salt = 16 + SPLITS.index(plan.split)
    while len(rows):
        if not weights:
            raise InputError(
                f"Only {wanted - len(rows):,} of the {wanted:,} {_kind(cells)} puzzles wanted for {plan.split} exist; "
                "lower --n or widen the options."
            )
        uniform = kernel.scramble(kernel.scramble(kernel.scramble(plan.seed) ^ salt) ^ rows) / 2.0**61
        edges = np.cumsum(list(weights.values())) / sum(weights.values())
        sizes = np.array(list(weights))[np.searchsorted(edges, uniform, side="right").clip(max=len(edges) - 1)]
        left = []
        for size in list(weights):
            selected = rows[sizes == size]
            have = int(((plan.sizes == size) & (plan.cells == cells)).sum())
            puzzles = _list_if_few(plan, size, cells, have, selected)
            if puzzles is not None:
                free = max(0, len(puzzles) - have)
                left.append(selected[free:])
                selected = selected[:free]
                if len(puzzles) <= have + len(selected):
                    del weights[size]
            plan.sizes[selected] = size
        rows = np.sort(np.concatenate(left)) if left else rows[:0]
        salt += 16


def _list_if_few(plan: SplitPlan, size: int, cells: int, have: int, rows: Array) -> Array | None:
    """All puzzles of a size and *cells*; None where *rows* and those that the plan has are at most half of them.

    Raises:
        InputError: no puzzle is found, and there are too many sets of numbers to list.
    """
    enough = 2 * (have + len(rows))
    can_sample = (size, cells) in plan.listed or not len(rows) or _can_sample(plan, rows[0], size)
    # Sampling the rows takes longer than solving as many sets as there have to be puzzles.
    max_sets = enough if can_sample else 0
    puzzles = enumeration.puzzles(plan.distribution, plan.exclude, size, plan.split, cells, enough, max_sets)
    if puzzles is None and not can_sample:
        raise InputError(
            f"{plan.limit(size):,} draws of {size} numbers gave no {_kind(cells)} puzzle for {plan.split}; "
            "widen --numbers, --targets or --operators, or leave out --balance or --size."
        )
    if puzzles is not None and (size, cells) not in plan.listed:
        keys = np.full(len(puzzles), kernel.scramble(plan.seed), dtype=np.int64)
        for column in puzzles.T:
            keys = kernel.scramble(keys ^ column)
        plan.listed[size, cells] = puzzles[np.argsort(keys, kind="stable")]
    return puzzles


def _can_sample(plan: SplitPlan, index: int, size: int) -> bool:
    """True where sampling finds a puzzle of *size* numbers for the row at *index*."""
    plan.sizes[index] = size
    sampled = _sample_one(plan, index, 0, plan.tables(), plan.limit(size))
    plan.sizes[index] = 0
    return bool(sampled.attempts[0] > 0)


def _kind(cells: int) -> str:
    """The *cells* (as bits) in words."""
    if cells == IMPOSSIBLE:
        return "impossible"
    names = [name for bits in (NEEDS, DIFFICULTY) for name, kind in bits.items() if not cells & ~kind]
    return " ".join(["solvable", *([f"({', '.join(names)})"] if names else [])])


def rows(plan: SplitPlan, *, workers: int = 1) -> Iterator[dict[str, Any]]:
    """The rows of *plan* in order, sampled ahead by so many threads."""
    seen: set[str] = set()
    tables, total = plan.tables(), 0
    for first, sampled in _chunks(plan, workers):
        for offset, row in enumerate(_described(plan, sampled)):
            index, attempt, repeated = first + offset, int(sampled.attempts[offset]), 0
            total += max(0, attempt)
            while row and (row["id"] in seen or is_excluded(plan.exclude, row["nums"], row["target"])):
                if not repeated:
                    most = attempt + 2 * plan.limit(plan.sizes[index]) + 20 * total // (index + 1)
                repeated += 1
                again = _sample_one(plan, index, attempt, tables, most - attempt)
                attempt = int(again.attempts[0])
                row = next(_described(plan, again)) if repeated < _MAX_REPEATED else None
            if row is None:
                raise InputError(
                    f"After {index:,} rows for {plan.split}, no new {_kind(plan.cells[index])} puzzle is found; lower "
                    "--n or widen the options."
                )
            seen.add(row["id"])
            yield row


def solved_row(puzzle: Puzzle) -> dict[str, Any]:
    """The row of a puzzle, with its facts from the solver."""
    solved = solver.solve(puzzle)
    return _row(puzzle, list(puzzle.numbers), puzzle.target, solved.solutions, solved.solution, solved.needs)


def _row(
    terms: Puzzle | Distribution, nums: list[int], target: int, solutions: int, solution: str | None, needs: str | None
) -> dict[str, Any]:
    """A row of a data set; ``rule`` and ``operators`` are those of *terms*, and left out where they are the default."""
    rule, operators = terms.rule.name, terms.operators
    row = {
        "id": rules.puzzle_id(sorted(nums), target, rule, operators),
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
    """The rows as dictionaries; None for one that was not found."""
    texts = sampled.texts.tobytes().decode("ascii")
    columns = (sampled.attempts, sampled.nums, sampled.sizes, sampled.targets, sampled.counts, sampled.plain)
    rows = zip(*(column.tolist() for column in (*columns, sampled.lengths)), strict=True)
    for start, (attempt, nums, size, target, count, plain, length) in enumerate(rows):
        text = texts[start * kernel.TEXT : start * kernel.TEXT + length] if count else None
        needs = None if not count else "add-sub" if plain else "mul-div"
        yield None if attempt == -1 else _row(plan.distribution, nums[:size], target, count, text, needs)


def _sample_one(plan: SplitPlan, index: int, attempt: int, tables: tuple[Any, ...], limit: int) -> kernel.Rows:
    """The row at *index*, sampled as by :func:`_sample` in so short parts that a signal ends the process soon."""
    step = max(1, plan.limit(plan.sizes[index]) // 32)
    for start in range(attempt, attempt + max(1, limit), step):
        sampled = _sample(plan, np.array([index]), np.array([start]), tables, zeros(1), step)
        if sampled.attempts[0] != -1:
            break
    return sampled


def _sample(
    plan: SplitPlan, indices: Array, attempts: Array, tables: tuple[Any, ...], stop: Array, limit: int = LIMIT
) -> kernel.Rows:
    """The rows at *indices*, each sampled from its own attempt on; those of a list are put in random order.

    Those after one that is not found within *limit* attempts are not sampled. *stop* is a flag, (1,), by which another
    thread ends this.
    """
    distribution, count = plan.distribution, len(indices)
    texts = np.zeros((count, kernel.TEXT), dtype=np.uint8)
    columns = plan.sizes[indices], plan.cells[indices], attempts, plan.nums[indices], plan.targets[indices]
    sampled = kernel.Rows(indices, *columns, zeros(count), zeros(count), zeros(count), texts)
    values, stream = np.array(distribution.values, dtype=np.int64), SPLITS.index(plan.split)
    first, last = rules.parts_of(plan.split)
    source = kernel.Source(plan.seed, stream, limit, values, distribution.tiles, first, last, PARTS, stop)
    kernel_numba.draw(source, sampled, solver.goal(distribution, distribution.low, distribution.high), *tables)
    return sampled


def _chunks(plan: SplitPlan, workers: int) -> Iterator[tuple[int, kernel.Rows]]:
    """The rows in chunks, each with its first index; sampled ahead by threads, as the kernel releases the GIL."""
    stop = zeros(1)

    def sample(first: int) -> tuple[int, kernel.Rows]:
        indices = np.arange(first, min(first + CHUNK, len(plan.sizes)), dtype=np.int64)
        return first, _sample(plan, indices, plan.attempts[indices], plan.tables(), stop)

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
