"""The Countdown task: prompt and grading of one puzzle."""

import random
import re
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from operator import add, mul, sub, truediv

from countdown_rl.core.errors import InputError
from countdown_rl.core.types import JsonObject, Record
from countdown_rl.tasks.countdown import expression, prompts, proxies, rules, solver
from countdown_rl.tasks.countdown.expression import MAX_DIGITS, ExpressionError, parse
from countdown_rl.tasks.countdown.rules import DEFAULT_RULE, OPERATORS, Puzzle
from countdown_rl.tasks.countdown.solver import Solved
from countdown_rl.tasks.prompt import Prompt
from countdown_rl.tasks.response_format import Piece, Step
from countdown_rl.tasks.task import Baseline, Group, Row, Task

SYSTEM = (
    "You are a careful solver of number puzzles. First reason inside <think> and </think>, "
    "then give the final answer inside <answer> and </answer>."
)
#: The system turns of the styles without tags.
_UNTAGGED = {
    "direct": "You are a careful solver of number puzzles. Give the final answer alone.",
    "boxed": "You are a careful solver of number puzzles. First reason, then give the final answer in \\boxed{}.",
    "answer_line": "You are a careful solver of number puzzles. First reason, then write Answer: and the final answer.",
}
#: The prefill of the style ``prefilled``.
PREFILL = "Let me work through this step by step.\n<think>"

#: Names of the numbers of a row.
NUMBERS = ("nums", "numbers", "num")
_OPERATIONS = {"+": add, "-": sub, "*": mul, "/": truediv}
_LIMIT = 10**MAX_DIGITS
_INTEGER = re.compile(r"\s*([-−]?(?:0|[1-9][0-9]{0,14}))(?:\.0+)?\s*").fullmatch
#: A list as text: numbers with one kind of separator, in brackets or not.
_LIST = re.compile(
    r"[\s\[({]*([^\s,;]+(?:(?: *,\s*[^\s,;]+)*|(?: *;\s*[^\s,;]+)*|(?:\s+[^\s,;]+)*))[\s\])}]*"
).fullmatch
_IMPOSSIBLE = ("impossible", "impossible.", "impossible!", r"\boxed{impossible}")

#: Reasons why an expression is not right; those of its syntax are the expression's own.
_REASONS = {
    "number-not-given": "a number that is not in the puzzle",
    "number-used-twice": "a number used more often than it is given",
    "number-left-out": "a number not used, where the rule asks for all",
    "operator-not-allowed": "an operator that this puzzle does not allow",
    "not-positive-integer": "an intermediate result that is no positive integer, under the television rule",
    "wrong-value": "a legal expression whose value is not the target",
    "not-impossible": "a refusal, but there is a solution",
    "not-proved": "a refusal of a puzzle that is out of the solver's range",
}
#: Names of the numbers of solutions, by the lowest.
SOLUTIONS = ((0, "0"), (1, "1"), (2, "2-4"), (5, "5+"))


class CountdownRow(Row):
    """A puzzle: ``nums``, ``target``, and ``rule``, ``operators`` and ``style`` if they are not the
    default.
    """

    task = "countdown"
    styles = ("prefilled", "model_opens", *_UNTAGGED)
    kept_fields = ("nums", "target", "needs", "operators", "rule", "tier")
    prompt_fields = ("nums", "target")

    def __init__(self, fields: Record) -> None:
        if fields.keys().isdisjoint(NUMBERS):
            raise InputError("there is no `nums`")
        if "target" not in fields:
            raise InputError("there is no `target`")
        nums = numbers_of(fields)
        target = integer(fields["target"])
        if nums is None or min(nums) < 0:
            raise InputError(
                f"`nums` should be a list of whole numbers from 0 on, of at most {MAX_DIGITS} digits"
            )
        if target is None:
            raise InputError(f"`target` should be a whole number of at most {MAX_DIGITS} digits")
        if fields.get("needs") not in (None, "add-sub", "mul-div"):
            raise InputError("`needs` should be add-sub or mul-div")
        row = {**fields, "nums": nums, "target": target}
        if row.get("solutions") is not None:
            count = row["solutions"] = integer(row["solutions"])
            if count is None or count < 0:
                raise InputError("`solutions` should be a whole number from 0 on")
        super().__init__(row)
        rule = rules.rule(fields.get("rule") or DEFAULT_RULE)
        operators = rules.operators(fields["operators"]) if fields.get("operators") else OPERATORS
        self.puzzle = Puzzle(tuple(nums), target, rule, operators)
        self.rule = rule.name
        self._sorted = sorted(nums)

    def default_prompt(self) -> Prompt:
        puzzle = self.puzzle
        user = (
            f"Numbers: {' '.join(map(str, puzzle.numbers))}\nTarget: {puzzle.target}\n"
            f"Reach the target with {' '.join(puzzle.operators)} and parentheses, "
            f"{puzzle.rule.words}. If there is no way, answer impossible."
        )
        return Prompt(user, _UNTAGGED.get(self.style_name, SYSTEM), PREFILL)

    def judge(self, answer: str) -> tuple[str | None, str]:
        puzzle = self.puzzle
        if len(answer) < 20 and answer.lower() in _IMPOSSIBLE:
            solved = _solved(puzzle)
            if solved is None:
                return None, "not-proved"
            return None, "not-impossible" if solved.solutions else ""
        try:
            tree, numbers, top, bottom, whole, agrees = parse(answer)
        except ExpressionError as error:
            return None, error.reason
        value = expression.fraction(top, bottom)
        numbers.sort()
        if numbers != self._sorted:
            used, expected = Counter(numbers), Counter(self._sorted)
            if used.keys() - expected.keys():
                return value, "number-not-given"
            if used - expected:
                return value, "number-used-twice"
            if puzzle.rule.every:
                return value, "number-left-out"
        if puzzle.operators != OPERATORS and expression.operators(tree) - set(puzzle.operators):
            return value, "operator-not-allowed"
        if bottom == 0:
            return None, "division-by-zero"
        if puzzle.rule.whole and not whole:
            return value, "not-positive-integer"
        if not agrees:
            return value, "answers-disagree"
        return value, "" if top == puzzle.target * bottom else "wrong-value"

    @property
    def reference(self) -> str:
        return str(self.puzzle.target)

    @property
    def headline(self) -> str:
        return f"{' '.join(map(str, self.puzzle.numbers))} → {self.puzzle.target}"

    @property
    def identity(self) -> str:
        return " ".join(map(str, self._sorted))

    @property
    def asked(self) -> list[str]:
        return [str(number) for number in (*self.puzzle.numbers, self.puzzle.target)]

    @property
    def id(self) -> str:
        return self.puzzle.id

    @classmethod
    def asked_by(cls, text: str) -> JsonObject | None:
        return prompts.asked(text)

    @property
    def own_split(self) -> str:
        return rules.split_of(self._sorted)

    @property
    def groups(self) -> dict[str, str]:
        tier = self.get("tier")
        if tier:
            return {"tier": str(tier)}
        groups = {"numbers": str(len(self._sorted))}
        if self.get("needs"):
            groups["needs"] = self["needs"]
        count = self.get("solutions")
        if count is not None:
            names = [name for lowest, name in SOLUTIONS if count >= lowest]
            groups["solutions"] = names[-1]
        return groups

    @property
    def refusal(self) -> str:
        count = self.get("solutions")
        solved = _solved(self.puzzle) if count is None else None
        if solved:
            count = solved.solutions
        return "impossible" if count == 0 else ""

    def evaluated_groups(self, solved: bool) -> dict[str, str]:
        groups = self.groups
        if not solved and "tier" not in groups and self.refusal:
            groups["solutions"] = "0"
        return groups

    @property
    def right_answer(self) -> str | None:
        solved = _solved(self.puzzle)
        return solved.solution if solved else None

    def vote_key(self, answer: str, value: str | None) -> str:
        try:
            parsed = parse(answer)
        except ExpressionError:
            return super().vote_key(answer, None)
        form = expression.canonical(parsed.tree)
        return form if parsed.agrees else f"{form} = something else"

    def pieces(self, text: str) -> list[Piece]:
        return expression.pieces(text)

    def steps(self, answer: str) -> list[Step]:
        try:
            return expression.steps(parse(answer).tree)
        except ExpressionError:
            return []


def puzzle_row(numbers: list[int], target: int, settings: Mapping[str, str] = {}) -> CountdownRow:
    """The row of a user's puzzle, without *settings* that are the default; InputError if solver or
    prompt refuse it.
    """
    row = CountdownRow({"nums": numbers, "target": target, **settings})
    solver.check_puzzle(row.puzzle)
    defaults = {"rule": DEFAULT_RULE, "operators": OPERATORS, "style": row.styles[0]}
    stated = {**row, "operators": row.puzzle.operators}
    fields = {name: stated[name] for name in stated if stated[name] != defaults.get(name)}
    row = CountdownRow(fields)
    row.prompt()
    return row


def numbers_of(fields: Record) -> list[int] | None:
    """The numbers of a row, a list or text such as ``3 7 50``; None if it has none, InputError if
    two lists differ.
    """
    lists = [_numbers(fields[name]) for name in NUMBERS if fields.get(name) is not None]
    first = lists[0] if lists else None
    for other in lists:
        if first and other and sorted(other) != sorted(first):
            raise InputError(f"it has two lists of numbers, {first} and {other}")
    return first


def _numbers(nums: object) -> list[int] | None:
    if isinstance(nums, str):
        match = _LIST(nums)
        nums = re.findall(r"[^][(){},;\s]+", match[1]) if match else None
    if not isinstance(nums, list | tuple):
        return None
    integers = [number for number in map(integer, nums) if number is not None]
    return integers if integers and len(integers) == len(nums) else None


def integer(value: object) -> int | None:
    """The whole number *value*, which may be text or a float; else None."""
    if type(value) is int and 0 <= value < _LIMIT:  # nearly all are
        return value
    match = _INTEGER(str(value))
    return int(match[1].replace("−", "-")) if match else None


@lru_cache(maxsize=65_536)
def _solved(puzzle: Puzzle) -> Solved | None:
    """The facts of *puzzle*; None if it is out of the solver's range."""
    try:
        return solver.solve(puzzle)
    except InputError:
        return None


def random_answer(row: CountdownRow, rng: random.Random) -> str:
    """A random expression that obeys the rules of the puzzle, made by joining two values at a time."""
    puzzle = row.puzzle
    usable = [number for number in puzzle.numbers if number or not puzzle.rule.whole] or [0]
    count = len(usable) if puzzle.rule.every else rng.randint(1, len(usable))
    table = [(Fraction(number), str(number)) for number in rng.sample(usable, count)]
    while len(table) > 1:
        pair = rng.sample(table, 2)
        (a, left), (b, right) = pair
        operator = rng.choice(puzzle.operators)
        if operator == "/" and b == 0:
            continue
        value = _OPERATIONS[operator](a, b)
        # This terminates: sums and products of positive integers are always allowed.
        if puzzle.rule.whole and (value <= 0 or value.denominator != 1):
            continue
        for joined in pair:
            table.remove(joined)
        table.append((value, f"({left} {operator} {right})"))
    text = table[0][1]
    return text[1:-1] if text.startswith("(") else text


TASK = Task(
    name="countdown",
    title="Countdown numbers puzzle",
    purpose="Make a target from given numbers with + - * / and parentheses, each number used once.",
    row=CountdownRow,
    fields={
        "id": "identifier: the numbers in ascending order, and the target",
        "nums": "the numbers, each used exactly once, or as `rule` says",
        "target": "the number to reach",
        "solutions": "how many distinct solutions there are, counted exhaustively; 0 means proved impossible",
        "solution": "one of them",
        "needs": "`add-sub` if + and - suffice, else `mul-div`",
        "size": "the count of numbers",
        "rule": "how numbers may be used, if it is not `exactly-once`",
        "operators": "the operators allowed, if they are not all four",
        "tier": "the part of a benchmark suite",
        "style": "the response format, if it is not the default",
        "template": "the prompt, a Jinja template, if it is not the default",
    },
    example={"nums": [19, 36, 55, 7], "target": 65},
    aliases=frozenset(NUMBERS),
    noun="puzzle",
    reasons=expression.REASONS | _REASONS,
    groups={
        "numbers": Group("Count of numbers", "{} numbers", {"1": "1 number"}),
        "needs": Group(
            "Operators needed", names={"add-sub": "+ and − suffice", "mul-div": "× or ÷ is needed"}
        ),
        "solutions": Group(
            "Number of solutions",
            "{} solutions",
            {"0": "no solution", "1": "1 solution"},
            main=False,
            unsolvable="0",
        ),
        "tier": Group(
            "Tier",
            names={name: name for name in ("needs-mul", "rare", "impossible")},
            unsolvable="impossible",
        ),
    },
    probe=lambda rng: {
        "nums": [rng.randint(1, 99) for _ in range(rng.choice((3, 4)))],
        "target": rng.randint(10, 100),
    },
    source="countdown_rl.data.countdown:CountdownSource",
    demo={"nums": (111_111_111_111_111, 222_222_222_222_222), "target": 333_333_333_333_333},
    data_options=frozenset(
        ("preset", "size", "numbers", "targets", "operators", "rule", "impossible")
    ),
    baselines={
        "random": Baseline("floor", "a random legal expression", answer=random_answer),
        "solver": Baseline(
            "ceiling",
            "the exact solver",
            lambda row, rng: solver.solve(row.puzzle).solution or "impossible",
        ),
    },
    grammar=expression.GRAMMAR_VERSION,
    suites={"countdown-bench-1": "countdown_rl.data.suites:file"},
    proxies=proxies.GRADERS,
)
