"""Seeded puzzles: drawn at random, proved by the solver, one split at a time.

Row *i* of a split depends on the seed and *i* alone: its random numbers are a hash of the two, tried again
until the puzzle is of the kind wanted and was not a row before. So a longer file begins with the shorter
one, and the number of workers changes nothing. Only where more than half of the puzzles that exist are
wanted are they listed and shuffled instead.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from countdown_rl.data.distribution import IMPOSSIBLE, Distribution, Exclusion
from countdown_rl.data.enumeration import Stock, tables
from countdown_rl.errors import InputError, UsageError
from countdown_rl.puzzle import kernel, kernel_numba, rules, solver
from countdown_rl.puzzle.rules import OPERATORS, PARTS, SPLITS

Array = Any  # of int64, for Numba

#: Attempts at one row before it is given up.
LIMIT = 300_000
CHUNK = 1_024


@dataclass
class Plan:
    """What each row of a split should be.

    Attributes:
        sizes: how many numbers. cells: which kinds will do, as bits.
        listed: by size and cells, where the puzzles are taken from a shuffled list: all there are.
        places: of such a row, its place in the list.
    """

    wanted: Distribution
    split: str
    seed: int
    sizes: Array
    cells: Array
    exclude: Exclusion
    listed: dict[tuple[int, int], Array] = field(default_factory=dict)
    places: Array = None


def plan(stock: Stock, split: str, n: int, *, seed: int) -> Plan:
    """Settle what the *n* rows of *split* should be. Where a size runs out, the others make up for it.

    Raises:
        UsageError: numbers too large. InputError: more rows than there are puzzles; the text says how many.
    """
    wanted = stock.wanted
    _check_range(wanted)
    most = stock.most()
    if most is not None and n > most:
        raise InputError(f"There are at most {most:,} such puzzles, fewer than the {n:,} wanted; lower --n.")
    indices = np.arange(n, dtype=np.int64)
    done = np.floor(indices * wanted.impossible + 1e-9).astype(np.int64)
    impossible = np.floor((indices + 1) * wanted.impossible + 1e-9).astype(np.int64) > done
    turns = np.array(wanted.turns(), dtype=np.int64)
    cells = np.where(impossible, IMPOSSIBLE, turns[(indices - done) % len(turns)])
    made = Plan(wanted, split, seed, np.zeros(n, dtype=np.int64), cells, stock.exclude)
    for kind in sorted({int(kind) for kind in np.unique(cells)}):
        _choose_sizes(made, kind, stock)
    made.places = np.zeros(n, dtype=np.int64)
    for size, kind in made.listed:
        mine = np.flatnonzero((made.sizes == size) & (made.cells == kind))
        made.places[mine] = np.arange(len(mine))
    return made


def _choose_sizes(made: Plan, kind: int, stock: Stock) -> None:
    left = np.flatnonzero(made.cells == kind)
    weights = dict(made.wanted.sizes)
    wanted = len(left)
    salt = 16 + SPLITS.index(made.split)
    while len(left):
        if not weights:
            raise InputError(
                f"Only {wanted - len(left):,} of the {wanted:,} puzzles wanted for {made.split} exist "
                f"({_words(kind)}); lower --n or widen the options."
            )
        even = kernel.mix(kernel.mix(kernel.mix(made.seed) ^ salt) ^ left) / 2.0**61
        edges = np.cumsum(list(weights.values())) / sum(weights.values())
        drawn = np.array(list(weights))[np.searchsorted(edges, even, side="right").clip(max=len(edges) - 1)]
        over = []
        for size in list(weights):
            mine = left[drawn == size]
            have = int(((made.sizes == size) & (made.cells == kind)).sum())
            every = stock.puzzles(size, made.split, kind, enough=2 * (have + len(mine)))
            if every is not None:
                if (size, kind) not in made.listed:
                    made.listed[size, kind] = _shuffled(every, made.seed)
                over.append(mine[max(0, len(every) - have) :])
                mine = mine[: max(0, len(every) - have)]
                if len(every) <= have + len(mine):
                    del weights[size]
            made.sizes[mine] = size
        left = np.sort(np.concatenate(over)) if over else left[:0]
        salt += 16


def _shuffled(puzzles: Array, seed: int) -> Array:
    keys = np.full(len(puzzles), kernel.mix(seed), dtype=np.int64)
    for column in puzzles.T:
        keys = kernel.mix(keys ^ column)
    return puzzles[np.argsort(keys, kind="stable")]


def _words(kind: int) -> str:
    return "impossible ones" if kind == IMPOSSIBLE else "solvable ones of the kind asked for"


def rows(made: Plan, *, workers: int = 1) -> Iterator[dict[str, Any]]:
    """The rows of *made* in order.

    Raises:
        InputError: no further puzzle of a kind was found.
    """
    seen: set[str] = set()
    work = _work(made)
    for first, chunk in _chunks(made, workers):
        for k, row in enumerate(chunk.rows()):
            i = first + k
            while row is not None and (row["id"] in seen or (made.exclude and _key(row) in made.exclude)):
                again = _draw(made, np.array([i]), chunk.attempts[k : k + 1], work)
                chunk.attempts[k] = again.attempts[0]
                row = next(again.rows())
            if row is None:
                raise InputError(
                    f"After {i:,} rows for {made.split}, {LIMIT:,} draws gave no new puzzle of that kind; "
                    "lower --n or widen the options."
                )
            seen.add(row["id"])
            yield row


def _key(row: dict[str, Any]) -> tuple[tuple[int, ...], int]:
    return tuple(sorted(row["nums"])), row["target"]


def solved_row(posed: rules.Puzzle) -> dict[str, Any]:
    """The row of a puzzle, its facts found by the solver."""
    found = solver.solve(posed)
    return make_row(
        list(posed.numbers),
        posed.target,
        found.solutions,
        found.solution,
        found.needs,
        posed.rule.name,
        posed.operators,
    )


def make_row(
    nums: list[int],
    target: int,
    solutions: int,
    solution: str | None,
    needs: str | None,
    rule: str,
    operators: str,
) -> dict[str, Any]:
    """A row of a data set. ``rule`` and ``operators`` are written where they are not the usual ones."""
    row = {
        "id": rules.puzzle_id(sorted(nums), target, rule, operators),
        "nums": nums,
        "target": target,
        "solutions": solutions,
        "solution": solution,
        "needs": needs,
        "size": len(nums),
    }
    if rule != rules.DEFAULT_RULE:
        row["rule"] = rule
    if operators != OPERATORS:
        row["operators"] = operators
    return row


@dataclass
class _Chunk:
    """Rows as the kernel leaves them."""

    wanted: Distribution
    attempts: list[int]
    nums: list[list[int]]
    facts: list[list[int]]  # size, target, count, plain, characters of text
    text: str

    def rows(self) -> Iterator[dict[str, Any] | None]:
        rule, operators = self.wanted.rule.name, self.wanted.operators
        at = 0
        for done, nums, (size, target, count, plain, length) in zip(self.attempts, self.nums, self.facts, strict=True):
            if done == -1:
                yield None
            elif count:
                needs = "add-sub" if plain else "mul-div"
                yield make_row(nums[:size], target, count, self.text[at : at + length], needs, rule, operators)
            else:
                yield make_row(nums[:size], target, 0, None, None, rule, operators)
            at += kernel.TEXT


def _draw(made: Plan, indices: Array, attempts: Sequence[int], work: list[Array]) -> _Chunk:
    """The rows at *indices*, each from its own attempt on; those that come from a list as they are there.

    *work* is what :func:`_work` returns, for one thread at a time.
    """
    wanted = made.wanted
    largest = max(wanted.sizes)
    count = len(indices)
    done = np.array(attempts, dtype=np.int64)
    nums = np.zeros((count, largest), dtype=np.int64)
    facts = np.zeros((5, count), dtype=np.int64)
    facts[0] = made.sizes[indices]
    cells = made.cells[indices]
    for (size, kind), puzzles in made.listed.items():
        mine = np.flatnonzero((facts[0] == size) & (cells == kind))
        given = puzzles[made.places[indices[mine]]]
        done[mine] = -2
        facts[1, mine], nums[mine, :size] = given[:, 0], given[:, 1:]
    text = np.zeros((count, kernel.TEXT), dtype=np.uint8)
    first, last = rules.parts_of(made.split)
    kernel_numba.draw(
        made.seed, SPLITS.index(made.split), indices, done, LIMIT, facts[0],
        np.array(wanted.values, dtype=np.int64), wanted.tiles, first, last, PARTS, wanted.low, wanted.high,
        made.cells[indices],
        wanted.rule.every, wanted.rule.whole, solver.joins(wanted.operators),
        nums, facts[1], facts[2], facts[3], text, facts[4],
        *work,
    )  # fmt: skip
    return _Chunk(wanted, done.tolist(), nums.tolist(), facts.T.tolist(), text.tobytes().decode("ascii"))


def _work(made: Plan) -> list[Array]:
    """What the kernel works on."""
    targets = made.wanted.high - made.wanted.low + 1
    return [*tables(max(made.wanted.sizes), targets), np.zeros(128, dtype=np.int64)]


def _chunks(made: Plan, workers: int) -> Iterator[tuple[int, _Chunk]]:
    """The rows in order, drawn ahead by threads: the kernel lets go of the interpreter's lock."""

    def work(first: int) -> _Chunk:
        indices = np.arange(first, min(first + CHUNK, len(made.sizes)), dtype=np.int64)
        return _draw(made, indices, [0] * len(indices), _work(made))

    waiting = iter(range(0, len(made.sizes), CHUNK))
    with ThreadPoolExecutor(workers) as pool:
        ahead: list[tuple[int, Future[_Chunk]]] = []
        try:
            while True:
                for first in waiting:
                    ahead.append((first, pool.submit(work, first)))
                    if len(ahead) > workers:
                        break
                if not ahead:
                    return
                first, chunk = ahead.pop(0)
                yield first, chunk.result()
        finally:
            for _, chunk in ahead:
                chunk.cancel()


def _check_range(wanted: Distribution) -> None:
    largest = sorted(wanted.values)[-max(wanted.sizes) :] if wanted.tiles else [max(wanted.values)] * max(wanted.sizes)
    bound = 16 * wanted.high
    for number in largest:
        bound *= number
    if bound >= 1 << 62 or wanted.high - wanted.low >= 100_000:
        raise UsageError("Such large numbers or targets cannot be drawn; lower --numbers or --targets.")
