"""What puzzles are drawn from, and what is kept out."""

from dataclasses import dataclass, field

from countdown_rl.puzzle.rules import DEFAULT_RULE, OPERATORS, RULES, Rule

#: Bits for the cells that ``kernel.kind_of`` tells apart.
IMPOSSIBLE = 0b0000001
NEEDS = {"add-sub": 0b0001110, "mul-div": 0b1110000}
DIFFICULTY = {"one": 0b0010010, "few": 0b0100100, "many": 0b1001000}
SOLVABLE = 0b1111110


@dataclass(frozen=True)
class Distribution:
    """What puzzles are drawn from.

    Attributes:
        sizes: how many numbers, and how often relative to the others.
        values: the numbers drawn from, each time from all of them, or where ``tiles`` is true without
            putting back.
        low, high: the targets, both included.
        impossible: the share of rows proved to have no solution.
        balance: of ``needs`` (+ and - are enough, or not) and ``difficulty`` (1, 2 to 4, or more
            solutions), what should come equally often.
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

    def turns(self) -> list[int]:
        """The kinds of solvable rows that take turns, as bits for cells."""
        needs = list(NEEDS.values()) if "needs" in self.balance else [SOLVABLE]
        difficulty = list(DIFFICULTY.values()) if "difficulty" in self.balance else [SOLVABLE]
        return [first & second for first in needs for second in difficulty]

    def sets(self, size: int) -> int:
        """How many sets of so many numbers there are."""
        ways = [1] + [0] * size  # of 0, 1, ... numbers, from the values looked at so far
        for value in set(self.values):
            copies = self.values.count(value) if self.tiles else size
            ways = [sum(ways[max(0, count - copies) : count + 1]) for count in range(size + 1)]
        return ways[size]


_TILES = (25, 50, 75, 100, *sorted([*range(1, 11)] * 2))

PRESETS = {
    "3to4": Distribution({3: 1, 4: 1}, tuple(range(1, 100)), 10, 100),
    "24": Distribution({2: 0.1, 3: 0.4, 4: 0.5}, tuple(range(1, 25)), 10, 25),
    "tv": Distribution({6: 1}, _TILES, 101, 999, tiles=True, rule=RULES["television"]),
}


@dataclass
class Exclusion:
    """Published puzzles to keep out: by numbers and target, or by their numbers whatever the target."""

    puzzles: set[tuple[tuple[int, ...], int]] = field(default_factory=set)
    hands: set[tuple[int, ...]] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.puzzles or self.hands)

    def __contains__(self, item: tuple[tuple[int, ...], int]) -> bool:
        return item in self.puzzles or item[0] in self.hands
