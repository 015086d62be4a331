"""Exhaustive, exact solver: the number of solutions of a puzzle, a short one as text, or proof that
there is none.

:mod:`countdown_rl.tasks.countdown.kernel` describes which solutions count as one.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import prod
from types import ModuleType
from typing import Any

from countdown_rl.core.errors import InputError
from countdown_rl.tasks.countdown import kernel
from countdown_rl.tasks.countdown.expression import MAX_DIGITS
from countdown_rl.tasks.countdown.rules import MAX_NUMBERS, Puzzle, Rule

#: Work for the plain kernel, in classes, before loading the compiled one pays off, which takes a
#: second (three where it has never been compiled): two puzzles of six numbers, or sixty of five.
_COMPILE_AFTER = 400_000
_work_done = 0


@dataclass(frozen=True)
class Solved:
    """The facts of a puzzle."""

    solutions: int  # the number of distinct ones; 0 is proof that the puzzle is impossible
    #: The shortest as text, preferably with positive integers as intermediate results.
    solution: str | None
    #: ``add-sub`` if + and - suffice, else ``mul-div``; None if the puzzle is impossible.
    needs: str | None


def solve(puzzle: Puzzle) -> Solved:
    """Count the solutions of *puzzle*, and write the best.

    Raises InputError as :func:`check_puzzle` does.
    """
    search = _Search(puzzle)
    text = search.text(search.matches.best[0]) if search.count else ""
    return facts(search.count, search.matches.plain[0], text)


def facts(count: int, plain: int, text: str) -> Solved:
    """The facts of a puzzle.

    Args:
        count: number of its distinct solutions.
        plain: not 0 if one of them has + and - alone.
        text: the best solution.
    """
    if not count:
        return Solved(0, None, None)
    return Solved(count, text, "add-sub" if plain else "mul-div")


def solutions(puzzle: Puzzle) -> Iterator[str]:
    """All distinct solutions as text, in no particular order."""
    search = _Search(puzzle, max_solutions=_Search(puzzle).count)
    return map(search.text, search.matches.solutions)


class _Search:
    """One run of the kernel, with space for the tags of *max_solutions*; ``count`` is the number of
    solutions.
    """

    def __init__(self, puzzle: Puzzle, max_solutions: int = 0) -> None:
        check_puzzle(puzzle)
        self.nums: Any = sorted(puzzle.numbers, reverse=True)
        self.kernel: ModuleType = kernel
        self.zeros: Callable[[int], Any] = lambda size: [0] * size
        largest = 16 * prod(number or 1 for number in self.nums) * puzzle.target
        if largest < 1 << 62 and _compiled_pays(len(self.nums)):
            import numpy as np

            from countdown_rl.tasks.countdown import kernel_numba

            self.kernel = kernel_numba
            self.nums = np.array(self.nums)
            self.zeros = partial(np.zeros, dtype=np.int64)
        self.classes, self.matches = kernel.tables(self.zeros, len(self.nums), 1, max_solutions)
        self.matches.ranks[0] = -1
        target = goal(puzzle.rule, puzzle.operators, puzzle.target, puzzle.target)
        self.kernel.search(self.nums, target, self.classes, self.matches)
        self.count = int(self.matches.counts[0])

    def text(self, tag: int) -> str:
        """The text of a class by its tag."""
        text = self.zeros(kernel.TEXT)
        length = self.kernel.write(tag, self.nums, self.classes, text, self.zeros(kernel.SCRATCH))
        return "".join(map(chr, text[:length]))


def goal(rule: Rule, operators: str, low: int, high: int) -> kernel.Goal:
    """The goal of the kernel.

    Args:
        rule: how the numbers may be used.
        operators: the operators allowed.
        low: the lowest target.
        high: the highest target.
    """
    bits = {"+": 0b00001, "-": 0b00010, "*": 0b00100, "/": 0b11000}
    joins = sum(bits[operator] for operator in operators)
    return kernel.Goal(low, high, rule.every, rule.whole, joins)


def check_puzzle(puzzle: Puzzle) -> None:
    """Raise InputError for a puzzle that is out of the solver's range."""
    if not 1 <= len(puzzle.numbers) <= MAX_NUMBERS:
        raise InputError(f"The solver takes 1 to {MAX_NUMBERS} numbers, not {len(puzzle.numbers)}.")
    if min(puzzle.numbers) < 0 or puzzle.target < 1:
        raise InputError("The solver takes whole numbers from 0 on, and a target from 1 on.")
    if max(puzzle.numbers) >= 10**MAX_DIGITS or puzzle.target >= 10 ** (MAX_DIGITS * MAX_NUMBERS):
        raise InputError(
            f"Numbers have at most {MAX_DIGITS} digits, and the target {MAX_DIGITS * MAX_NUMBERS}."
        )


def _compiled_pays(size: int) -> bool:
    """True where so much work was done that the compiled kernel pays off; counts the work for
    *size* numbers.
    """
    global _work_done
    _work_done += kernel.MAX_CLASSES[size]
    return _work_done > _COMPILE_AFTER or "countdown_rl.tasks.countdown.kernel_numba" in sys.modules
