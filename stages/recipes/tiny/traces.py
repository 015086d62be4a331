"""Search traces: the text that a teacher writes while it searches for the target, in an open order.

A *way* says which two values are combined and how, step after step until two values are left; the
last step is always the one whose result is nearest to the target. The numbers are sorted, largest
first. Each line of a trace executes one way. It begins with the way's number in the plan, and a
line that does not reach the target ends with the choice of the next way: the one that follows in
the plan, or one after it::

    55 36 19 7
    17. 55 / 7 no, skip one
    19. 55 - 7 = 48, 48 - 36 = 12, 19 + 12 = 31 no, skip two
    22. 36 - 19 = 17, 17 - 7 = 10, 55 + 10 = 65 yes

A choice is one token, and the same token everywhere in the plan. So what reinforcement learning
finds out about it in one place helps in all others. A way that cannot be executed is written up to
the step that fails: a division that is not exact, a difference of zero, a result over
:data:`LIMIT`. So the model need not know beforehand which ways can be executed. The line that
reaches the target is the last, and its expression is the answer.

The order is open: the teacher goes through the plan from its beginning, and each line is one of the
next few ways (a *window*; a single one in short plans such as that for three numbers), drawn
uniformly and independently of the puzzle; at the end of the plan it begins again. Within a pass no
line is repeated, and each depends only on the line before. Which way suits which puzzle is left to
reinforcement learning.

A teacher that *judges* ways (:mod:`stages.recipes.tiny.judge`) names the kind of a puzzle of four
numbers, after the results that tell it, and has one more choice, the same token everywhere too: to
skip the ways that look poor for this kind::

    56 34 10 4, 46, 30, 80, 32, kind 40
    2. 34 - 10 = 24, 24 - 4 = 20, 56 + 20 = 76 no, skip poor
    5. 34 - 10 = 24, 24 / 4 = 6, 56 + 6 = 62 yes

A teacher that *checks* skips no way: it follows the plan from its first way, and writes a line that
does not reach the target once more with a given chance, as people do who doubt a result. Such a
check finds nothing and costs tokens::

    9 5 2
    1. 9 * 5 = 45, 45 - 2 = 43 no
    1. 9 * 5 = 45, 45 - 2 = 43 no
    2. 9 + 5 = 14, 14 - 2 = 12 yes

The plan is found from puzzles: first the way that solves most of them per cost of its line, then
the way that solves most of the rest, and so on: the greedy algorithm for min-sum set cover (Feige,
Lovasz and Tetali 2004).
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any

from countdown_rl.core.errors import InputError
from countdown_rl.tasks.countdown.rules import OPERATORS
from countdown_rl.tasks.countdown.task import CountdownRow
from countdown_rl.tasks.task import Row

#: The largest result of a step.
LIMIT = 999
#: With more numbers there are too many ways to execute all of them on enough puzzles.
MAX_NUMBERS = 5
#: Maximum ways of a plan; their numbers have two digits.
MAX_WAYS = 99
#: A window has one way per this many in the plan; a pass through 99 ways takes about 40 lines.
_WAYS_PER_CHOICE = 24
#: Ends of a line that does not reach the target, by the ways of the plan that are skipped before
#: the next line.
SKIPS = ("no", "no, skip one", "no, skip two", "no, skip three")
#: Its end where the next line is the first of the next few ways that looks good, or the last of
#: them if none does.
SKIP_POOR = "no, skip poor"
#: How many ways that end looks at, in windows.
_POOR_WINDOWS = 2
#: Share of the choices of a teacher that judges ways which are this end, and the share of the lines
#: that are written with it: each teaches what looks good.
POOR_SHARE, _POOR_WRITTEN = 0.15, 0.85
#: Kinds of puzzles of four numbers; a teacher that judges ways names the kind first.
KINDS = 96
#: Lines executed, over all puzzles of one size, to find a plan.
_BUDGET = 400_000
#: Cost added to every way, as a share of its total, so that rarely executed ways come late.
_PRIOR = 0.05

#: Names of values: the numbers of a puzzle, largest first, and then the result of each step.
NAMES = "abcdefghi"
#: The two values that each step but the last combines, and the operator: "a-b d-e" for four
#: numbers.
Way = str
#: The ways for each count of numbers, the most useful first.
Plan = Mapping[int, Sequence[Way]]


@dataclass(frozen=True)
class Line:
    """One way, executed: its text without number and verdict, its last value, and the expression.

    ``value`` is None where a step cannot be executed.
    """

    text: str
    value: int | None
    expression: str


@dataclass(frozen=True)
class Trace:
    """A completion of the open ``<think>``; one that has not *ended* stops in the middle of the
    search.
    """

    text: str
    ended: bool


def trace(
    row: Mapping[str, Any],
    plan: Plan,
    rng: random.Random,
    *,
    max_lines: int,
    near_the_end: bool = False,
    good: Sequence[bool] | None = None,
    checks: float = 0.0,
) -> Trace:
    """Write a trace for *row* in an order drawn with *rng*.

    Args:
        plan: the ways, as :func:`find_plan` returns them.
        max_lines: lines after which the trace stops.
        near_the_end: begin at most 23 lines before a way that reaches the target, if there is one.
            Such traces train the last lines. Their first way need not be one that the teacher would
            choose.
        good: which ways look good, of a teacher that judges them.
        checks: the chance that a line is written again, of a teacher that checks.
    """
    numbers = sorted(row["nums"], reverse=True)
    ways = plan[len(numbers)]
    order = _order(len(ways), rng) if good is None else _judged_order(good, rng)
    order = _checked_order(len(ways), rng, checks) if checks else order
    if near_the_end:
        hits = [
            index
            for index, way in enumerate(ways)
            if execute(numbers, way, row["target"]).value == row["target"]
        ]
        order = _order_before(rng.choice(hits), len(ways), rng) if hits else order
    lines = [heading(numbers, None if good is None else row["target"])]
    for index, following in pairwise(islice(order, max_lines + 1)):
        line = execute(numbers, ways[index], row["target"])
        reached = line.value == row["target"]
        skip = 0 if checks else skipped(index, following)
        if good is not None and skip == poor_ways(index, good):
            judged = skip >= window(len(ways)) or rng.random() < _POOR_WRITTEN
            skip = -1 if judged else skip
        lines.append(written(index, line, reached=reached, skip=skip))
        if reached:
            return Trace("".join(lines), ended=True)
    return Trace("".join(lines), ended=False)


def window(count: int) -> int:
    """Return how many ways of a plan of *count* may come next."""
    return max(1, count // _WAYS_PER_CHOICE)


def next_ways(way: int | None, count: int) -> list[int]:
    """Return the indices, in a plan of *count* ways, that may follow *way* (None: begin a trace),
    equally likely.

    The first of them skips none, the second one, and so on. At the end of the plan its first ways
    follow.
    """
    return [_after(way, skip, count) for skip in range(window(count))]


def _results(numbers: Sequence[int]) -> tuple[int, ...]:
    """What the kind of a puzzle compares with the target, beside the third largest of its
    *numbers*.
    """
    a, b, c, d = numbers
    return a - c, b - d, a + b - c, a - b + c


def kind(numbers: Sequence[int], target: int) -> int:
    """Return the kind of a puzzle of four *numbers*, largest first, below :data:`KINDS`."""
    over = [value > target for value in (numbers[2], *_results(numbers))]
    return sum(answer << place for place, answer in enumerate(over)) + 32 * (
        (numbers[3] >= 4) + (numbers[3] >= 10)
    )


def poor_ways(way: int, good: Sequence[bool]) -> int:
    """Return how many ways after *way* are skipped with :data:`SKIP_POOR`."""
    last = poor_window(len(good)) - 1
    return next((skip for skip in range(last) if good[_after(way, skip, len(good))]), last)


def poor_window(count: int) -> int:
    """Return how many ways of a plan of *count* may come next where poor ones are skipped."""
    return _POOR_WINDOWS * window(count)


def skipped(way: int, following: int) -> int:
    """Return how many ways are skipped between *way* (-1: the beginning of a trace) and the
    *following* one.
    """
    return following - way - 1 if following > way else following


def _after(way: int | None, skip: int, count: int) -> int:
    following = (-1 if way is None else way) + 1 + skip
    return following if following < count else skip


def _order(count: int, rng: random.Random) -> Iterator[int]:
    way: int | None = None
    while True:
        way = rng.choice(next_ways(way, count))
        yield way


def _judged_order(good: Sequence[bool], rng: random.Random) -> Iterator[int]:
    way = rng.choice(next_ways(None, len(good)))
    while True:
        yield way
        if rng.random() < _POOR_WRITTEN:
            way = _after(way, poor_ways(way, good), len(good))
        else:
            way = rng.choice(next_ways(way, len(good)))


def _checked_order(count: int, rng: random.Random, checks: float) -> Iterator[int]:
    way = 0
    while True:
        yield way
        way = way if rng.random() < checks else (way + 1) % count


def _order_before(way: int, count: int, rng: random.Random) -> Iterator[int]:
    """Ways that lead to *way* in one pass, then *way* itself, and one that may follow.

    The ways before it are up to seven drawn ones, or up to 23 in the order of the plan. The teacher
    hardly ever draws so many in that order, and a model that learns to prefer it needs to have seen
    it.
    """
    order = [way]
    if rng.random() < 0.5:
        order = list(range(max(0, way - rng.randrange(24)), way + 1))
    else:
        for _ in range(rng.randrange(8)):
            previous = [index for index in range(order[0]) if order[0] in next_ways(index, count)]
            if not previous:
                break
            order.insert(0, rng.choice(previous))
    return iter([*order, next_ways(way, count)[0]])


def heading(numbers: Sequence[int], target: int | None = None) -> str:
    """Return the first line of a trace: the sorted *numbers*, and for a *target* what the puzzle's
    kind compares with it, and the kind.
    """
    judged = (
        ""
        if target is None
        else f", {', '.join(map(str, _results(numbers)))}{kind_name(kind(numbers, target))}"
    )
    return f"\n{' '.join(map(str, numbers))}{judged}\n"


def kind_name(kind: int) -> str:
    """Return the text of a *kind*, as a heading has it."""
    return f", kind {kind}"


def find_plan(rows: Sequence[Mapping[str, Any]]) -> dict[int, list[Way]]:
    """Return the plan for puzzles like *rows*: ways by count of numbers, the most useful first.

    Raises:
        InputError: a puzzle has more than :data:`MAX_NUMBERS` numbers.
    """
    puzzles: dict[int, list[Mapping[str, Any]]] = {}
    for row in rows:
        puzzles.setdefault(len(row["nums"]), []).append(row)
    if puzzles and max(puzzles) > MAX_NUMBERS:
        raise InputError(
            f"traces are written for up to {MAX_NUMBERS} numbers, and a puzzle has {max(puzzles)}."
        )
    return {count: _set_cover(alike) for count, alike in sorted(puzzles.items())}


def unsupported(row: Row) -> str:
    """Return the reason why no trace is written for *row*, as in "traces use all operators"; ""
    where one is.
    """
    if not isinstance(row, CountdownRow):
        return "are for Countdown puzzles only"
    if len(row["nums"]) < 2:
        return "combine at least two numbers"
    if row.style.direct:
        return "have reasoning, which the style direct has not"
    return "use all operators" if row.puzzle.operators != OPERATORS else ""


def plan_of(facts: Mapping[str, Any]) -> dict[int, list[Way]]:
    """Return the plan in the *facts* of a model's manifest, empty if there is none."""
    return {int(count): ways for count, ways in facts.get("plan", {}).items()}


def _set_cover(rows: Sequence[Mapping[str, Any]]) -> list[Way]:
    """The plan for *rows* of one size, from as many of them as the budget allows."""
    import numpy as np

    ways = all_ways(len(rows[0]["nums"]))
    rows = rows[: max(1, _BUDGET // len(ways))]
    hits = np.zeros((len(rows), len(ways)), dtype=bool)
    costs = np.zeros((len(rows), len(ways)))  # steps begun, plus one for number and verdict
    for index, row in enumerate(rows):
        numbers = sorted(row["nums"], reverse=True)
        for column, way in enumerate(ways):
            line = execute(numbers, way, row["target"])
            hits[index, column] = line.value == row["target"]
            costs[index, column] = line.text.count(",") + 2
    prior = _PRIOR * costs.sum(0)
    plan: list[Way] = []
    while hits.any() and len(plan) < MAX_WAYS:
        best = int(np.argmax(hits.sum(0) / (costs.sum(0) + prior)))
        plan.append(ways[best])
        left = ~hits[:, best]
        hits, costs = hits[left], costs[left]
    return plan


def all_ways(count: int) -> list[Way]:
    """Return every way to combine *count* numbers; independent steps are listed in one order
    only.
    """
    return [" ".join(steps) for steps in _steps(list(range(count)), count)]


def _steps(
    free: list[int], next_value: int, last: tuple[int, int] = (-1, -1)
) -> Iterator[tuple[str, ...]]:
    if len(free) == 2:
        yield ()
        return
    for start, i in enumerate(free):
        for j in free[start + 1 :]:
            if j != next_value - 1 and (i, j) < last:
                continue  # the two steps are independent, and listed in the other order
            rest = [value for value in free if value not in (i, j)] + [next_value]
            for operator in "+-*/":
                step = f"{NAMES[i]}{operator}{NAMES[j]}"
                for others in _steps(rest, next_value + 1, (i, j)):
                    yield (step, *others)


def combine(high: int, operator: str, low: int) -> int | None:
    """Return the result of one step, None where it is not a whole number from 1 to
    :data:`LIMIT`.
    """
    if operator == "/":
        return high // low if high % low == 0 else None
    result = high + low if operator == "+" else high - low if operator == "-" else high * low
    return result if 0 < result <= LIMIT else None


def _nearest(high: int, low: int, target: int) -> str:
    """The operator between two numbers whose result is nearest to *target*; not a division by 1."""
    distances = {
        operator: abs(result - target)
        for operator in ("+-*" if low == 1 else "+-*/")
        if (result := combine(high, operator, low)) is not None
    }
    return min(distances, key=distances.__getitem__)


def execute(numbers: Sequence[int], way: Way, target: int) -> Line:
    """Execute *way* on *numbers*, which are sorted, largest first."""
    values, operands = list(numbers), [str(number) for number in numbers]
    steps: list[str] = []
    free = set(range(len(numbers)))
    for step in [*way.split(), None]:
        if step is None:
            i, j = sorted(free)
            operator = _nearest(max(values[i], values[j]), min(values[i], values[j]), target)
        else:
            i, operator, j = NAMES.index(step[0]), step[1], NAMES.index(step[2])
        if values[i] < values[j]:
            i, j = j, i
        result = combine(values[i], operator, values[j])
        if result is None:
            return Line(", ".join([*steps, f"{values[i]} {operator} {values[j]}"]), None, "")
        steps.append(f"{values[i]} {operator} {values[j]} = {result}")
        operands.append(f"({operands[i]} {operator} {operands[j]})")
        free -= {i, j}
        free.add(len(values))
        values.append(result)
    return Line(", ".join(steps), values[-1], operands[-1][1:-1])


def expected_accuracy(
    row: Mapping[str, Any],
    plan: Plan,
    count_tokens: Callable[[list[str]], list[int]],
    *,
    budgets: Sequence[int],
    chances: Any = None,
    judged: bool = False,
) -> list[float]:
    """Return the probability that a trace of *row*, executed without a mistake, ends within each of
    *budgets* tokens.

    Exact, by dynamic programming over (tokens so far, way of the next line). *count_tokens* returns
    the tokens of each text. *chances* is a (ways + 1, choices) array of probabilities: of what is
    skipped after each way, and at the beginning; by default those of the teacher, which are equal
    within the window. *judged* traces have the heading of a teacher that judges ways.
    """
    import numpy as np

    numbers = sorted(row["nums"], reverse=True)
    lines = [execute(numbers, way, row["target"]) for way in plan[len(numbers)]]
    count, largest = len(lines), max(budgets)
    if chances is None:
        chances = np.full((count + 1, window(count)), 1 / window(count))
    choices = chances.shape[1]
    following = np.array(
        [[_after(way, skip, count) for skip in range(choices)] for way in range(count)]
    )
    correct = np.array([line.value == row["target"] for line in lines])
    texts = [
        written(way, line, reached=hit, skip=skip if skip < len(SKIPS) else -1)
        for way, (line, hit) in enumerate(zip(lines, correct, strict=True))
        for skip in range(choices)
    ]
    start, *line_costs = count_tokens([heading(numbers, row["target"] if judged else None), *texts])
    costs = np.array(line_costs).reshape(count, choices)
    probability = np.zeros((largest + costs.max() + 1, count))  # (tokens so far, next way)
    ended = np.zeros(len(probability))
    probability[start, :choices] = chances[-1]
    for tokens in range(start, largest):
        here = probability[tokens]
        if not here.any():
            continue
        np.add.at(ended, tokens + costs[correct, 0], here[correct])
        places = tokens + costs[~correct], following[~correct]
        np.add.at(probability, places, here[~correct, None] * chances[:-1][~correct])
    return [float(ended[: budget + 1].sum()) for budget in budgets]


def written(way: int, line: Line, *, reached: bool, skip: int = 0) -> str:
    """Return the text of *line*, executed *way* of the plan: with the answer where it reached the
    target, else with the number of ways to *skip* before the next line, or -1 for the poor ones.
    """
    end = SKIP_POOR if skip < 0 else SKIPS[skip]
    ending = f"yes\n</think>\n<answer>{line.expression}</answer>" if reached else f"{end}\n"
    return f"{way + 1}. {line.text} {ending}"
