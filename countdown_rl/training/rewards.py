"""Rewards: named, pure functions of a grade, and their weights.

A reward is chosen as ``NAME=WEIGHT``. Names that answer yes or no (``correct``, ``format``,
``strict-format``, ``well-formed``) give 1 or 0; ``NAME/NO`` gives NO for a no, so that
``strict-format/-1=1`` is +1 or -1. ``length:BUDGET`` sets the tokens a completion may have, and
``module:function`` is a function of your own with the same three arguments: grade, row, tokens.
"""

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from countdown_rl.errors import UsageError
from countdown_rl.tasks.task import Grade

Reward = Callable[[Grade, Mapping[str, Any], int], float]

#: What each yes-or-no reward asks of a grade.
_ASKS: dict[str, Callable[[Grade], bool]] = {
    "correct": lambda grade: grade.correct,
    "format": lambda grade: grade.format,
    "strict-format": lambda grade: grade.strict_format,
    "well-formed": lambda grade: grade.well_formed,
}
LENGTH_BUDGET = 100


def _closeness(grade: Grade, row: Mapping[str, Any], n_tokens: int) -> float:
    """1 / (1 + distance to the target) for an answer that keeps the rules; 0 for any other."""
    if grade.correct:
        return 1.0
    if not grade.legal or grade.value is None:
        return 0.0
    goal = row["gold"] if "gold" in row else row["target"]
    return float(1 / (1 + abs(Fraction(grade.value) - Fraction(goal))))


def _no_trailing(grade: Grade, row: Mapping[str, Any], n_tokens: int) -> float:
    """-0.5 where text follows the answer, or no answer is there; else 0."""
    return -0.5 if grade.trailing or grade.answer is None else 0.0


def _integer(grade: Grade, row: Mapping[str, Any], n_tokens: int) -> float:
    """+1 where the answer is a whole number, else -1."""
    return 1.0 if grade.value is not None and "/" not in grade.value else -1.0


def _length(budget: int) -> Reward:
    def reward(grade: Grade, row: Mapping[str, Any], n_tokens: int) -> float:
        return 0.0 if n_tokens < budget else -0.5

    return reward


def _choice(ask: Callable[[Grade], bool], no: float) -> Reward:
    def reward(grade: Grade, row: Mapping[str, Any], n_tokens: int) -> float:
        return 1.0 if ask(grade) else no

    return reward


_PLAIN: dict[str, Reward] = {"closeness": _closeness, "no-trailing": _no_trailing, "integer": _integer}
NAMES = (*_ASKS, *_PLAIN, "length")


def parse(specs: Sequence[str]) -> dict[str, float]:
    """The weight of each reward in *specs*, e.g. ``["correct=1", "format=0.1"]``; a bare name weighs 1.

    Raises:
        UsageError: a name is unknown or given twice, or a weight is no finite number.
    """
    weights: dict[str, float] = {}
    for spec in specs:
        name, equals, text = spec.partition("=")
        weight = _number(text, spec) if equals else 1.0
        if name in weights:
            raise UsageError(f"The reward {name} is given twice.")
        reward(name)
        weights[name] = weight
    return weights


def reward(name: str) -> Reward:
    """The reward of that name.

    Raises:
        UsageError: there is none; the text names those that there are.
    """
    if name in _PLAIN:
        return _PLAIN[name]
    if name == "length":
        return _length(LENGTH_BUDGET)
    if name.startswith("length:"):
        budget = name.removeprefix("length:")
        if not budget.isascii() or not budget.isdigit():
            raise UsageError(f"{name}: the budget of `length` is a number of tokens, as in length:200=1.")
        return _length(int(budget))
    if ":" in name:
        return _imported(name)
    asked, slash, no = name.partition("/")
    if asked in _ASKS:
        return _choice(_ASKS[asked], _number(no, name) if slash else 0.0)
    raise UsageError(f"There is no reward {name!r}; take {', '.join(NAMES)} or module:function.")


def _number(text: str, spec: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UsageError(f"{spec}: {text!r} is no number.")
    return number


def _imported(name: str) -> Reward:
    module, _, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"{name} cannot be imported: {error}.") from error
    if not callable(found):
        raise UsageError(f"{name} is not a function.")
    return found
