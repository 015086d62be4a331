"""Search traces: what a solver with an eye for numbers would write while it looks for a way to the target.

An attempt is one line. It combines two numbers at a time until one is left; the last step is always the
one that comes nearest to the target, so a line fails only if its earlier steps were wrong::

    36 + 55 = 91, 91 - 7 = 84, 84 + 19 = 103 no
    36 - 19 = 17, 55 - 7 = 48, 48 + 17 = 65 yes

Lines before the last do not reach the target; no line is written twice. The last line is one of the
solutions, one of those with the fewest products and quotients, and the answer is that line put together
again, unless the solver lost patience. Every value on the way is a positive whole number.

What a failed line of the solver tried is nothing to imitate: there only its results and its verdict are
lessons. So what a model learns to try is a solution, each time, given what has failed already. Lines that a
model tried itself may be lessons: it learns nothing new from them but that it did not try one twice.
"""

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: The largest value a written step may have; beyond it a small model only learns to copy digits.
LIMIT = 9_999
_CHOICE = re.compile(r"(\d{1,4}) ([-+*/]) (\d{1,4}) =")


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


@dataclass(frozen=True)
class Piece:
    """A stretch of a trace; ``lesson`` says whether a model is to learn to write it."""

    text: str
    lesson: bool = True


def trace(
    row: Mapping[str, Any],
    rng: random.Random,
    *,
    hit_rate: float,
    give_up: float = 0.0,
    max_lines: int,
    tried: Sequence[str] | None = None,
    learn_tries: bool = False,
) -> list[Piece] | None:
    """A completion for *row* that continues the open ``<think>`` and ends with its answer.

    *hit_rate* is the chance that a line is a solution, up to *max_lines* lines, of which the last one is
    always a solution. After each line that failed the solver loses patience with chance *give_up*, and
    answers "impossible". The lines that fail are plausible ones, or those of *tried*, in their order: the
    choices that each made, with the results put right. *learn_tries* makes lessons of those choices. None
    when no solution stays within positive whole numbers.
    """
    table = tuple(Value(number, str(number)) for number in row["nums"])
    # Equal numbers give equal lines; a line is known by what is written.
    attempts = {", ".join(map(str, line)): line for line in lines(table, row["target"])}
    hits = [line for line in attempts.values() if line[-1].result.number == row["target"]]
    misses = [line for line in attempts.values() if line[-1].result.number != row["target"]]
    if not hits:
        return None
    if tried is not None:
        misses = [line for line in _retraced(tried, table) if line[-1].result.number != row["target"]]
    count = 0
    patient = True
    while patient and count < min(max_lines - 1, len(misses)) and rng.random() >= hit_rate:
        count += 1
        patient = rng.random() >= give_up
    pieces = [Piece("\n")]
    for line in _likely(misses, hits, row["target"], count, rng) if tried is None else misses[:count]:
        pieces += _failed(line, learn_tries)
    if not patient:
        return [*pieces, Piece("</think>\n<answer>impossible</answer>")]
    fewest = min(map(_products, hits))
    hit = rng.choice([line for line in hits if _products(line) == fewest])
    written = ", ".join(map(str, hit))
    return [*pieces, Piece(f"{written} yes\n</think>\n<answer>{hit[-1].result.text}</answer>")]


def _retraced(tried: Sequence[str], table: tuple[Value, ...]) -> list[Line]:
    """The lines that make the choices of *tried*, without those that cannot be made, each line once."""
    found: dict[str, Line] = {}
    for text in tried:
        left, line = list(table), []
        for a, sign, b in _CHOICE.findall(text):
            pair = [value for value in (_take(left, int(a)), _take(left, int(b))) if value is not None]
            made = [step for step in _steps(*pair) if step.sign == sign] if len(pair) == 2 else []
            if not made:
                break
            line.append(made[0])
            left.append(made[0].result)
        else:
            if len(left) == 1 and line:
                found.setdefault(", ".join(map(str, line)), tuple(line))
    return list(found.values())


def _take(left: list[Value], number: int) -> Value | None:
    for at, value in enumerate(left):
        if value.number == number:
            return left.pop(at)
    return None


def _failed(line: Line, lesson: bool) -> Iterator[Piece]:
    for number, step in enumerate(line):
        yield Piece(f"{', ' if number else ''}{step.left.number} {step.sign} {step.right.number}", lesson)
        yield Piece(f" = {step.result.number}")
    yield Piece(" no\n")


def lines(table: tuple[Value, ...], target: int) -> Iterator[Line]:
    """Every attempt from *table*, the last step nearest to *target*.

    Of two steps that do not need each other only one order is an attempt: the one whose first number is
    the larger comes first.
    """
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
                    if step.result in (more[0].left, more[0].right) or more[0].left.number <= step.left.number:
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


def _products(line: Line) -> int:
    return sum(step.sign in "*/" for step in line)


def _likely(misses: Sequence[Line], hits: Sequence[Line], target: int, count: int, rng: random.Random) -> list[Line]:
    """*count* of *misses*, rather those that one would really try: few products, small numbers, a begin that
    leads to a solution, an end near the target."""
    beginnings = {str(line[0]) for line in hits}

    def weight(line: Line) -> float:
        likely = 0.3 ** _products(line)
        if any(step.result.number > 999 for step in line):
            likely *= 0.1
        if str(line[0]) in beginnings or abs(line[-1].result.number - target) <= 5:
            likely *= 4
        return likely

    # Efraimidis and Spirakis (2006): the largest of these keys are a weighted sample without replacement.
    keys = {line: rng.random() ** (1 / weight(line)) for line in misses}
    return sorted(misses, key=keys.__getitem__, reverse=True)[:count]
