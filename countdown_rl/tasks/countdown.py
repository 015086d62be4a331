"""Countdown as a task: its prompt, and how a completion is read and graded, side by side."""

from functools import lru_cache

from countdown_rl.puzzle.expression import ExpressionError, fraction, parse
from countdown_rl.puzzle.rules import DEFAULT_RULE, RULES, SIGNS, Puzzle, Rule, rule, signs
from countdown_rl.tasks.response_format import STYLES
from countdown_rl.tasks.task import Grade, Row

name = "countdown"

SYSTEM = (
    "You are a careful solver of number puzzles. First reason inside <think> and </think>, "
    "then give the final answer inside <answer> and </answer>."
)
#: The assistant turn that the prompt has already begun; the model continues inside ``<think>``.
BEGUN = "Let me work through this step by step.\n<think>"

_USE = {
    "exactly-once": "using each number exactly once",
    "at-most-once": "using each number at most once",
    "television": ("using each number at most once; every result on the way must be a positive whole number"),
}
_PLAIN = RULES[DEFAULT_RULE]
_IMPOSSIBLE = ("impossible", "impossible.", "impossible!")

#: Why a legal expression, or none at all, is not a right answer. The rest are the language's own.
REASONS = {
    "no-answer": "no complete <answer> after the thinking",
    "number-not-given": "a number that is not in the puzzle",
    "number-used-twice": "a number used more often than it is given",
    "number-left-out": "a number not used, where the rule asks for all",
    "operator-not-allowed": "an operator that this puzzle does not allow",
    "not-positive-integer": "a result on the way that is no positive whole number, under the television rule",
    "wrong-value": "a legal expression whose value is not the target",
    "not-impossible": "it says impossible, and there is a way",
    "not-proved": "it says impossible, and the puzzle is too large to be sure",
}


def messages(row: Row) -> list[dict[str, str]]:
    """The conversation that puts *row* to a model; in the style ``begun`` its assistant turn is open."""
    numbers = " ".join(str(number) for number in row["nums"])
    operators = " ".join(row.get("operators") or SIGNS)
    user = (
        f"Numbers: {numbers}\nTarget: {row['target']}\n"
        f"Reach the target with {operators} and parentheses, {_USE[row.get('rule') or DEFAULT_RULE]}. "
        "If there is no way, answer impossible."
    )
    turns = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": user}]
    if (row.get("style") or "begun") == "begun":
        turns.append({"role": "assistant", "content": BEGUN})
    return turns


def grade(completion: str, row: Row) -> Grade:
    """The grade of *completion* under the rule, operators and style of *row*.

    Raises:
        InputError: the row names an unknown rule or operator.
    """
    form, strict, answer, trailing = STYLES[row.get("style") or "begun"].read(completion)
    if answer is None:
        return Grade(form, strict, False, None, None, "no-answer", trailing)
    value, reason = judge(answer, row)
    return Grade(form, strict, not reason, answer, value, reason, trailing)


def judge(answer: str, row: Row) -> tuple[str | None, str]:
    """The exact value of *answer* as text, and why it is not right ("" when it is)."""
    if len(answer) < 12 and answer.lower() in _IMPOSSIBLE:
        return None, _impossible(row)
    try:
        numbers, used, top, bottom, whole, agrees = parse(answer)
    except ExpressionError as error:
        return None, error.reason
    named = row.get("rule")
    asked = _PLAIN if named is None else rule(named)
    value = None if bottom == 0 else str(top) if bottom == 1 else fraction(top, bottom)
    given: list[int] = row["nums"]
    numbers.sort()
    if numbers != sorted(given) and (fault := _misuse(numbers, given, asked)):
        return value, fault
    allowed = row.get("operators")
    if allowed and not used <= set(signs(allowed)):
        return value, "operator-not-allowed"
    if bottom == 0:
        return None, "division-by-zero"
    if asked.whole and not whole:
        return value, "not-positive-integer"
    if not agrees:
        return value, "answers-disagree"
    return value, "" if top == row["target"] * bottom else "wrong-value"


def _misuse(numbers: list[int], given: list[int], asked: Rule) -> str:
    left = list(given)
    fault = ""
    for number in numbers:
        if number in left:
            left.remove(number)
        elif number not in given:
            return "number-not-given"
        else:
            fault = "number-used-twice"
    return fault or ("number-left-out" if asked.every and left else "")


def _impossible(row: Row) -> str:
    asked = rule(row.get("rule") or DEFAULT_RULE)
    solvable = _solvable(tuple(sorted(row["nums"])), row["target"], asked.name, row.get("operators") or SIGNS)
    return "not-proved" if solvable is None else "not-impossible" if solvable else ""


@lru_cache(maxsize=65_536)
def _solvable(numbers: tuple[int, ...], target: int, rule_name: str, allowed: str) -> bool | None:
    """Whether there is a way, by exhaustion; None where the puzzle is too large for that."""
    from countdown_rl.puzzle.rules import MAX_NUMBERS
    from countdown_rl.puzzle.solver import solvable

    if len(numbers) > MAX_NUMBERS:
        return None
    return solvable(Puzzle(numbers, target, rule(rule_name), signs(allowed)))
