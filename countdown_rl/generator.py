"""Seeded puzzles: drawn at random, proved by the solver, one split at a time.

Row *i* of a split depends on the seed and *i* alone: its random numbers are a hash of the two, tried again
until the puzzle is of the kind wanted and was not a row before. A longer file begins with the shorter one,
and the number of workers changes nothing.
"""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from countdown_rl import compiled, kernel, puzzle
from countdown_rl.errors import InputError, UsageError
from countdown_rl.puzzle import PARTS, RULES, SIGNS, SPLITS, Rule
from countdown_rl.solver import ROOM, TABLE

Array = Any  # of int64, for Numba

#: Attempts at one row before it is given up.
LIMIT = 2_000_000
CHUNK = 1_024

#: Bounds on the number of solutions, easiest last.
DIFFICULTY = {"one": (1, 1), "few": (2, 4), "many": (5, 1 << 62)}
NEEDS = {"add-sub": 1, "mul-div": 2}
_IMPOSSIBLE = 3


@dataclass(frozen=True)
class Kind:
    """What a row should be: a code for the kernel, and bounds on its number of solutions."""

    want: int = 0
    least: int = 1
    most: int = 1 << 62


@dataclass(frozen=True)
class Distribution:
    """What puzzles are drawn from.

    Attributes:
        sizes: how many numbers, and how often relative to the others.
        values: the numbers drawn from, each time from all of them, or where ``tiles`` is true without
            putting back.
        low, high: the targets, both included, all equally likely before what cannot be reached is dropped.
        impossible: the share of rows proved to have no solution.
        balance: of ``needs`` and ``difficulty``, what should come equally often.
    """

    sizes: dict[int, float]
    values: tuple[int, ...]
    low: int
    high: int
    tiles: bool = False
    rule: Rule = RULES[puzzle.DEFAULT_RULE]
    signs: str = SIGNS
    impossible: float = 0.0
    balance: tuple[str, ...] = ()

    def kinds(self) -> list[Kind]:
        """The kinds of solvable rows that take turns."""
        needs = list(NEEDS.values()) if "needs" in self.balance else [0]
        bounds = list(DIFFICULTY.values()) if "difficulty" in self.balance else [(1, 1 << 62)]
        return [Kind(want, *bound) for want in needs for bound in bounds]


PRESETS = {
    "3to4": Distribution({3: 1, 4: 1}, tuple(range(1, 100)), 10, 100),
    "24": Distribution({2: 0.1, 3: 0.4, 4: 0.5}, tuple(range(1, 25)), 10, 25),
    "tv": Distribution(
        {6: 1},
        (25, 50, 75, 100, *sorted([*range(1, 11)] * 2)),
        101,
        999,
        tiles=True,
        rule=RULES["television"],
    ),
}


@dataclass
class Exclusion:
    """Published puzzles to keep out: by their numbers and target, or by their numbers whatever the target."""

    puzzles: set[tuple[tuple[int, ...], int]] = field(default_factory=set)
    hands: set[tuple[int, ...]] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.puzzles or self.hands)

    def __contains__(self, item: tuple[tuple[int, ...], int]) -> bool:
        return item in self.puzzles or item[0] in self.hands


def rows(
    wanted: Distribution,
    split: str,
    n: int,
    *,
    seed: int,
    exclude: Exclusion | None = None,
    workers: int = 1,
) -> Iterator[dict[str, Any]]:
    """The *n* rows of one split.

    Raises:
        InputError: no further puzzle of a kind could be found.
    """
    drawing = _Drawing(wanted, split, seed)
    sizes, kinds = drawing.assign(n)
    seen: set[str] = set()
    exclude = exclude or Exclusion()
    for first, chunk in _chunks(drawing, sizes, kinds, workers):
        for k in range(len(chunk.attempts)):
            row = chunk.row(k)
            while row is not None and (row["id"] in seen or (exclude and _key(row) in exclude)):
                again = drawing.draw(
                    np.array([first + k]), sizes[first + k : first + k + 1], kinds[first + k : first + k + 1],
                    chunk.attempts[k : k + 1],
                )  # fmt: skip
                chunk.attempts[k] = again.attempts[0]
                row = again.row(0)
            if row is None:
                raise InputError(
                    f"No further puzzle of the kind wanted was found for {split} after {len(seen):,} rows; "
                    "ask for fewer, or for wider options."
                )
            seen.add(row["id"])
            yield row


def _key(row: dict[str, Any]) -> tuple[tuple[int, ...], int]:
    return tuple(sorted(row["nums"])), row["target"]


@dataclass
class _Chunk:
    """Rows as the kernel leaves them."""

    wanted: Distribution
    attempts: Array
    nums: list[list[int]]
    sizes: list[int]
    targets: list[int]
    counts: list[int]
    plain: list[int]
    text: bytes
    lengths: list[int]

    def row(self, k: int) -> dict[str, Any] | None:
        if self.attempts[k] < 0:
            return None
        size = self.sizes[k]
        nums = self.nums[k][:size]
        solutions = self.counts[k]
        at = kernel.TEXT * k
        return make_row(
            nums,
            self.targets[k],
            solutions,
            self.text[at : at + self.lengths[k]].decode("ascii") if solutions else None,
            ("add-sub" if self.plain[k] else "mul-div") if solutions else None,
            self.wanted.rule.name,
            self.wanted.signs,
        )


def make_row(
    nums: Sequence[int],
    target: int,
    solutions: int,
    solution: str | None,
    needs: str | None,
    rule: str = puzzle.DEFAULT_RULE,
    signs: str = SIGNS,
) -> dict[str, Any]:
    """A row of a data set. ``rule`` and ``operators`` are written where they are not the usual ones."""
    row = {
        "id": puzzle.puzzle_id(sorted(nums), target, rule, signs),
        "nums": nums,
        "target": target,
        "solutions": solutions,
        "solution": solution,
        "needs": needs,
        "size": len(nums),
    }
    if rule != puzzle.DEFAULT_RULE:
        row["rule"] = rule
    if signs != SIGNS:
        row["operators"] = signs
    return row


class _Drawing:
    """The draws of one split: what row *i* should be, and the puzzles that are."""

    def __init__(self, wanted: Distribution, split: str, seed: int) -> None:
        self.wanted = wanted
        self.seed = seed
        self.stream = SPLITS.index(split)
        self.split = np.array(puzzle.parts_of(split), dtype=np.int64)
        self.values = np.array(wanted.values, dtype=np.int64)
        self.largest = max(wanted.sizes)
        bound = 16 * wanted.high
        for number in sorted(wanted.values)[-self.largest :] if wanted.tiles else [max(wanted.values)] * self.largest:
            bound *= number
        if bound >= 1 << 62:
            raise UsageError("Such large numbers and targets cannot be drawn; lower --numbers or --targets.")

    def assign(self, n: int) -> tuple[Array, list[Kind]]:
        """How many numbers each of *n* rows has, and its kind."""
        indices = np.arange(n, dtype=np.int64)
        even = kernel.mix(kernel.mix(kernel.mix(self.seed) ^ (self.stream + 16)) ^ indices) / 2.0**61
        sizes = np.array(list(self.wanted.sizes), dtype=np.int64)
        weights = np.cumsum(list(self.wanted.sizes.values()))
        chosen = sizes[np.searchsorted(weights / weights[-1], even, side="right").clip(max=len(sizes) - 1)]
        share = self.wanted.impossible
        turns = self.wanted.kinds()
        kinds = []
        for i in range(n):
            done = int(i * share + 1e-9)
            impossible = int((i + 1) * share + 1e-9) > done
            kinds.append(Kind(_IMPOSSIBLE, 0, 0) if impossible else turns[(i - done) % len(turns)])
        return chosen, kinds

    def draw(self, indices: Array, sizes: Array, kinds: Sequence[Kind], attempts: Array) -> _Chunk:
        """The rows at *indices*, each from its own attempt on."""
        count, wanted = len(indices), self.wanted
        done = attempts.copy()
        nums = np.zeros((count, self.largest), dtype=np.int64)
        numbers = np.zeros((3, count), dtype=np.int64)
        text = np.zeros((count, kernel.TEXT), dtype=np.uint8)
        lengths = np.zeros(count, dtype=np.int64)
        tables = [np.empty(ROOM[self.largest] + 1, dtype=np.int64) for _ in range(10)]
        subsets = [np.zeros(1 << self.largest, dtype=np.int64) for _ in range(2)]
        seen = np.zeros(TABLE[self.largest], dtype=np.int64)
        one = [np.zeros(size, dtype=np.int64) for size in (1, 1, 1, 5, 0, 128)]
        compiled.draw(
            self.seed, self.stream, indices, done, LIMIT, sizes, self.values, wanted.tiles, self.split, PARTS,
            wanted.low, wanted.high,
            *_columns(kinds),
            wanted.rule.every, wanted.rule.whole, *(sign in wanted.signs for sign in SIGNS),
            nums, *numbers, text, lengths, *tables, *subsets, seen, *one,
        )  # fmt: skip
        targets, counts, plain = numbers.tolist()
        return _Chunk(
            wanted,
            done,
            nums.tolist(),
            sizes.tolist(),
            targets,
            counts,
            plain,
            text.tobytes(),
            lengths.tolist(),
        )


def _columns(kinds: Sequence[Kind]) -> list[Array]:
    columns = zip(*((kind.want, kind.least, kind.most) for kind in kinds), strict=True)
    return [np.array(column, dtype=np.int64) for column in columns]


def _chunks(drawing: _Drawing, sizes: Array, kinds: Sequence[Kind], workers: int) -> Iterator[tuple[int, _Chunk]]:
    """The rows in order, drawn ahead by threads: the kernel lets go of the interpreter lock."""

    def work(first: int) -> _Chunk:
        last = min(first + CHUNK, len(sizes))
        nothing = np.zeros(last - first, dtype=np.int64)
        return drawing.draw(np.arange(first, last), sizes[first:last], kinds[first:last], nothing)

    starts = list(range(0, len(sizes), CHUNK))
    with ThreadPoolExecutor(workers) as pool:
        ahead: list[Future[_Chunk]] = []
        for position, first in enumerate(starts):
            while len(ahead) <= workers and position + len(ahead) < len(starts):
                ahead.append(pool.submit(work, starts[position + len(ahead)]))
            yield first, ahead.pop(0).result()


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
