"""A puzzle: numbers, a target, and the rule for what may be done with the numbers.

The split a puzzle belongs to is decided by its numbers alone, whatever their order, the target or the
rule: data sets made with any seed, size and options never share a set of numbers across splits.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from countdown_rl.errors import InputError

SIGNS = "+-*/"
MAX_NUMBERS = 6
SPLITS = ("train", "valid", "test")

#: Of 20 sets of numbers, 18 are for training, one for validation and one for the test.
PARTS = 20


@dataclass(frozen=True)
class Rule:
    """``every``: all numbers must be used. ``whole``: every result on the way is a positive integer."""

    name: str
    every: bool
    whole: bool


RULES = {
    rule.name: rule
    for rule in (
        Rule("exactly-once", every=True, whole=False),
        Rule("at-most-once", every=False, whole=False),
        Rule("television", every=False, whole=True),
    )
}
DEFAULT_RULE = "exactly-once"


def rule(name: str) -> Rule:
    """The rule of that name.

    Raises:
        InputError: there is none.
    """
    try:
        return RULES[name]
    except (KeyError, TypeError):
        raise InputError(f"There is no rule {name!r}; take one of {', '.join(RULES)}.") from None


@dataclass(frozen=True)
class Puzzle:
    """One puzzle; ``signs`` are the operators that may be used, in the order ``+-*/``."""

    numbers: tuple[int, ...]
    target: int
    rule: Rule = RULES[DEFAULT_RULE]
    signs: str = SIGNS

    @property
    def id(self) -> str:
        return puzzle_id(sorted(self.numbers), self.target, self.rule.name, self.signs)


def of_row(row: Mapping[str, Any]) -> Puzzle:
    """The puzzle that *row* poses.

    Raises:
        InputError: it has no positive whole ``nums`` and ``target``, or an unknown ``rule``.
    """
    nums, target = row.get("nums"), row.get("target")
    if not isinstance(nums, Sequence) or isinstance(nums, str) or not nums or not all(map(_positive, nums)):
        raise InputError("`nums` should be a list of positive whole numbers")
    if not _positive(target):
        raise InputError("`target` should be a positive whole number")
    return Puzzle(
        tuple(nums),
        int(target or 0),
        rule(row.get("rule") or DEFAULT_RULE),
        signs(row.get("operators") or SIGNS),
    )


def signs(wanted: Iterable[str]) -> str:
    """*wanted* operators in their usual order.

    Raises:
        InputError: one is unknown, or ``-`` stands without ``+`` or ``/`` without ``*`` (then taking away
            a difference could not be written without brackets, nor counted like the rest).
    """
    chosen = set(wanted)
    if not chosen or chosen - set(SIGNS):
        raise InputError(f"Operators are some of {' '.join(SIGNS)}.")
    if ("-" in chosen and "+" not in chosen) or ("/" in chosen and "*" not in chosen):
        raise InputError("`-` goes with `+`, and `/` with `*`.")
    return "".join(sign for sign in SIGNS if sign in chosen)


def puzzle_id(ordered: Iterable[int], target: int, rule_name: str = DEFAULT_RULE, allowed: str = SIGNS) -> str:
    """What names a puzzle for good: numbers in order, target, and what differs from the usual rule."""
    name = "-".join(map(str, ordered)) + f"={target}"
    if rule_name != DEFAULT_RULE:
        name += f":{rule_name}"
    return name if allowed == SIGNS else f"{name}:{allowed}"


def split_of(numbers: Iterable[int]) -> str:
    """The split that a set of numbers belongs to, now and in every data set to come."""
    from countdown_rl.puzzle.kernel import split_part

    return SPLITS[max(0, split_part(sorted(numbers), PARTS) - PARTS + 3)]


def parts_of(split: str) -> tuple[int, int]:
    """The first and the last part that make up *split*."""
    last = PARTS - 3 + SPLITS.index(split)
    return (0, last) if split == "train" else (last, last)


def _positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
