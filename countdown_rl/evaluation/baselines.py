"""A floor and a ceiling for any model: a random legal expression, and the exact solver.

Both take the place of a model in an evaluation: they answer the same puzzles in the same blocks, and the
same grader reads them. Neither decodes anything, so how a model is decoded says nothing of them.
"""

import random
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from countdown_rl.errors import InputError
from countdown_rl.puzzle import solver
from countdown_rl.puzzle.rules import Puzzle
from countdown_rl.tasks.countdown import CountdownRow
from countdown_rl.tasks.response_format import ANSWER_CLOSE, ANSWER_OPEN
from countdown_rl.tasks.task import Row

#: What is written after ``--model``, and what it is.
KINDS = {"random": "floor", "solver": "ceiling"}


def is_bound(metrics: Mapping[str, Any]) -> bool:
    """Whether *metrics* (as in ``metrics.json``) are a bound's, and no model's."""
    return metrics["model"]["kind"] in KINDS.values()


def complete(name: str, row: Row, seed: str) -> str:
    """A completion for *row*: its answer, after thinking that is empty.

    Args:
        name: ``random`` or ``solver``.
        seed: what the random expression depends on, beside the row. The solver asks for none.

    Raises:
        InputError: the row is no Countdown puzzle, or too large for the solver.
    """
    if not isinstance(row, CountdownRow):
        raise InputError(f"{name} knows Countdown puzzles only; give --model a model for this data.")
    answer, style = _WRITERS[name](row.puzzle, seed), row.style
    opened = f"<{style.tag}>" if style.own else ""
    return f"{opened}\n</{style.tag}>\n{ANSWER_OPEN}{answer}{ANSWER_CLOSE}"


def expression(posed: Puzzle, rng: random.Random) -> str:
    """A random expression that keeps the rules of *posed*.

    Two values on the table, drawn at random and in random order, are joined by a random sign until one is
    left; a join that the rules forbid is drawn again. Where not every number must be used, how many are is
    drawn first.
    """
    count = len(posed.numbers) if posed.rule.every else rng.randint(1, len(posed.numbers))
    table = [(Fraction(number), str(number)) for number in rng.sample(posed.numbers, count)]
    while len(table) > 1:
        (a, left), (b, right) = chosen = rng.sample(table, 2)
        sign = rng.choice(posed.operators)
        if sign == "/" and b == 0:
            continue
        value = a + b if sign == "+" else a - b if sign == "-" else a * b if sign == "*" else a / b
        # A sum or a product of positive whole numbers is one, so there always is a way on.
        if posed.rule.whole and (value <= 0 or value.denominator != 1):
            continue
        for one in chosen:
            table.remove(one)
        table.append((value, f"({left} {sign} {right})"))
    text = table[0][1]
    return text[1:-1] if text.startswith("(") else text


def _random(posed: Puzzle, seed: str) -> str:
    return expression(posed, random.Random(seed))


def _solved(posed: Puzzle, seed: str) -> str:
    return solver.solve(posed).solution or "impossible"


_WRITERS: dict[str, Callable[[Puzzle, str], str]] = {"random": _random, "solver": _solved}
