"""Puzzles: numbers, a target, a rule and operators; and the split of the data that a puzzle belongs
to.

The split depends on the numbers alone, whatever their order, the target or the rule: data sets made
with any seed, size and options never share a set of numbers across splits.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from countdown_rl.core.errors import InputError
from countdown_rl.tasks.countdown.kernel import split_part
from countdown_rl.tasks.splits import PARTS, split_at

OPERATORS = "+-*/"
MAX_NUMBERS = 6


@dataclass(frozen=True)
class Rule:
    """How the numbers of a puzzle may be used."""

    name: str
    words: str  # in the prompts of this package, in all versions
    every: bool  # all numbers must be used
    whole: bool  # every intermediate result is a positive integer


DEFAULT_RULE, _ONCE = "exactly-once", "using each number at most once"
_RULES = (
    Rule(DEFAULT_RULE, "using each number exactly once", every=True, whole=False),
    Rule("at-most-once", _ONCE, every=False, whole=False),
    Rule(
        "television",
        f"{_ONCE}; every result on the way must be a positive whole number",
        every=False,
        whole=True,
    ),
)
RULES = {rule.name: rule for rule in _RULES}


@dataclass(frozen=True)
class Puzzle:
    """One puzzle; ``operators`` are those that may be used, in the order ``+-*/``."""

    numbers: tuple[int, ...]
    target: int
    rule: Rule = RULES[DEFAULT_RULE]
    operators: str = OPERATORS

    @property
    def id(self) -> str:
        """The identifier: the numbers in ascending order, the target, and what is not the default."""
        name = "-".join(map(str, sorted(self.numbers))) + f"={self.target}"
        if self.rule.name != DEFAULT_RULE:
            name += f":{self.rule.name}"
        return name if self.operators == OPERATORS else f"{name}:{self.operators}"


def rule(name: object) -> Rule:
    """The rule called *name*."""
    if isinstance(name, str) and name in RULES:
        return RULES[name]
    raise InputError(f"There is no rule {name!r:.60}; take one of {', '.join(RULES)}.")


def operators(chosen: Iterable[str]) -> str:
    """The operators *chosen*, in the order ``+-*/``; spaces and commas between them are ignored.

    ``-`` without ``+`` is an InputError, as is ``/`` without ``*``: the count of solutions moves
    signs freely.
    """
    names = set(map(str, chosen)) - {" ", ","} if isinstance(chosen, str | list | tuple) else set()
    if not names or names - set(OPERATORS):
        raise InputError(f"Operators are some of {' '.join(OPERATORS)}.")
    if ("-" in names and "+" not in names) or ("/" in names and "*" not in names):
        raise InputError("`-` goes with `+`, and `/` with `*`.")
    return "".join(operator for operator in OPERATORS if operator in names)


def split_of(numbers: Iterable[int]) -> str:
    """The split that a set of numbers belongs to in every data set."""
    return split_at(split_part(sorted(numbers), PARTS))
