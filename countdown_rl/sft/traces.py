"""Search traces: what a solver who knows where to look first writes while it looks for a way to the target.

It sorts the numbers, largest first, and goes through the ways to combine them in the order of a *plan*. Each
line is one way, under the number that the plan gives it::

    55 36 19 7
    1. 55 - 7 = 48, 48 - 36 = 12, 19 + 12 = 31 no
    2. 36 - 19 = 17, 17 - 7 = 10, 55 + 10 = 65 yes

A way says which two values are combined, and how, step after step until two are left: the last step is always
the one that comes nearest to the target, so a line stands for four. A way that needs a fraction, zero or too
large a number is passed over, and so is a line that is written already. The line that reaches the target is
the last, and the answer is that line put together again, unless the solver lost patience before.

The plan is found from puzzles: first the way that solves most of them for the lines that it costs, then the
one that solves most of the rest, and so on: the greedy rule for min-sum set cover (Feige, Lovasz and Tetali 2004).
"""

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from countdown_rl.errors import InputError

#: The largest value a written step may have; beyond it a small model only learns to copy digits.
LIMIT = 9_999
#: With more numbers there are too many ways to try them all on enough puzzles.
MAX_NUMBERS = 5
#: Ways in a plan; their numbers have two digits.
_LONGEST = 99
#: Ways that are tried, over all puzzles of one size, to find a plan.
_BUDGET = 400_000
#: Every way is judged as if it had failed on this share of the puzzles too, so that rare ones come late.
_DOUBT = 0.05

#: Names of values: the numbers of a puzzle, largest first, and then the result of each step.
_NAMES = "abcdefghi"
#: Which two values each step but the last combines, and how: "a-b d-e" for four numbers.
Way = str
#: The ways to try, for each count of numbers.
Plan = Mapping[int, Sequence[Way]]


@dataclass(frozen=True)
class Trace:
    """A completion that continues the open ``<think>``; one that has not *ended* breaks off while it searches."""

    text: str
    ended: bool


def trace(row: Mapping[str, Any], order: Plan, rng: random.Random, *, give_up: float = 0.0, max_lines: int) -> Trace:
    """What the solver writes for *row* when it goes by *order*.

    After each line that failed it loses patience with chance *give_up* and answers "impossible". After
    *max_lines* lines the trace breaks off.
    """
    numbers = sorted(row["nums"], reverse=True)
    text = f"\n{' '.join(map(str, numbers))}\n"
    seen: set[str] = set()
    for place, way in enumerate(order[len(numbers)], 1):
        line = _line(numbers, way, row["target"])
        if line is None or line.text in seen:
            continue
        seen.add(line.text)
        text += f"{place}. {line.text}"
        if line.value == row["target"]:
            return Trace(f"{text} yes\n</think>\n<answer>{line.expression}</answer>", ended=True)
        text += " no\n"
        if rng.random() < give_up:
            return Trace(f"{text}</think>\n<answer>impossible</answer>", ended=True)
        if len(seen) == max_lines:
            break
    return Trace(text, ended=False)


def plan(rows: Sequence[Mapping[str, Any]]) -> dict[int, list[Way]]:
    """The order in which to try the ways on puzzles like *rows*.

    Raises:
        InputError: a puzzle has more than :data:`MAX_NUMBERS` numbers.
    """
    puzzles: dict[int, list[Mapping[str, Any]]] = {}
    for row in rows:
        puzzles.setdefault(len(row["nums"]), []).append(row)
    if puzzles and max(puzzles) > MAX_NUMBERS:
        raise InputError(f"traces are written for up to {MAX_NUMBERS} numbers, and a puzzle has {max(puzzles)}.")
    return {count: _order(alike) for count, alike in sorted(puzzles.items())}


def _order(rows: Sequence[Mapping[str, Any]]) -> list[Way]:
    """The plan for *rows* of one size, greedily, from as many of them as the budget allows."""
    tried: list[dict[Way, bool]] = []
    budget = _BUDGET
    for row in rows:
        tried.append(dict(_outcomes(sorted(row["nums"], reverse=True), row["target"])))
        budget -= len(tried[-1])
        if budget <= 0:
            break
    lines = Counter(way for outcomes in tried for way in outcomes)  # over puzzles that are not solved yet
    hits = Counter(way for outcomes in tried for way, hit in outcomes.items() if hit)
    doubt = _DOUBT * len(tried)
    order: list[Way] = []
    while hits and len(order) < _LONGEST:
        best = min(hits, key=lambda way: (-hits[way] / (lines[way] + doubt), way))
        order.append(best)
        for outcomes in tried:
            if outcomes.get(best):
                lines.subtract(outcomes.keys())
                hits.subtract(way for way, hit in outcomes.items() if hit)
        tried = [outcomes for outcomes in tried if not outcomes.get(best)]
        hits = +hits
    return order


def _outcomes(values: Sequence[int], target: int, way: Way = "") -> Iterator[tuple[Way, bool]]:
    """Every way on from *way*, which led to *values* (0 where one is used up), and whether it reaches *target*."""
    left = [place for place, value in enumerate(values) if value]
    if len(left) == 2:
        yield way, _nearest(values[left[0]], values[left[1]], target)[1] == target
        return
    for at, i in enumerate(left):
        for j in left[at + 1 :]:
            for sign, result in _results(values[i], values[j]):
                rest = [0 if place in (i, j) else value for place, value in enumerate(values)]
                step = f"{_NAMES[i]}{sign}{_NAMES[j]}"
                yield from _outcomes([*rest, result], target, f"{way} {step}".strip())


def _results(a: int, b: int) -> Iterator[tuple[str, int]]:
    """The signs that may stand between the larger and the smaller of two numbers, and what comes out."""
    high, low = max(a, b), min(a, b)
    outcomes = [("+", high + low), ("-", high - low), ("*", high * low)]
    if low > 1 and high % low == 0:
        outcomes.append(("/", high // low))
    return ((sign, result) for sign, result in outcomes if 0 < result <= LIMIT)


def _nearest(a: int, b: int, target: int) -> tuple[str, int]:
    return min(_results(a, b), key=lambda outcome: abs(outcome[1] - target))


@dataclass(frozen=True)
class _Line:
    text: str
    value: int
    expression: str


def _line(numbers: Sequence[int], way: Way, target: int) -> _Line | None:
    """The line that *way* is for these *numbers*; None where a step cannot be made."""
    values, operands, steps = list(numbers), [str(number) for number in numbers], []
    free = set(range(len(numbers)))

    def make(i: int, sign: str, j: int, result: int) -> None:
        high, low = (i, j) if values[i] >= values[j] else (j, i)
        steps.append(f"{values[high]} {sign} {values[low]} = {result}")
        operands.append(f"({operands[high]} {sign} {operands[low]})")
        values.append(result)
        free.difference_update((i, j))
        free.add(len(values) - 1)

    for step in way.split():
        i, sign, j = _NAMES.index(step[0]), step[1], _NAMES.index(step[2])
        result = dict(_results(values[i], values[j])).get(sign)
        if result is None:
            return None
        make(i, sign, j, result)
    i, j = free
    sign, result = _nearest(values[i], values[j], target)
    make(i, sign, j, result)
    return _Line(", ".join(steps), values[-1], operands[-1][1:-1])
