"""Enumeration of the puzzles of a distribution, set of numbers by set of numbers, as far as it matters.

Counting stops at twice as many puzzles as are wanted, since drawing at random then finds new ones. Where it ends
with fewer, all of them are known and can be listed.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from countdown_rl.data.distribution import Distribution, Exclusion
from countdown_rl.puzzle import kernel, kernel_numba, solver
from countdown_rl.puzzle.rules import PARTS, SPLITS

#: Sets of numbers, by size, that are counted (in about a second) before there are taken to be enough puzzles.
_MAX_SETS = (0, 1 << 30, 1 << 30, 1 << 19, 1 << 18, 1 << 14, 1 << 9)
_BATCH = 256

Array = Any  # of int64, for Numba


def zeros(*shape: int) -> Array:
    return np.zeros(shape, dtype=np.int64)


@dataclass
class _Count:
    """The puzzles counted so far: (3 splits, 7 cells), and the set of numbers to continue from."""

    tally: Array
    position: Array
    sets: int = 0
    complete: bool = False


class Enumeration:
    """The puzzles of one distribution, counted on demand."""

    def __init__(self, distribution: Distribution, exclude: Exclusion) -> None:
        self.distribution = distribution
        self.exclude = exclude
        self._values, copies = np.unique(np.array(distribution.values, dtype=np.int64), return_counts=True)
        self._copies = copies.astype(np.int64) if distribution.tiles else np.full_like(self._values, 64)
        self._counts: dict[int, _Count] = {}
        self._lists: dict[tuple[int, int, int], Array] = {}

    def puzzles(self, size: int, split: str, cells: int, enough: int) -> Array | None:
        """All puzzles of *cells* (as bits), or None where there are at least *enough*, or too many to count.

        Returns an array (puzzles, 1 + size): the target, and the numbers in ascending order.
        """
        index, columns = SPLITS.index(split), [cell for cell in range(7) if cells >> cell & 1]
        targets = self.distribution.high - self.distribution.low + 1
        needed = enough + len(self.exclude.puzzles) + len(self.exclude.number_sets) * targets
        count = self._counts.setdefault(size, _Count(zeros(3, 7), zeros(size)))
        while not count.complete and count.tally[index, columns].sum() < needed:
            # Drawing the rows takes longer than counting as many sets.
            if count.sets >= max(_MAX_SETS[size], enough):
                return None
            steps = max(_BATCH, count.sets)
            _, left = self._census(count.position, steps, count.tally, zeros(0, 1 + size), 0, 0)
            count.sets, count.complete = count.sets + steps, not left
        total = int(count.tally[index, columns].sum())
        if total >= needed:
            return None
        if (size, index, cells) not in self._lists:
            listed = zeros(total, 1 + size)
            self._census(zeros(size), 1 << 40, zeros(3, 7), listed, index, cells)
            if self.exclude:
                kept = [(tuple(numbers), target) not in self.exclude for target, *numbers in listed.tolist()]
                listed = listed[np.array(kept, dtype=bool)]
            self._lists[size, index, cells] = listed
        return self._lists[size, index, cells]

    def _census(
        self, position: Array, steps: int, tally: Array, listed: Array, list_split: int, list_cells: int
    ) -> tuple[int, bool]:
        low, high = self.distribution.low, self.distribution.high
        sets = kernel.Census(self._values, self._copies, PARTS, tally, listed, list_split, list_cells)
        classes, matches = kernel.tables(zeros, len(position), high - low + 1, 0)
        return kernel_numba.census(position, steps, sets, solver.goal(self.distribution, low, high), classes, matches)
