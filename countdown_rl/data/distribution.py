"""Distributions of puzzles to draw from, and puzzles to keep out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from countdown_rl.tasks.countdown.rules import DEFAULT_RULE, OPERATORS, RULES, Rule


@dataclass(frozen=True)
class Distribution:
    """A distribution of puzzles.

    Attributes:
        sizes: weights by count of numbers.
        values: the numbers to draw from, with replacement, or without if ``tiles`` is true.
        low, high: the range of targets, both included.
        impossible: the share of rows proved to have no solution.
    """

    sizes: dict[int, float]
    values: tuple[int, ...]
    low: int
    high: int
    tiles: bool = False
    rule: Rule = RULES[DEFAULT_RULE]
    operators: str = OPERATORS
    impossible: float = 0.0


_TILES = (25, 50, 75, 100, *sorted([*range(1, 11)] * 2))

PRESETS = {
    "3to4": Distribution({3: 1, 4: 1}, tuple(range(1, 100)), 10, 100),
    "24": Distribution({2: 0.1, 3: 0.4, 4: 0.5}, tuple(range(1, 25)), 10, 25),
    "tv": Distribution({6: 1}, _TILES, 101, 999, tiles=True, rule=RULES["television"]),
}


#: Puzzles to keep out: (numbers in ascending order, target), or the numbers alone for every target.
Exclusion = set[tuple[Any, ...]]


def is_excluded(exclude: Exclusion, nums: Sequence[int], target: int) -> bool:
    """Return True if the puzzle of *nums*, in any order, is kept out."""
    ordered = tuple(sorted(nums))
    return ordered in exclude or (ordered, target) in exclude
