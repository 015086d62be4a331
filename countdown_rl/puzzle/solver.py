"""Every solution of a puzzle: how many there are, a short one as text, or proof that there is none.

Two solutions are the same when one becomes the other by reordering or re-bracketing sums and products,
by moving a minus sign, or by exchanging equal numbers; :mod:`countdown_rl.puzzle.kernel` says how they are
counted. Everything is exact: the search is exhaustive, and its values are fractions of integers.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from countdown_rl.errors import InputError
from countdown_rl.puzzle import kernel
from countdown_rl.puzzle.rules import MAX_NUMBERS, Puzzle

#: Classes that all smaller subsets of n numbers have together, at most: sums of OEIS A140606.
ROOM = (0, 1, 2, 21, 316, 6_650, 183_000)
#: A power of two above the number of expressions over at most n numbers.
TABLE = (0, 4, 32, 256, 4_096, 65_536, 1 << 21)

#: Work done by the plain kernel, in classes, before it pays to load the compiled one (a second or, where it
#: has never been compiled, three): about a second's, two puzzles of six numbers or sixty of five.
_PATIENCE = 400_000
_done = 0


@dataclass(frozen=True)
class Solved:
    """What is known of a puzzle.

    Attributes:
        solutions: how many distinct solutions it has; 0 is proof that it is impossible.
        solution: one as text. Positive integers on the way are preferred, then the shortest text.
        needs: ``add-sub`` where + and - alone suffice, else ``mul-div``; None where it is impossible.
    """

    solutions: int
    solution: str | None
    needs: str | None


def solve(puzzle: Puzzle) -> Solved:
    """Count the solutions of *puzzle* and write down the best.

    Raises:
        InputError: it has no numbers, more than six, or something that is not positive.
    """
    work = _Work(puzzle, keep=0)
    if not work.matched:
        return Solved(0, None, None)
    needs = "add-sub" if work.plain[0] else "mul-div"
    return Solved(int(work.counts[0]), work.text(work.best[0]), needs)


def solvable(puzzle: Puzzle) -> bool:
    """Whether *puzzle* has a solution."""
    return _Work(puzzle, keep=0).matched > 0


def solutions(puzzle: Puzzle) -> Iterator[str]:
    """All distinct solutions as text, in no order that means anything."""
    count = solve(puzzle).solutions
    work = _Work(puzzle, keep=count)
    for i in range(count):
        yield work.text(work.found[i])


class _Work:
    """One run of the kernel and the tables it leaves behind."""

    def __init__(self, puzzle: Puzzle, keep: int) -> None:
        check(puzzle)
        self.nums: Any = sorted(puzzle.numbers, reverse=True)
        n = len(self.nums)
        bound = 16 * prod(self.nums) * puzzle.target
        self.fast = bound < 1 << 62 and _compiled_pays(n)
        repeats = len(set(self.nums)) < n
        room = ROOM[n] + 1
        self.counts, self.plain, ranks, self.best = (self._zeros(size) for size in (1, 1, 1, 1))
        ranks[0] = -1
        self.found = self._zeros(keep)
        self.tables = [self._zeros(room) for _ in range(5)]
        if self.fast:
            import numpy as np

            self.nums = np.array(self.nums, dtype=np.int64)
        self.matched = self._kernel("search")(
            self.nums, puzzle.target, puzzle.target, puzzle.rule.every, puzzle.rule.whole,
            joins(puzzle.operators), repeats,
            *self.tables, self._zeros(1 << n), self._zeros(1 << n), self._zeros(TABLE[n] if repeats else 2),
            self.counts, self.plain, ranks, self.best, self.found,
        )  # fmt: skip
        self.matched = self.counts[0]

    def text(self, tag: int) -> str:
        """The text of a class that the kernel found."""
        tops, bottoms, tags, *_ = self.tables
        text = self._zeros(kernel.TEXT)
        size = self._kernel("write")(tag, self.nums, tops, bottoms, tags, text, self._zeros(128))
        return "".join(map(chr, text[:size]))

    def _zeros(self, size: int) -> Any:
        if not self.fast:
            return [0] * size
        import numpy as np

        return np.zeros(size, dtype=np.int64)

    def _kernel(self, name: str) -> Callable[..., Any]:
        if not self.fast:
            return getattr(kernel, name)
        from countdown_rl.puzzle import kernel_numba

        return getattr(kernel_numba, name)


def joins(operators: str) -> int:
    """The kernel's joins that *operators* allow, as bits."""
    return sum(bits for operator, bits in (("+", 1), ("-", 2), ("*", 4), ("/", 24)) if operator in operators)


def check(puzzle: Puzzle) -> None:
    """Refuse what cannot be solved by exhaustion.

    Raises:
        InputError: *puzzle* has no numbers, more than six, or something that is not positive.
    """
    if not 1 <= len(puzzle.numbers) <= MAX_NUMBERS:
        raise InputError(f"The solver takes 1 to {MAX_NUMBERS} numbers, not {len(puzzle.numbers)}.")
    if min(puzzle.numbers) < 1 or puzzle.target < 1:
        raise InputError("Numbers and target are positive whole numbers.")


def _compiled_pays(n: int) -> bool:
    global _done
    _done += ROOM[n]
    return _done > _PATIENCE or "countdown_rl.puzzle.kernel_numba" in sys.modules
