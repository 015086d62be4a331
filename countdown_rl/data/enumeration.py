"""All puzzles of a distribution, found by solving its sets of numbers one after another."""

from collections import Counter
from collections.abc import Iterator
from itertools import combinations_with_replacement, islice
from typing import Any

import numpy as np

from countdown_rl.data.distribution import Distribution, Exclusion, is_excluded
from countdown_rl.tasks.countdown import kernel, kernel_numba, solver
from countdown_rl.tasks.countdown.rules import PARTS, parts_of

#: Sets of numbers, by size, that are solved in about a second.
_MAX_SETS = (0, 1 << 30, 1 << 30, 1 << 19, 1 << 18, 1 << 14, 1 << 9)

#: Sets of the first batch, and puzzles of the largest one.
_BATCH, _MAX_PUZZLES = 256, 1 << 22

Array = Any  # of int64, for Numba


def zeros(*shape: int) -> Array:
    return np.zeros(shape, dtype=np.int64)


def puzzles(
    distribution: Distribution, exclude: Exclusion, size: int, split: str, cells: int, enough: int, max_sets: int
) -> Array | None:
    """All puzzles of *cells* (as bits), or None where there are at least *enough*.

    Returns:
        An array (puzzles, 1 + size): the target, and the numbers in ascending order. None also where there are more
        than *max_sets* sets of numbers, and more than can be solved in about a second.
    """
    columns = [cell for cell in range(7) if cells >> cell & 1]
    parts, count, total = [zeros(0, 1 + size)], 0, 0
    for sets, nums, solved in _solved(distribution, size, split):
        rows, above = np.isin(solved, columns).nonzero()
        listed = np.column_stack((distribution.low + above, nums[rows]))
        if exclude:
            kept = [not is_excluded(exclude, numbers, target) for target, *numbers in listed.tolist()]
            listed = listed[np.array(kept, dtype=bool)]
        parts.append(listed)
        count, total = count + len(listed), total + sets
        if count >= enough or total >= max(_MAX_SETS[size], max_sets):
            return None
    return np.concatenate(parts)


def _solved(distribution: Distribution, size: int, split: str) -> Iterator[tuple[int, Array, Array]]:
    """Solve the sets of *size* numbers in *split* for every target, except those that have too many of a tile.

    Yields:
        How many sets were considered, those of them that were solved (sets, size), and the cells of their puzzles
        (sets, targets).
    """
    first, last = parts_of(split)
    targets = distribution.high - distribution.low + 1
    goal, tiles = solver.goal(distribution, distribution.low, distribution.high), Counter(distribution.values)
    number_sets, steps = combinations_with_replacement(sorted(tiles), size), _BATCH
    while batch := list(islice(number_sets, steps)):
        steps = max(1, min(2 * steps, _MAX_PUZZLES // targets, _MAX_SETS[size] // 2))  # signals wait for a batch
        nums = np.array(batch, dtype=np.int64)
        part = kernel.split_part(nums.T, PARTS)
        kept = (first <= part) & (part <= last)
        if distribution.tiles:
            kept &= [Counter(numbers) <= tiles for numbers in batch]
        nums = nums[kept]
        cells = np.empty((len(nums), targets), dtype=np.uint8)
        none = zeros(len(nums))
        rows = kernel.Rows(none, none + size, none, none - 3, nums, none, none, none, none, cells)
        source = kernel.Source(0, 0, 0, zeros(1), False, 0, 0, PARTS, zeros(1))
        kernel_numba.draw(source, rows, goal, *kernel.tables(zeros, size, targets, 0), zeros(kernel.SCRATCH))
        yield len(batch), nums, cells
