"""Distributions of puzzles to draw from, and puzzles to keep out."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from countdown_rl.tasks.countdown.rules import DEFAULT_RULE, OPERATORS, RULES, Rule

#: Sets of cells, as bits (see ``kernel.cell_of``).
IMPOSSIBLE = 0b0000001
NEEDS = {"add-sub": 0b0001110, "mul-div": 0b1110000}
DIFFICULTY = {"one": 0b0010010, "few": 0b0100100, "many": 0b1001000}
SOLVABLE = 0b1111110


@dataclass(frozen=True)
class Distribution:
    """A distribution of puzzles.

    Attributes:
        sizes: weights by count of numbers.
        values: the numbers to draw from, with replacement, or without where ``tiles`` is true.
        low, high: the targets, both included.
        impossible: the share of rows proved to have no solution.
        balance: properties whose values come equally often, of ``needs`` (whether + and - suffice) and
            ``difficulty`` (1, 2 to 4, or more solutions).
    """

    sizes: dict[int, float]
    values: tuple[int, ...]
    low: int
    high: int
    tiles: bool = False
    rule: Rule = RULES[DEFAULT_RULE]
    operators: str = OPERATORS
    impossible: float = 0.0
    balance: tuple[str, ...] = ()

    def upper_bound(self) -> int:
        """The number of puzzles in all splits, solvable or not."""
        largest = max(self.sizes)
        sets = [1] + [0] * largest  # the sets of 0, 1, ... numbers of the values so far
        for copies in Counter(self.values).values():
            copies = copies if self.tiles else largest
            sets = [sum(sets[max(0, size - copies) : size + 1]) for size in range(largest + 1)]
        return sum(sets[size] for size in self.sizes) * (self.high - self.low + 1)

    def balanced_cells(self) -> list[int]:
        """The sets of cells (as bits) that solvable rows take in turn."""
        needs = list(NEEDS.values()) if "needs" in self.balance else [SOLVABLE]
        difficulty = list(DIFFICULTY.values()) if "difficulty" in self.balance else [SOLVABLE]
        return [first & second for first in needs for second in difficulty]


_TILES = (25, 50, 75, 100, *sorted([*range(1, 11)] * 2))

PRESETS = {
    "3to4": Distribution({3: 1, 4: 1}, tuple(range(1, 100)), 10, 100),
    "24": Distribution({2: 0.1, 3: 0.4, 4: 0.5}, tuple(range(1, 25)), 10, 25),
    "tv": Distribution({6: 1}, _TILES, 101, 999, tiles=True, rule=RULES["television"]),
}


#: Puzzles to keep out: by numbers (ascending) and target, or by their numbers whatever the target.
Exclusion = set[tuple[Any, ...]]


def is_excluded(exclude: Exclusion, nums: Sequence[int], target: int) -> bool:
    """True where the puzzle of *nums*, in any order, is kept out."""
    ordered = tuple(sorted(nums))
    return ordered in exclude or (ordered, target) in exclude
