"""GSM8K as a task: its prompt, its gold answers, and how a completion is read and graded.

Cobbe et al. 2021, "Training Verifiers to Solve Math Word Problems". Rows have ``question`` and ``gold``,
the number after ``####`` as exact text.
"""

import re
from fractions import Fraction

from countdown_rl.errors import InputError
from countdown_rl.tasks.response_format import STYLES
from countdown_rl.tasks.task import Grade, Row

name = "gsm8k"

_SYSTEM = (
    "You solve word problems in arithmetic. First reason inside <{tag}> and </{tag}>, then give the final "
    "number alone inside <answer> and </answer>."
)
_LINES = " Put each tag on a line of its own."
_BEGUN = "Let me work through this step by step.\n<{tag}>"
_DEFAULT_STYLE = "lines"

_MAX_LENGTH = 64
_NUMBER = re.compile(r"([-+−]?)\s*\$?\s*([0-9][0-9,]*(?:\.[0-9]+)?|\.[0-9]+)\s*%?\.?").fullmatch
_THOUSANDS = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?").fullmatch


def number(text: str) -> Fraction | None:
    """The number that *text* is: sign, ``$``, thousands in commas and decimals are understood."""
    found = _NUMBER(text.strip()) if len(text) <= _MAX_LENGTH else None
    if not found or ("," in found[2] and not _THOUSANDS(found[2])):
        return None
    value = Fraction(found[2].replace(",", ""))
    return -value if found[1] in ("-", "−") else value


def gold(answer: str) -> str:
    """The gold answer after ``####`` in *answer*, as exact text such as ``-7`` or ``5/2``.

    Raises:
        InputError: there is none, or it is no number.
    """
    _, mark, text = answer.rpartition("####")
    value = number(text) if mark else None
    if value is None:
        raise InputError("`answer` should end with `####` and a number")
    return str(value)


def messages(row: Row) -> list[dict[str, str]]:
    """The conversation that puts *row* to a model."""
    chosen = row.get("style") or _DEFAULT_STYLE
    style = STYLES[chosen]
    turns = [
        {"role": "system", "content": _SYSTEM.format(tag=style.tag) + (_LINES if style.lines else "")},
        {"role": "user", "content": row["question"]},
    ]
    if chosen == "begun":
        turns.append({"role": "assistant", "content": _BEGUN.format(tag=style.tag)})
    return turns


def grade(completion: str, row: Row) -> Grade:
    """The grade of *completion*: its answer has to be the gold number, exactly."""
    form, strict, answer, trailing = STYLES[row.get("style") or _DEFAULT_STYLE].read(completion)
    if answer is None:
        return Grade(form, strict, False, None, None, "no-answer", trailing)
    value = number(answer)
    if value is None:
        return Grade(form, strict, False, answer, None, "not-a-number" if answer else "empty", trailing)
    correct = value == Fraction(row["gold"])
    return Grade(form, strict, correct, answer, str(value), "" if correct else "wrong-value", trailing)
