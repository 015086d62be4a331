"""GSM8K (Cobbe et al. 2021, "Training Verifiers to Solve Math Word Problems"): prompt, gold answers
and grading.
"""

import random
import re
from fractions import Fraction

from countdown_rl.core.errors import InputError
from countdown_rl.core.types import JsonObject, Record
from countdown_rl.tasks.prompt import Prompt
from countdown_rl.tasks.task import Row, Task, check_text

_SYSTEM = (
    "You solve word problems in arithmetic. First reason inside <{tag}> and </{tag}>, then give the final "
    "number alone inside <answer> and </answer>."
)
_LINES = " Put each tag on a line of its own."
_PREFILL = "Let me work through this step by step.\n<{tag}>"

_MAX_LENGTH = 64
_GOLD = re.compile(r"[-0-9./]{1,64}").fullmatch  # without an exponent, whose digits have no limit
_NUMBER = re.compile(r"([-+−]?)\s*\$?\s*([0-9][0-9,]*(?:\.[0-9]+)?|\.[0-9]+)\s*%?\.?").fullmatch
_THOUSANDS = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?").fullmatch
_OPERATORS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-"})
#: Words and operators: a minus (no hyphen), a bracket or a sign of order before a number, ``!`` and
#: ``)`` after one.
_TOKENS = re.compile(
    r"\w+|[+*/^=%√]|(?<![^\W\d])-(?=\s*[\d($])|\((?=\s*[-\d(])|[<>](?=[=\s]*[-\d(])|(?<=[\d)])[!)]"
).findall


class Gsm8kRow(Row):
    """A word problem: ``question``, and ``gold``, the right number as exact text."""

    task = "gsm8k"
    styles = ("lines", "prefilled", "model_opens")
    kept_fields = ("question", "gold")
    prompt_fields = ("question",)

    def __init__(self, fields: Record) -> None:
        super().__init__(fields)
        question, gold = fields.get("question"), fields.get("gold")
        if not isinstance(question, str) or not isinstance(gold, str):
            raise InputError("a gsm8k row needs `question` and `gold`, both text")
        check_text(question, "`question`")
        try:
            self.gold = Fraction(gold if _GOLD(gold) else "")
        except (ValueError, ZeroDivisionError):
            raise InputError("`gold` should be an exact number such as -7 or 5/2") from None

    @property
    def reference(self) -> str:
        return self["gold"]

    @property
    def headline(self) -> str:
        return " ".join(self["question"].split())

    @property
    def identity(self) -> str:
        """The words, numbers and operators of the question, without white space, case and
        punctuation.
        """
        return " ".join(_TOKENS(self["question"].casefold().translate(_OPERATORS)))

    @property
    def asked(self) -> list[str]:
        return [self["question"].strip()]

    def default_prompt(self) -> Prompt:
        tag = self.style.tag
        system = _SYSTEM.format(tag=tag) + (_LINES if self.style.lines else "")
        return Prompt(self["question"], system, _PREFILL.format(tag=tag))

    def judge(self, answer: str) -> tuple[str | None, str]:
        value = _number(answer)
        if value is None:
            return None, "not-a-number" if answer else "empty"
        return str(value), "" if value == self.gold else "wrong-value"


def import_row(fields: Record) -> JsonObject:
    """The row of a published problem, whose ``answer`` ends with ``####`` and the correct number."""
    question, answer = fields.get("question"), fields.get("answer")
    if not isinstance(question, str) or not isinstance(answer, str):
        raise InputError("there is no text in `question` or none in `answer`")
    _, mark, text = answer.rpartition("####")
    value = _number(text) if mark else None
    if value is None:
        raise InputError("`answer` should end with `####` and a number")
    return {
        "task": "gsm8k",
        "question": question.strip(),
        "gold": str(value),
        "solution": answer.strip(),
    }


def _number(text: str) -> Fraction | None:
    """The number *text*, which may have a sign, ``$``, ``%``, thousands in commas and decimals;
    else None.
    """
    match = _NUMBER(text.strip()) if len(text) <= _MAX_LENGTH else None
    if not match or ("," in match[2] and not _THOUSANDS(match[2])):
        return None
    value = Fraction(match[2].replace(",", ""))
    return -value if match[1] in ("-", "−") else value


def _probe(rng: random.Random) -> dict[str, str]:
    rows, books, lent = (rng.randint(2, 12) for _ in range(3))
    question = (
        f"A shelf holds {rows} rows of {books} books. {lent} are lent out. How many are left?"
    )
    return {"question": question, "gold": str(rows * books - lent)}


TASK = Task(
    name="gsm8k",
    title="GSM8K word problems",
    purpose="Solve a word problem in arithmetic and give the final number.",
    row=Gsm8kRow,
    fields={
        "id": "identifier: a digest of the question",
        "task": "`gsm8k`",
        "question": "the word problem",
        "gold": "the correct number, exact",
        "solution": "the published solution",
        "style": "the response format, if it is not the default",
        "template": "the prompt, a Jinja template, if it is not the default",
    },
    example={
        "question": "A shelf holds 3 rows of 12 books. 5 are lent out. How many are left?",
        "gold": "31",
    },
    aliases=frozenset({"answer"}),
    import_row=import_row,
    probe=_probe,
)
