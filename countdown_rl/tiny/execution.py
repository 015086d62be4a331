"""Reader of search traces for ``diagnose``: each line is compared with the way that it names, and executed again."""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from countdown_rl.puzzle.expression import operators, parse
from countdown_rl.puzzle.rules import OPERATORS
from countdown_rl.tasks.countdown import CountdownRow
from countdown_rl.tasks.reading import ANSWER, LIMIT, wrong_step
from countdown_rl.tasks.task import Row
from countdown_rl.tiny import traces

HEADING, REPEAT, OTHER, MALFORMED = "wrong heading", "repeated line", "line other than its way", "malformed line"
WRONG_YES, MISSED_YES, END = "wrong yes", "missed yes", "end without yes"
#: Counts of lines within which the share of puzzles solved is given.
LINES = (1, 2, 4, 8, 16, 32)

_LINE = re.compile(rf"([0-9]{{1,9}})\. (.*?) ({'|'.join(traces.SKIPS)}|yes)")
_STEP = re.compile(r"([0-9]{1,9}) ([-+*/]) ([0-9]{1,9})(?: = ([0-9]{1,9}))?")


#: A graded sample and its row.
Graded = tuple[Mapping[str, Any], CountdownRow]


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


class TraceReader:
    """Reader of the completions of a model that was trained on the traces of *plan*."""

    def __init__(self, plan: traces.Plan) -> None:
        self._plan = plan

    def read(self, sample: Mapping[str, Any], row: Row) -> Execution | None:
        """Read the completion of *sample*, an answer to *row*; None where it is not in the trace language."""
        return read(sample["completion"], row, self._plan)

    def solved_within(self, samples: Sequence[Graded]) -> dict[str, dict[str, dict[str, float]]]:
        """Return the shares of puzzles solved within each of :data:`LINES` lines of the search.

        By operator in the expression needed, beside ``all``: those of the ``model``, and the exact ones of the
        ``teacher`` and of the ``plan in order``, without a mistake.
        """
        searches = {name: self._exact(samples, in_order=name != "teacher") for name in ("teacher", "plan in order")}
        curves: dict[str, dict[str, list[list[float]]]] = {}
        for sample, row in samples:
            if len(row["nums"]) not in self._plan:
                continue
            trace = self.read(sample, row)
            lines = len(trace.lines) if trace and sample["correct"] else max(LINES) + 1
            expression = row.right_answer
            for group in ("all", *(operators(parse(expression).tree) if expression else ())):
                by_name = curves.setdefault(group, {name: [] for name in ("model", *searches)})
                by_name["model"].append([float(lines <= count) for count in LINES])
                for name, exact in searches.items():
                    by_name[name].append(exact[row.id])

        def means(rows: Sequence[Sequence[float]]) -> dict[str, float]:
            columns = zip(LINES, *rows, strict=True)
            return {str(count): round(sum(shares) / len(shares), 6) for count, *shares in columns}

        return {
            group: {name: means(rows) for name, rows in curves[group].items()}
            for group in ("all", *OPERATORS)
            if group in curves
        }

    def _exact(self, samples: Sequence[Graded], *, in_order: bool) -> dict[str, list[float]]:
        """The shares of :meth:`solved_within` of a search without a mistake, by puzzle."""
        exact: dict[str, list[float]] = {}
        for size in self._plan:
            rows = {row.id: row for _, row in samples if len(row["nums"]) == size}
            if rows:
                reaching = [traces.reaching(row, self._plan) for row in rows.values()]
                curves = traces.solved_by_line(reaching, max(LINES), in_order=in_order)
                exact |= {key: [curve[k - 1] for k in LINES] for key, curve in zip(rows, curves, strict=True)}
        return exact


def reader(facts: Sequence[Mapping[str, Any]]) -> TraceReader | None:
    """Return the reader for a model, of which or of whose base *facts* say that it was trained on traces."""
    plans = [traces.plan_of(values) for values in facts if "plan" in values]
    return TraceReader(plans[-1]) if plans else None


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
