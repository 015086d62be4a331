"""Counts and lists of the puzzles of a distribution. Its sets of numbers are solved one after another.

Counting stops at twice as many puzzles as are wanted, because drawing at random then finds new ones. If there are
fewer, all of them are known, and they can be listed.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations_with_replacement, islice
from math import comb
from typing import Any

import numpy as np

from countdown_rl.data.distribution import Distribution, Exclusion
from countdown_rl.puzzle import kernel, kernel_numba, solver
from countdown_rl.puzzle.rules import PARTS, SPLITS

#: Sets of numbers, by size, that are counted (in about a second) before there are taken to be enough puzzles.
_MAX_SETS = (0, 1 << 30, 1 << 30, 1 << 19, 1 << 18, 1 << 14, 1 << 9)
_BATCH = 256

#: Puzzles that are held in memory at once.
_MAX_PUZZLES = 1 << 22

Array = Any  # of int64, for Numba
NumberSets = Iterator[tuple[int, ...]]


def zeros(*shape: int) -> Array:
    return np.zeros(shape, dtype=np.int64)


@dataclass
class _Count:
    """The puzzles counted so far: (3 splits, 7 cells), how many sets of numbers they have, and those that are left."""

    tally: Array
    left: NumberSets
    sets: int = 0


class Enumeration:
    """The puzzles of one distribution, counted on demand."""

    def __init__(self, distribution: Distribution, exclude: Exclusion) -> None:
        self.distribution = distribution
        self.exclude = exclude
        self._values = sorted(set(distribution.values))
        self._counts: dict[int, _Count] = {}
        self._lists: dict[tuple[int, int, int], Array] = {}

    def puzzles(self, size: int, split: str, cells: int, enough: int) -> Array | None:
        """All puzzles of *cells* (as bits), or None where there are at least *enough*, or too many to count.

        Returns an array (puzzles, 1 + size): the target, and the numbers in ascending order.
        """
        index, columns = SPLITS.index(split), [cell for cell in range(7) if cells >> cell & 1]
        targets = self.distribution.high - self.distribution.low + 1
        needed = enough + len(self.exclude.puzzles) + len(self.exclude.number_sets) * targets
        count = self._counts.setdefault(size, _Count(zeros(3, 7), self._number_sets(size)))
        while count.tally[index, columns].sum() < needed:
            if count.sets >= comb(len(self._values) + size - 1, size):
                break
            # Drawing the rows takes longer than counting as many sets.
            if count.sets >= max(_MAX_SETS[size], enough):
                return None
            steps = max(_BATCH, count.sets)
            for _, splits, found in self._solved(islice(count.left, steps)):
                count.tally += np.bincount((splits[:, None] * 7 + found).ravel(), minlength=21).reshape(3, 7)
            count.sets += steps
        else:
            return None
        if (size, index, cells) not in self._lists:
            parts = [zeros(0, 1 + size)]
            for nums, splits, found in self._solved(self._number_sets(size)):
                rows, above = ((splits == index)[:, None] & np.isin(found, columns)).nonzero()
                parts.append(np.column_stack((self.distribution.low + above, nums[rows])))
            listed = np.concatenate(parts)
            if self.exclude:
                kept = [(tuple(numbers), target) not in self.exclude for target, *numbers in listed.tolist()]
                listed = listed[np.array(kept, dtype=bool)]
            self._lists[size, index, cells] = listed
        return self._lists[size, index, cells]

    def _number_sets(self, size: int) -> NumberSets:
        return combinations_with_replacement(self._values, size)

    def _solved(self, number_sets: NumberSets) -> Iterator[tuple[Array, Array, Array]]:
        """Solve *number_sets* for every target, those that have too many of a tile left out.

        Yields:
            Some of them (sets, size), their splits (sets,), and the cells of their puzzles (sets, targets).
        """
        low, high = self.distribution.low, self.distribution.high
        goal, tiles = solver.goal(self.distribution, low, high), Counter(self.distribution.values)
        while batch := list(islice(number_sets, max(1, _MAX_PUZZLES // (high - low + 1)))):
            if self.distribution.tiles:
                batch = [numbers for numbers in batch if Counter(numbers) <= tiles]
                if not batch:
                    continue
            nums = np.array(batch, dtype=np.int64)
            sets, size = nums.shape
            cells = np.empty((sets, high - low + 1), dtype=np.uint8)
            none = zeros(sets)
            rows = kernel.Rows(none, none + size, none, none - 3, nums, none, none, none, none, cells)
            source = kernel.Source(0, 0, 0, zeros(1), False, 0, 0, PARTS)
            kernel_numba.draw(source, rows, goal, *kernel.tables(zeros, size, high - low + 1, 0), zeros(kernel.SCRATCH))
            yield nums, np.maximum(0, kernel.split_part(nums.T, PARTS) - PARTS + len(SPLITS)), cells
