"""Faults in completions, and whether a completion would have been correct with one of them repaired.

A completion in the language of :mod:`countdown_rl.tasks.traces` is compared, line by line, with the way that each line
names, and executed again. Of any other text only the format, the equations and the answer can be checked.
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from countdown_rl.puzzle import arithmetic, expression
from countdown_rl.tasks import traces
from countdown_rl.tasks.task import Row

HEADING, REPEAT, OTHER, MALFORMED = "wrong heading", "repeated line", "line other than its way", "malformed line"
WRONG_YES, MISSED_YES, END = "wrong yes", "missed yes", "end without yes"
LIMIT, FORMAT, ANSWER = "token limit", "format", "answer other than its work"

_LINE = re.compile(rf"([0-9]{{1,9}})\. (.*?) ({'|'.join(traces.SKIPS)}|yes)")
_STEP = re.compile(r"([0-9]{1,9}) ([-+*/]) ([0-9]{1,9})(?: = ([0-9]{1,9}))?")


def wrong_step(operator: str) -> str:
    """The name of the fault of a step with a wrong result."""
    return f"wrong {operator}"


@dataclass(frozen=True)
class WrittenLine:
    """A line of a completion: ``way`` is an index into the plan, -1 where the line is malformed."""

    text: str
    way: int
    yes: bool
    faults: Collection[str]


@dataclass
class Execution:
    """A completion in the trace language.

    Attributes:
        ways: the plan for puzzles of this size.
        faults: occurrences by name.
        steps: steps by operator.
    """

    row: Mapping[str, Any]
    ways: Sequence[traces.Way]
    lines: list[WrittenLine] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    steps: Counter[str] = field(default_factory=Counter)

    def repaired(self, fault: str, budget: float) -> bool:
        """Return True if the search reaches the target within *budget* characters where *fault* never happens.

        Lines without it stay as they are. After them the search goes on with the ways that it has not tried, in the
        order of the plan. Without a token limit a search that ends in a loop would not have ended.
        """
        if fault == LIMIT and REPEAT in self.lines[-1].faults:
            return False
        length = len(traces.heading(self.row["nums"]))
        tried = set()
        for line in self.lines:
            present = fault in line.faults
            if present and (fault == REPEAT or not 0 <= line.way < len(self.ways)):
                continue
            tried.add(line.way)
            sound = not set(line.faults) - {REPEAT, fault} and (fault == HEADING or not self.faults[HEADING])
            text, reached = f"{line.text}\n", False
            if (present and fault not in (WRONG_YES, MISSED_YES)) or (
                sound and (present or line.yes or fault == HEADING)
            ):
                text, reached = self._execute(line.way)
            elif line.yes != present:  # it says yes, and the answer is wrong
                return False
            length += len(text)
            if reached:
                return length <= budget
        last = next((line.way for line in reversed(self.lines) if 0 <= line.way < len(self.ways)), -1)
        for way in [*range(last + 1, len(self.ways)), *range(last + 1)]:
            if way not in tried:
                text, reached = self._execute(way)
                length += len(text)
                if reached:
                    return fault == LIMIT or length <= budget
        return False

    def _execute(self, way: int) -> tuple[str, bool]:
        """The text of a line, executed without a fault, and whether it reaches the target."""
        line = traces.execute(sorted(self.row["nums"], reverse=True), self.ways[way], self.row["target"])
        reached = line.value == self.row["target"]
        return traces.written(way, line, reached=reached), reached


def read(completion: str, row: Mapping[str, Any], plan: traces.Plan) -> Execution | None:
    """Read *completion*, an answer to the puzzle *row*; None where it is not in the trace language."""
    execution = Execution(row, plan.get(len(row["nums"]), ()))
    numbers = sorted(row["nums"], reverse=True)
    thinking, closed, answer = completion.partition("</think>")
    first, *texts = thinking.removeprefix("\n").split("\n")
    if texts and not (closed and texts[-1]):
        texts.pop()  # empty, or a line that was cut off
    if not execution.ways or not any(map(_LINE.fullmatch, texts)):
        return None
    if first != " ".join(map(str, numbers)):
        execution.faults[HEADING] = 1
        # The lines are compared with the ways of the numbers that the model works with.
        heading = [int(word) for word in re.findall(r"(?<!\S)[1-9][0-9]{0,8}(?!\S)", first)]
        numbers = heading if len(heading) == len(numbers) else numbers
    seen: set[int] = set()
    for text in texts:
        line = _read_line(text, numbers, execution, seen)
        execution.lines.append(line)
        execution.faults.update(line.faults)
    final = execution.lines[-1]
    if not closed:
        execution.faults[LIMIT] = 1
    elif not final.yes:
        execution.faults[END] = 1
    elif not set(final.faults) - {REPEAT}:
        expected = traces.execute(numbers, execution.ways[final.way], row["target"]).expression
        execution.faults[ANSWER] += f"<answer>{expected}</answer>" not in answer
    return execution


def _read_line(text: str, numbers: Sequence[int], execution: Execution, seen: set[int]) -> WrittenLine:
    match = _LINE.fullmatch(text)
    steps = [_STEP.fullmatch(step) for step in match[2].split(", ")] if match else []
    if match is None or not all(steps):
        return WrittenLine(text, -1, False, {MALFORMED})
    faults, result = set(), None
    for high, operator, low, claim in (step.groups() for step in steps if step):
        execution.steps[operator] += 1
        result = None if claim is None else int(claim)
        if result != (traces.combine(int(high), operator, int(low)) if int(low) else None):
            faults.add(wrong_step(operator))
    way, yes, target = int(match[1]) - 1, match[3] == "yes", execution.row["target"]
    if not faults and not (
        0 <= way < len(execution.ways) and match[2] == traces.execute(numbers, execution.ways[way], target).text
    ):
        faults.add(OTHER)
    if yes != (result == target):
        faults.add(WRONG_YES if yes else MISSED_YES)
    if way in seen:
        faults.add(REPEAT)
    seen.add(way)
    return WrittenLine(text, way, yes, faults)


@dataclass
class FreeText:
    """A completion in any other language; ``equations`` are (left side, value claimed, operators if it is wrong)."""

    row: Row
    equations: list[tuple[str, str, Collection[str]]] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    steps: Counter[str] = field(default_factory=Counter)

    def repaired(self, fault: str, budget: float) -> bool:
        """Return True if an equation reaches the target where *fault* never happens.

        The result of a repaired equation replaces the wrong one in those that follow. Nothing is known of the text
        beyond the token limit: a completion that reached it counts as correct.
        """
        known: dict[str, str] = {}
        given = set(map(str, self.row.get("nums", ())))
        for left, claim, wrong in self.equations:
            if wrong and fault not in map(wrong_step, wrong):
                continue
            text = re.sub(r"\d+", lambda n: n[0] if n[0] in given else known.get(n[0], n[0]), left)
            if not self.row.judge(text)[1]:
                return True
            if len(text) < expression.MAX_LENGTH:
                known[claim] = f"({text})"
        return fault == LIMIT


def read_text(sample: Mapping[str, Any], row: Row) -> FreeText:
    """Read the completion of the graded *sample* as text in any language."""
    text = FreeText(row)
    for piece in arithmetic.pieces(sample["completion"]):
        if piece.kind not in ("right", "wrong"):
            continue
        left, claim = piece.text.rsplit("=", 1)
        operators = expression.operators(expression.parse(left).tree)
        text.steps.update(operators)
        wrong = operators if piece.kind == "wrong" else ()
        text.faults.update(map(wrong_step, wrong))
        text.equations.append((left, claim.strip(), wrong))
    if sample["truncated"]:
        text.faults[LIMIT] = 1
    elif sample["value"] is None and not sample["correct"]:
        text.faults[FORMAT] = 1
    elif not sample["correct"]:
        text.faults[ANSWER] = 1
    return text
