"""Judgements of ways before they are executed: which of them may solve a puzzle, by the kind of the
puzzle.

The kind (:func:`traces.kind`) is five comparisons with the target, and the size of the smallest
number. A way looks *poor* where it divides one of the numbers by another and the division is not
exact, and where it solves fewer than 1.25% of the puzzles of this kind; else it looks *good*.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stages.recipes.tiny import traces

#: Counts of numbers that have kinds.
SIZES = (4,)
#: Share of the puzzles of a kind that a good way solves.
_GOOD = 0.0125
#: Puzzles that the shares are counted on, and as how many more, of a share of 1%, those of each
#: kind count.
_PUZZLES, _PRIOR, _USUAL = 40_000, 20, 0.01


class Judge:
    """The judgements of each way of a plan, for puzzles of one size.

    Args:
        rows: puzzles of this size, to count on.
        ways: the plan for them.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]], ways: Sequence[traces.Way]) -> None:
        self._ways = ways
        tried, solved = np.zeros((traces.KINDS, len(ways))), np.zeros((traces.KINDS, len(ways)))
        for row in rows[:_PUZZLES]:
            numbers = sorted(row["nums"], reverse=True)
            kind = traces.kind(numbers, row["target"])
            lines = [traces.execute(numbers, way, row["target"]) for way in ways]
            tried[kind] += self._exact(numbers)
            solved[kind] += [line.value == row["target"] for line in lines]
        self._good = (solved + _PRIOR * _USUAL) / (tried + _PRIOR) >= _GOOD  # (kinds, ways)

    def __call__(self, row: Mapping[str, Any]) -> list[bool]:
        """Return which ways look good for *row*."""
        numbers = sorted(row["nums"], reverse=True)
        good: list[bool] = (
            self._good[traces.kind(numbers, row["target"])] & self._exact(numbers)
        ).tolist()
        return good

    def _exact(self, numbers: Sequence[int]) -> np.ndarray:
        """Return (ways,) which ways divide no two of the *numbers* with a remainder."""
        names = traces.NAMES[: len(numbers)]
        exact = {
            f"{first}/{second}": high % low == 0
            for first, high in zip(names, numbers, strict=True)
            for second, low in zip(names, numbers, strict=True)
        }
        return np.array([all(exact.get(step, True) for step in way.split()) for way in self._ways])
