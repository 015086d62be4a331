"""Search traces: what a patient solver would write while it looks for a way to the target.

An attempt is one line. It combines two numbers at a time until one is left; the last step is always the
one that comes nearest to the target, so a line fails only if its earlier steps were wrong::

    36 + 55 = 91, 91 - 7 = 84, 84 + 19 = 103 no
    36 - 19 = 17, 55 - 7 = 48, 48 + 17 = 65 yes

Lines before the last are steps that do not lead to the target; no line is written twice. The last line
is one of the solutions, and the answer is that line put together again, unless the solver lost patience.
Every value on the way is a positive whole number.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: The largest value a written step may have; beyond it a small model only learns to copy digits.
LIMIT = 9_999


@dataclass(frozen=True)
class Value:
    """A number on the table and the expression it came from."""

    number: int
    text: str
    compound: bool = False

    def operand(self) -> str:
        return f"({self.text})" if self.compound else self.text


@dataclass(frozen=True)
class Step:
    """Two values, the sign between them and what comes out."""

    left: Value
    sign: str
    right: Value
    result: Value

    def __str__(self) -> str:
        return f"{self.left.number} {self.sign} {self.right.number} = {self.result.number}"


Line = tuple[Step, ...]


def trace(
    row: Mapping[str, Any], rng: random.Random, *, hit_rate: float, give_up: float = 0.0, max_lines: int
) -> str | None:
    """A completion for *row* that continues the open ``<think>`` and ends with its answer.

    *hit_rate* is the chance that a line is a solution, up to *max_lines* lines, of which the last one is
    always a solution. After each line that failed the solver loses patience with chance *give_up*, and
    answers "impossible". None when no solution stays within positive whole numbers.
    """
    table = tuple(Value(number, str(number)) for number in row["nums"])
    # Equal numbers give equal lines; a line is known by what is written.
    attempts = {_written(line): line for line in lines(table, row["target"])}
    hits = [line for line in attempts.values() if line[-1].result.number == row["target"]]
    misses = [line for line in attempts.values() if line[-1].result.number != row["target"]]
    if not hits:
        return None
    count = 0
    patient = True
    while patient and count < min(max_lines - 1, len(misses)) and rng.random() >= hit_rate:
        count += 1
        patient = rng.random() >= give_up
    tried = "\n" + "".join(f"{_written(line)} no\n" for line in _spread(misses, count, rng))
    if not patient:
        return f"{tried}</think>\n<answer>impossible</answer>"
    hit = rng.choice(hits)
    return f"{tried}{_written(hit)} yes\n</think>\n<answer>{hit[-1].result.text}</answer>"


def _written(line: Line) -> str:
    return ", ".join(map(str, line))


def lines(table: tuple[Value, ...], target: int) -> Iterator[Line]:
    """Every attempt from *table*: all earlier steps in every order, the last step nearest to *target*."""
    if len(table) == 2:
        steps = sorted(_steps(*table), key=lambda step: abs(step.result.number - target))
        if steps:
            yield (steps[0],)
        return
    for i, left in enumerate(table):
        for j in range(i + 1, len(table)):
            rest = table[:i] + table[i + 1 : j] + table[j + 1 :]
            for step in _steps(left, table[j]):
                for more in lines((*rest, step.result), target):
                    yield (step, *more)


def _steps(a: Value, b: Value) -> Iterator[Step]:
    high, low = (a, b) if a.number >= b.number else (b, a)
    x, y = high.number, low.number
    outcomes = [("+", x + y), ("-", x - y), ("*", x * y)]
    if y > 1 and x % y == 0:
        outcomes.append(("/", x // y))
    for sign, number in outcomes:
        if 0 < number <= LIMIT:
            text = f"{high.operand()} {sign} {low.operand()}"
            yield Step(high, sign, low, Value(number, text, compound=True))


def _spread(misses: Sequence[Line], count: int, rng: random.Random) -> list[Line]:
    # Lines with the same first step crowd together under large products; choosing the first step first
    # gives every beginning the same chance.
    by_first: dict[str, list[Line]] = {}
    for line in misses:
        by_first.setdefault(str(line[0]), []).append(line)
    chosen: list[Line] = []
    while len(chosen) < count:
        first = rng.choice(list(by_first))
        pool = by_first[first]
        chosen.append(pool.pop(rng.randrange(len(pool))))
        if not pool:
            del by_first[first]
    return chosen
