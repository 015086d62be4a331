"""Baselines: a random legal expression as the floor, the exact solver as the ceiling.

Each takes the place of a model in an evaluation: same puzzles, same response format, same grader.
"""

import random
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from countdown_rl.errors import InputError
from countdown_rl.puzzle import solver
from countdown_rl.puzzle.rules import Puzzle
from countdown_rl.tasks.countdown import CountdownRow
from countdown_rl.tasks.response_format import ANSWER_CLOSE, ANSWER_OPEN
from countdown_rl.tasks.task import Row

#: Values of ``--model`` and their kind.
KINDS = {"random": "floor", "solver": "ceiling"}


def is_baseline(metrics: Mapping[str, Any]) -> bool:
    """Return True if *metrics* are those of a baseline, not of a model."""
    return metrics["model"]["kind"] in KINDS.values()


def complete(name: str, row: Row, seed: str) -> str:
    """The completion of *row* by the baseline *name*: empty thinking, and an answer.

    Args:
        seed: seed of the random expression, together with the row. The solver ignores it.

    Raises:
        InputError: the row is not a Countdown puzzle, or too large for the solver.
    """
    if not isinstance(row, CountdownRow):
        raise InputError(f"{name} knows Countdown puzzles only; give --model a model for this data.")
    if name == "random":
        answer = expression(row.puzzle, random.Random(seed))
    else:
        answer = solver.solve(row.puzzle).solution or "impossible"
    opening = f"<{row.style.tag}>" if row.style.own else ""
    return f"{opening}\n</{row.style.tag}>\n{ANSWER_OPEN}{answer}{ANSWER_CLOSE}"


def expression(puzzle: Puzzle, rng: random.Random) -> str:
    """A random expression that obeys the rules of *puzzle*.

    Two random values on the table are joined by a random operator until one value is left; a join that the rules
    forbid is drawn again. Where not all numbers must be used, their count is drawn first.
    """
    count = len(puzzle.numbers) if puzzle.rule.every else rng.randint(1, len(puzzle.numbers))
    table = [(Fraction(number), str(number)) for number in rng.sample(puzzle.numbers, count)]
    while len(table) > 1:
        (a, left), (b, right) = pair = rng.sample(table, 2)
        operator = rng.choice(puzzle.operators)
        if operator == "/" and b == 0:
            continue
        value = a + b if operator == "+" else a - b if operator == "-" else a * b if operator == "*" else a / b
        # This terminates: sums and products of positive integers are always allowed.
        if puzzle.rule.whole and (value <= 0 or value.denominator != 1):
            continue
        for joined in pair:
            table.remove(joined)
        table.append((value, f"({left} {operator} {right})"))
    text = table[0][1]
    return text[1:-1] if text.startswith("(") else text
