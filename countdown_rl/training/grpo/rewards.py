"""Reward functions: named, pure functions of a grade, their weights, and the form in which TRL calls them.

A reward is given as ``NAME=WEIGHT``; docs/rewards.md describes the names. A function of the user's own scores one
completion, ``f(grade, row, tokens) -> float``, or a batch as TRL calls it, ``f(completions, **columns)``, whose columns
are the fields of the rows and ``prompts``.
"""

import inspect
import math
import sys
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from copy import copy, deepcopy
from fractions import Fraction
from numbers import Real
from types import SimpleNamespace
from typing import Any

from countdown_rl.core import user_code
from countdown_rl.core.errors import UsageError
from countdown_rl.evaluation.sample import Sample
from countdown_rl.evaluation.training_log import group_columns
from countdown_rl.inference.engine import Completion
from countdown_rl.tasks.registry import task
from countdown_rl.tasks.task import Grade, Row

Reward = Callable[[Grade, Row, int], float]

#: Rewards that are fields of a grade.
_BOOLEAN = ("correct", "format", "strict-format", "well-formed")
#: Default of ``length``, in tokens.
LENGTH_BUDGET = 100


def _closeness(grade: Grade, row: Row, tokens: int) -> float:
    """1 / (1 + distance from the target) for an answer that keeps the rules, else 0."""
    if grade.correct:
        return 1.0
    if not grade.legal or grade.value is None:
        return 0.0
    return float(1 / (1 + abs(Fraction(grade.value) - Fraction(row.reference))))


def too_long(tokens: int, budget: float, penalty: float = 0.5) -> float:
    """Minus *penalty* for at least *budget* tokens, else 0."""
    return 0.0 if tokens < budget else -penalty


_PLAIN: dict[str, Reward] = {
    "closeness": _closeness,
    # -0.5 where text follows the answer or there is no answer.
    "no-trailing": lambda grade, row, tokens: (
        -0.5 if grade.trailing or grade.answer is None else 0.0
    ),
    # +1 where the value of the answer is an integer, else -1.
    "integer": lambda grade, row, tokens: (
        1.0 if grade.value is not None and "/" not in grade.value else -1.0
    ),
}
#: Graders of the task that can be cheated.
PROXY = "proxy:"
NAMES = (*_BOOLEAN, *_PLAIN, "length")


def parse(specs: Sequence[str]) -> dict[str, float]:
    """The weights of *specs* by name, e.g. of ``["correct=1", "format=0.1"]``; the default weight is 1."""
    weights: dict[str, float] = {}
    for spec in specs:
        name, _, text = spec.partition("=")
        if name in weights:
            raise UsageError(f"The reward {name} is given twice.")
        reward(name)
        weights[name] = _number(text, spec) if "=" in spec else 1.0
    if not any(weights.values()):
        raise UsageError(
            "no reward has a weight, so nothing would be learned; give one, such as correct=1."
        )
    return weights


def reward(name: str) -> Callable[..., Any]:
    """The reward function called *name*. Raises UsageError if there is none."""
    if name in _PLAIN:
        return _PLAIN[name]
    plain, _, budget = name.partition(":")
    if plain == "length":
        tokens_allowed = _number(budget, name) if budget else LENGTH_BUDGET
        return lambda grade, row, tokens: too_long(tokens, tokens_allowed)
    if name.startswith(PROXY):
        return lambda grade, row, tokens: task(row.task).proxies[name.removeprefix(PROXY)](
            row, grade.answer
        )
    if ":" in name:
        return user_code.imported(name)
    boolean, slash, no = name.partition("/")
    if boolean in _BOOLEAN:
        field, otherwise = boolean.replace("-", "_"), _number(no, name) if slash else 0.0
        return lambda grade, row, tokens: 1.0 if getattr(grade, field) else otherwise
    names = ", ".join(NAMES)
    raise UsageError(
        f"There is no reward {name!r}; the rewards are {names}, proxy:NAME and module:function."
    )


def _number(text: str, spec: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UsageError(f"{spec}: {text!r} is not a finite number.")
    return number


def check_rewards(names: Iterable[str], rows: Sequence[Row]) -> None:
    """Call each reward once, on a completion of each of *rows*."""
    for row in rows:
        graders = [f"{PROXY}{name}" for name in task(row.task).proxies]
        if unknown := [name for name in names if name.startswith(PROXY) and name not in graders]:
            raise UsageError(
                f"The task {row.task} has no reward {unknown[0]}; it has {', '.join(graders) or 'none'}."
            )
    samples = [Sample.of(row, Completion("</think>\n<answer>1</answer>", 8, True)) for row in rows]
    columns = {
        "prompts": [row.messages()[-1]["content"] for row in rows],
        "completion_ids": [[0] * 8] * len(rows),
        "trainer_state": SimpleNamespace(global_step=0),
        "log_metric": lambda name, value: None,
    }
    for name in names:
        values(name, reward(name), samples, columns)


def metrics(sample: Sample, rewards: Mapping[str, float | None]) -> dict[str, float]:
    """Return what the log averages over completions, by its columns."""
    correct = float(sample.grade.correct)
    columns = {
        "correct": correct,
        "format": float(sample.grade.format),
        "truncated": float(bool(sample.truncated)),
        "completions/mean_length": float(sample.tokens or 0),
    }
    columns |= dict.fromkeys(group_columns(sample.row), correct)
    paid = [reward == 1 for name, reward in rewards.items() if name.startswith(PROXY)]
    if paid:
        columns["hacking"] = float(any(paid) and not correct)
    for name, reward in rewards.items():
        if reward is not None:
            columns[f"rewards/{name}/mean"] = reward
    return columns


def metrics_into(
    logged: list[tuple[str, float]], samples: Sequence[Sample]
) -> Callable[[str, float], None]:
    """The function by which a reward for *samples* logs a metric of its own, into *logged*."""
    columns = {"correct", "format", "truncated", "hacking"}.union(
        *(group_columns(sample.row) for sample in samples)
    )

    def log_metric(name: str, value: float) -> None:
        if name in columns:
            raise UsageError(f"the log has a column {name} of its own; choose another name")
        logged.append((name, value))

    return log_metric


def values(
    name: str, function: Callable[..., Any], samples: Sequence[Sample], columns: Mapping[str, Any]
) -> list[float | None]:
    """The rewards *name* of *samples*; *columns* are TRL's arguments beside the fields. The function gets copies."""
    rows = [deepcopy(sample.row) for sample in samples]
    columns = {
        **{
            key: [row.get(key) for row in rows]
            for key in dict.fromkeys(key for row in rows for key in row)
        },
        **{
            key: deepcopy(column) if isinstance(column, list) else column
            for key, column in columns.items()
        },
        "log_extra": lambda column, values: None,  # for TRL's table of completions
        "completions": [sample.completion for sample in samples],
    }
    with user_code.running(f"reward {name}"):
        if batch := _takes_batches(function, columns):
            numbers = function(**columns)
        else:
            pairs = zip(samples, rows, strict=True)
            numbers = [function(copy(sample.grade), row, sample.tokens) for sample, row in pairs]
    numbers = numbers.tolist() if hasattr(numbers, "tolist") else numbers  # an array
    if not isinstance(numbers, Sequence) or len(numbers) != len(samples):
        raise UsageError(
            f"The reward {name} should return a list of one number for each of the completions."
        )
    for value in numbers:
        is_finite = isinstance(value, Real) and abs(value) <= sys.float_info.max  # type: ignore[operator]
        if not is_finite and not (value is None and batch):
            raise UsageError(
                f"The reward {name} returned {value!r:.100}, which is not a finite number."
            )
    return [None if value is None else float(value) for value in numbers]


def _takes_batches(function: Callable[..., Any], columns: Container[str]) -> bool:
    """Return True if *function* is written for TRL, which calls it by the names of the *columns*."""
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.name in ("completions", "prompts") for parameter in parameters):
        return True
    required = (parameter for parameter in parameters if parameter.default is parameter.empty)
    unknown = [parameter.kind for parameter in required if parameter.name not in columns]
    return unknown == [inspect.Parameter.VAR_KEYWORD]
