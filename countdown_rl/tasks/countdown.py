"""The Countdown task: prompt and grading of one puzzle."""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from countdown_rl.errors import InputError
from countdown_rl.puzzle import expression, rules
from countdown_rl.puzzle.expression import MAX_DIGITS, ExpressionError, parse
from countdown_rl.puzzle.rules import DEFAULT_RULE, MAX_NUMBERS, OPERATORS, Puzzle
from countdown_rl.tasks.task import Row

SYSTEM = (
    "You are a careful solver of number puzzles. First reason inside <think> and </think>, "
    "then give the final answer inside <answer> and </answer>."
)
#: The assistant turn that a prompt of the style ``begun`` ends in.
BEGUN = "Let me work through this step by step.\n<think>"

_USE = {
    "exactly-once": "using each number exactly once",
    "at-most-once": "using each number at most once",
    "television": "using each number at most once; every result on the way must be a positive whole number",
}
_INTEGER = re.compile(r"\s*([0-9]{1,15})(?:\.0+)?\s*").fullmatch
_LIST = re.compile(r"\s*[\[(]?\s*([0-9]+(?:\s*[,; ]\s*[0-9]+)*)\s*,?\s*[\])]?\s*").fullmatch
_IMPOSSIBLE = ("impossible", "impossible.", "impossible!")

#: Reasons why an expression, or the lack of one, is not right; those of its syntax are the expression's own.
REASONS = {
    "no-answer": "no complete <answer> after the thinking",
    "number-not-given": "a number that is not in the puzzle",
    "number-used-twice": "a number used more often than it is given",
    "number-left-out": "a number not used, where the rule asks for all",
    "operator-not-allowed": "an operator that this puzzle does not allow",
    "not-positive-integer": "an intermediate result that is no positive integer, under the television rule",
    "wrong-value": "a legal expression whose value is not the target",
    "not-impossible": "the answer is impossible, but there is a solution",
    "not-proved": "the answer is impossible, but the puzzle is too large to prove it",
}


class CountdownRow(Row):
    """A puzzle: ``nums``, ``target``, and where they are not the default ``rule``, ``operators`` and ``style``."""

    task = "countdown"

    def __init__(self, fields: Mapping[str, Any]) -> None:
        for key in ("nums", "target"):
            if key not in fields and (key == "target" or "numbers" not in fields):
                raise InputError(f"there is no `{key}`")
        nums, target = numbers_of(fields), integer(fields["target"])
        if nums is None or min(nums) < 1:
            raise InputError(f"`nums` should be a list of positive whole numbers of at most {MAX_DIGITS} digits")
        if target is None or target < 1:
            raise InputError(f"`target` should be a positive whole number of at most {MAX_DIGITS} digits")
        super().__init__({**fields, "nums": nums, "target": target})
        rule = rules.rule(fields.get("rule") or DEFAULT_RULE)
        self.puzzle = Puzzle(tuple(nums), target, rule, rules.operators(fields.get("operators") or OPERATORS))
        self._sorted = sorted(nums)

    def messages(self) -> list[dict[str, str]]:
        puzzle = self.puzzle
        user = (
            f"Numbers: {' '.join(map(str, puzzle.numbers))}\nTarget: {puzzle.target}\n"
            f"Reach the target with {' '.join(puzzle.operators)} and parentheses, "
            f"{_USE[puzzle.rule.name]}. If there is no way, answer impossible."
        )
        turns = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": user}]
        return turns if self.style.own else [*turns, {"role": "assistant", "content": BEGUN}]

    def judge(self, answer: str) -> tuple[str | None, str]:
        puzzle = self.puzzle
        if len(answer) < 12 and answer.lower() in _IMPOSSIBLE:
            solvable = _solvable(puzzle)
            return None, "not-proved" if solvable is None else "not-impossible" if solvable else ""
        try:
            tree, numbers, top, bottom, whole, agrees = parse(answer)
        except ExpressionError as error:
            return None, error.reason
        value = str(top) if bottom == 1 else expression.fraction(top, bottom) if bottom else None
        numbers.sort()
        if numbers != self._sorted and (reason := self._misuse(numbers)):
            return value, reason
        if puzzle.operators != OPERATORS and not expression.operators(tree) <= set(puzzle.operators):
            return value, "operator-not-allowed"
        if bottom == 0:
            return None, "division-by-zero"
        if puzzle.rule.whole and not whole:
            return value, "not-positive-integer"
        if not agrees:
            return value, "answers-disagree"
        return value, "" if top == puzzle.target * bottom else "wrong-value"

    def _misuse(self, numbers: list[int]) -> str:
        """The reason why *numbers* are not those that the rule asks for, or ""."""
        unused = list(self._sorted)
        reason = ""
        for number in numbers:
            if number in unused:
                unused.remove(number)
            elif number not in self._sorted:
                return "number-not-given"
            else:
                reason = "number-used-twice"
        return reason or ("number-left-out" if self.puzzle.rule.every and unused else "")


def numbers_of(fields: Mapping[str, Any]) -> list[int] | None:
    """The numbers of a row in ``nums`` or ``numbers``, a list or text such as ``[3, 7, 50]`` or ``3 7 50``, or None."""
    nums = fields.get("nums", fields.get("numbers"))
    if isinstance(nums, str):
        match = _LIST(nums)
        nums = re.split(r"\s*[,; ]\s*", match[1]) if match else None
    if not isinstance(nums, list | tuple) or not nums:
        return None
    integers = [number for number in map(integer, nums) if number is not None]
    return integers if len(integers) == len(nums) else None


def integer(value: object) -> int | None:
    """The whole number *value*, which may be text or a float; None where it is none."""
    if isinstance(value, str):
        match = _INTEGER(value)
        return int(match[1]) if match else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 10**MAX_DIGITS:
        return None
    if value != int(value):
        return None
    return int(value)


@lru_cache(maxsize=65_536)
def _solvable(puzzle: Puzzle) -> bool | None:
    """True where *puzzle* has a solution; None where it is too large for an exhaustive search."""
    from countdown_rl.puzzle.solver import solvable

    return solvable(puzzle) if len(puzzle.numbers) <= MAX_NUMBERS else None
