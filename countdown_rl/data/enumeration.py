"""How many puzzles there are: counted set of numbers by set of numbers, as far as it matters.

Counting stops when twice as many puzzles were found as are wanted, since drawing at random finds new ones
then. Where it ends with fewer, all of them are known, and can be listed.
"""

from typing import Any

import numpy as np

from countdown_rl.data.distribution import Distribution, Exclusion
from countdown_rl.puzzle import kernel_numba
from countdown_rl.puzzle.rules import PARTS, SPLITS
from countdown_rl.puzzle.solver import ROOM, TABLE, joins

#: Sets of numbers looked at before it is taken for granted that there are enough, by size: about a second.
_STEPS = (0, 1 << 30, 1 << 30, 1 << 19, 1 << 18, 1 << 14, 1 << 9)
_BATCH = 256


def tables(size: int, targets: int) -> list[Any]:
    """The tables that the kernel's search works on, for up to *size* numbers and so many targets."""
    shapes = (
        *[ROOM[size]] * 5,
        1 << size,
        1 << size,
        TABLE[size],
        targets,
        targets,
        targets,
        targets,
        0,
    )
    return [np.zeros(shape, dtype=np.int64) for shape in shapes]


class Stock:
    """The puzzles of one distribution, counted when asked."""

    def __init__(self, wanted: Distribution, exclude: Exclusion) -> None:
        self.wanted = wanted
        self.exclude = exclude
        values, copies = np.unique(np.array(wanted.values, dtype=np.int64), return_counts=True)
        self._values = values
        self._copies = copies.astype(np.int64) if wanted.tiles else np.full(len(values), 64, dtype=np.int64)
        self._tallies: dict[int, Any] = {}
        self._at: dict[int, Any] = {}
        self._seen: dict[int, int] = {}
        self._ends: dict[int, bool] = {}
        self._lists: dict[tuple[int, int, int], Any] = {}

    def most(self) -> int | None:
        """More puzzles there cannot be, solvable or not; None where a second is enough to count them."""
        sets = {size: self.wanted.sets(size) for size in self.wanted.sizes}
        if all(number <= _STEPS[size] for size, number in sets.items()):
            return None
        return sum(sets.values()) * (self.wanted.high - self.wanted.low + 1)

    def puzzles(self, size: int, split: str, cells: int, enough: int) -> Any:
        """All puzzles of one kind, or None where there are at least *enough*, or too many to count.

        Returns an array (puzzles, 1 + size): the target, and the numbers in order.
        """
        if size not in self._tallies:
            self._count(size)
        part, bits = SPLITS.index(split), [cell for cell in range(7) if cells >> cell & 1]
        out = len(self.exclude.puzzles) + len(self.exclude.hands) * (self.wanted.high - self.wanted.low + 1)
        while self._tallies[size][part, bits].sum() - out < enough and not self._ends[size]:
            # Drawing as many rows would take longer than to look at as many sets.
            if self._seen[size] >= max(_STEPS[size], enough):
                return None
            self._count(size)
        if self._tallies[size][part, bits].sum() - out >= enough:
            return None
        if (size, part, cells) not in self._lists:
            self._lists[size, part, cells] = self._list(size, part, cells, int(self._tallies[size][part, bits].sum()))
        return self._lists[size, part, cells]

    def _count(self, size: int) -> None:
        """Look at more sets of *size* numbers: twice as many as so far."""
        if size not in self._tallies:
            self._tallies[size] = np.zeros((3, 7), dtype=np.int64)
            self._at[size] = np.zeros(size, dtype=np.int64)
            self._seen[size] = 0
        steps = max(_BATCH, self._seen[size])
        nothing = np.zeros((0, 1 + size), dtype=np.int64)
        _, more = self._census(size, self._at[size], steps, self._tallies[size], nothing, 0, 0)
        self._seen[size] += steps
        self._ends[size] = not more

    def _list(self, size: int, part: int, cells: int, count: int) -> Any:
        room = np.zeros((count, 1 + size), dtype=np.int64)
        tally = np.zeros((3, 7), dtype=np.int64)
        self._census(size, np.zeros(size, dtype=np.int64), 1 << 40, tally, room, part, cells)
        if not self.exclude:
            return room
        kept = [(tuple(row[1:]), row[0]) not in self.exclude for row in room.tolist()]
        return room[np.array(kept, dtype=bool)]

    def _census(
        self, size: int, at: Any, steps: int, tally: Any, listed: Any, part: int, cells: int
    ) -> tuple[int, bool]:
        wanted = self.wanted
        work = tables(size, wanted.high - wanted.low + 1)
        return kernel_numba.census(
            at, self._values, self._copies, PARTS, wanted.low, wanted.high, steps, tally, listed, part, cells,
            wanted.rule.every, wanted.rule.whole, joins(wanted.operators), *work,
        )  # fmt: skip
