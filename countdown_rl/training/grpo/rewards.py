"""Reward functions: named, pure functions of a grade, their weights, and how they are called.

A reward is given as ``NAME=WEIGHT``; docs/rewards.md describes the names. A function of the user's
is called by the names of its parameters: for one completion; or for a batch, with a list for each,
if it asks for names of :data:`BATCH` and for none of :data:`SINGLE`.
"""

import inspect
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy, deepcopy
from fractions import Fraction
from itertools import chain
from numbers import Real
from types import SimpleNamespace
from typing import Any, SupportsIndex

from countdown_rl.core import user_code
from countdown_rl.core.errors import UsageError
from countdown_rl.core.options import nearest
from countdown_rl.evaluation.sample import Sample
from countdown_rl.evaluation.training_log import group_columns
from countdown_rl.inference.engine import Completion
from countdown_rl.tasks.registry import task
from countdown_rl.tasks.task import Grade, Row

Reward = Callable[..., Any]

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
#: Matches the name of a function of the user's.
_OWN = re.compile(rf"(?!{PROXY}|length:)[^:]+:").match
NAMES = (*_BOOLEAN, *_PLAIN, "length")

#: Parameters of a function that is called for a batch, and their names for one completion.
BATCH = {
    "completions": "completion",
    "prompts": "prompt",
    "grades": "grade",
    "rows": "row",
    "completion_ids": "completion_ids",
}
#: Parameters of a function that is called for one completion.
SINGLE = {"completion", "prompt", "grade", "row", "tokens", "solution_str"}


class Text(str):
    """A text that functions for TRL can read as messages: ``text[0]["content"]`` is the text."""

    def __new__(cls, text: str, whole: str | None = None) -> "Text":
        self = super().__new__(cls, text)
        self.message = {"role": "assistant", "content": text if whole is None else whole}
        return self

    message: dict[str, str]

    def __getitem__(self, key: SupportsIndex | slice | str) -> str:
        if isinstance(key, str):
            return self.message[key]
        part = str(self)[key] if self else ""  # an empty completion is a message too
        return Text(part, self.message["content"])


def parse(specs: Sequence[str]) -> dict[str, float]:
    """Return the weights of *specs*, such as ``["correct=1", "format=0.1"]``; the default is 1."""
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


def reward(name: str) -> Reward:
    """The reward function called *name*. Raises UsageError if there is none."""
    if name in _PLAIN:
        return _PLAIN[name]
    plain, _, budget = name.partition(":")
    if plain == "length":
        tokens_allowed = _number(budget, name) if budget else LENGTH_BUDGET
        return lambda grade, row, tokens: 0.0 if tokens < tokens_allowed else -0.5
    if name.startswith(PROXY):
        return lambda grade, row, tokens: task(row.task).proxies[name.removeprefix(PROXY)](
            row, grade.answer
        )
    boolean, slash, no = name.partition("/")
    if ":" in name and plain not in NAMES:
        return user_code.imported(name)
    if boolean in _BOOLEAN:
        field, otherwise = boolean.replace("-", "_"), _number(no, name) if slash else 0.0
        return lambda grade, row, tokens: 1.0 if getattr(grade, field) else otherwise
    remedy = f"the rewards are {', '.join(NAMES)}, proxy:NAME and module:function."
    if match := nearest(plain, NAMES):
        remedy = f"did you mean {match}?"
    raise UsageError(f"There is no reward {name!r}; {remedy}")


def _number(text: str, spec: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UsageError(
            f"{spec}: {text!r} is not a finite number; give each reward by a --reward NAME=WEIGHT."
        )
    return number


def check_rewards(
    names: Iterable[str],
    row: Row,
    note: Callable[[str], None] = lambda text: None,
    warning: Callable[[str], None] = lambda text: None,
) -> dict[str, list[float | None]]:
    """Call each reward on a correct completion of *row*, if one is known, and on an incorrect one.

    Args:
        names: of the rewards.
        row: of the task.
        note: called with a sentence about their values, which are returned.
        warning: called where both completions get the same reward of the user's.
    """
    proxies = [f"{PROXY}{name}" for name in task(row.task).proxies]
    for name in names:
        if name.startswith(PROXY) and name not in proxies:
            known = ", ".join(proxies) or "none"
            raise UsageError(f"The task {row.task} has no reward {name}; it has {known}.")
    answers = (row.right_answer or "", f"{row.reference}1")
    completions = [Completion(row.style.answer(answer), 8, True) for answer in answers]
    samples = [Sample.of(row, completion) for completion in completions]
    columns = {
        "prompts": [row.messages()[-1]["content"]] * 2,
        "completion_ids": [[0] * 8] * 2,
        "trainer_state": SimpleNamespace(global_step=0),
        "log_metric": lambda name, value: None,
    }
    rewards = {name: values(name, reward(name), samples, columns) for name in names}
    if [sample.grade.correct for sample in samples] != [True, False]:
        return rewards
    pairs = [f"{name} {right} and {wrong}" for name, (right, wrong) in rewards.items()]
    note(f"Rewards of a correct and of an incorrect completion: {', '.join(pairs)}.")
    for name, (right, wrong) in rewards.items():
        if _OWN(name) and right == wrong:
            warning(f"{name} gives a correct and an incorrect completion the same reward.")
    return rewards


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


def values(
    name: str, function: Reward, samples: Sequence[Sample], columns: Mapping[str, Any]
) -> list[float | None]:
    """Return the rewards *name* of *samples*; a function of the user's gets copies.

    Args:
        name: of the reward, for errors.
        function: that computes it.
        samples: completions.
        columns: lists of ``prompts`` and ``completion_ids``, and what TRL passes once for all.

    Raises:
        UsageError: the function fails, or does not return finite numbers.
    """
    if not _OWN(name):
        return [function(sample.grade, sample.row, sample.tokens) for sample in samples]
    singles = _arguments(samples, columns["prompts"], columns["completion_ids"])
    shared = {key: value for key, value in columns.items() if key not in BATCH}
    shared["log_extra"] = lambda column, values: None  # for TRL's table of completions

    with user_code.running(f"reward {name}"):
        parameters = inspect.signature(function).parameters
    asked = parameters.keys()
    in_batch = bool(asked & BATCH.keys()) and not asked & SINGLE
    calls = [single | shared for single in singles]
    if in_batch:
        batch = {}
        for key in (*singles[0], *BATCH):
            batch[key] = [single[BATCH.get(key, key)] for single in singles]
        calls = [batch | shared]
    wanted = _wanted(name, parameters.values(), calls[0])
    with user_code.running(f"reward {name}"):
        results = []
        for call in calls:
            arguments = {key: call[key] for key in wanted}
            results.append(function(**arguments))
    numbers = results[0] if in_batch else results
    numbers = numbers.tolist() if hasattr(numbers, "tolist") else numbers  # an array
    if not isinstance(numbers, Sequence) or len(numbers) != len(samples):
        raise UsageError(
            f"The reward {name} should return a list of one number for each of the completions."
        )
    return [_finite(name, value, may_be_none=in_batch) for value in numbers]


def _arguments(
    samples: Sequence[Sample], prompts: Sequence[str], ids: Sequence[Sequence[int]]
) -> list[dict[str, object]]:
    """Return the arguments of a function for each of *samples*: copies."""
    fields = dict.fromkeys(chain.from_iterable(sample.row for sample in samples))
    arguments = []
    for sample, prompt, completion_ids in zip(samples, prompts, ids, strict=True):
        row = deepcopy(sample.row)
        text = Text(sample.completion)
        known = {
            "data_source": f"countdown_rl/{row.task}",  # as in the data for verl
            "ground_truth": json.dumps(dict(row)),
            **{field: row.get(field) for field in fields},
            "completion": text,
            "solution_str": text,
            "prompt": Text(prompt),
            "grade": copy(sample.grade),
            "row": row,
            "tokens": sample.tokens,
            "completion_ids": list(completion_ids),
        }
        arguments.append(known)
    return arguments


def _wanted(
    name: str, parameters: Iterable[inspect.Parameter], known: Mapping[str, object]
) -> list[str]:
    """Return the arguments that the reward *name* asks for by its *parameters*."""
    wanted = []
    for parameter in parameters:
        if parameter.kind is parameter.VAR_KEYWORD:
            return list(known)
        if parameter.name in known:
            wanted.append(parameter.name)
        elif parameter.default is parameter.empty and parameter.kind != parameter.VAR_POSITIONAL:
            raise UsageError(
                f"The reward {name} has a parameter {parameter.name}, which is none of: "
                f"{', '.join(sorted({*known, *BATCH}))}."
            )
    return wanted


def _finite(name: str, value: object, *, may_be_none: bool) -> float | None:
    """Return *value* of the reward *name*, or its ``score``, as a finite number."""
    if isinstance(value, Mapping):  # as verl's functions may return
        value = value.get("score")
    elif value is None and may_be_none:
        return None
    if not isinstance(value, Real) or not abs(value) <= sys.float_info.max:  # type: ignore[operator]
        raise UsageError(
            f"The reward {name} returned {value!r:.100}, which is not a finite number."
        )
    return float(value)
