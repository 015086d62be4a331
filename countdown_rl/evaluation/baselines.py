"""Baselines: a random legal expression as the floor, the exact solver as the ceiling, the teacher of countdown-tiny.

Each takes the place of a model in an evaluation: same puzzles, same response format, same grader.
"""

import random
from fractions import Fraction

from countdown_rl.errors import InputError
from countdown_rl.inference.generate import Completion
from countdown_rl.models import reference
from countdown_rl.puzzle import solver
from countdown_rl.puzzle.rules import Puzzle
from countdown_rl.tasks import traces
from countdown_rl.tasks.countdown import CountdownRow
from countdown_rl.tasks.response_format import ANSWER_CLOSE, ANSWER_OPEN
from countdown_rl.tasks.task import Row


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
    return f"{row.style.opening}\n</{row.style.tag}>\n{ANSWER_OPEN}{answer}{ANSWER_CLOSE}"


class Teacher:
    """The search that countdown-tiny was trained on, without a mistake (:mod:`countdown_rl.tasks.traces`).

    Args:
        max_new_tokens: its budget, in tokens of countdown-tiny.
    """

    def __init__(self, max_new_tokens: int) -> None:
        from tokenizers import Tokenizer

        model = reference.resolve("countdown-tiny")
        self._plan = traces.plan_of(model.manifest.facts if model.manifest else {})
        self._tokenizer = Tokenizer.from_file(str(reference.files(model) / "tokenizer.json"))
        self._budget = max_new_tokens

    def complete(self, row: Row, seed: str) -> Completion:
        """A trace in the order drawn with *seed*, cut off at the budget.

        Raises:
            InputError: the plan is for puzzles of other sizes, or the row is in the style ``lines``.
        """
        self._check(row)
        trace = traces.trace(row, self._plan, random.Random(seed), max_lines=self._budget)
        text = row.style.opening + trace.text
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        if len(ids) < self._budget:  # the end is a token
            return Completion(text, len(ids) + 1, True)
        return Completion(self._tokenizer.decode(ids[: self._budget]), self._budget, False)

    def expected_accuracy(self, row: Row) -> float:
        """The exact probability that its answer to *row* is complete within the budget."""
        self._check(row)
        budget = self._budget - self._count([row.style.opening])[0]
        (probability,) = traces.expected_accuracy(row, self._plan, self._count, budgets=(budget,))
        return probability

    def _check(self, row: Row) -> None:
        if len(row.get("nums", ())) not in self._plan:
            sizes = " and ".join(map(str, self._plan))
            raise InputError(f"teacher knows puzzles of {sizes} numbers only; give --data such puzzles.")
        if row.style.lines:
            raise InputError("teacher does not write the style lines; give --data of another style.")
        if isinstance(row, CountdownRow) and not traces.supports(row.puzzle):
            raise InputError("teacher uses all operators; give --data puzzles that allow them.")

    def _count(self, texts: list[str]) -> list[int]:
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [len(encoding) + text.endswith(ANSWER_CLOSE) for encoding, text in zip(encodings, texts, strict=True)]


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
