"""Grades in words."""

from collections.abc import Mapping
from typing import Any

from countdown_rl.puzzle import expression
from countdown_rl.tasks import countdown

#: By the ``reason`` of a grade.
REASONS = (
    expression.REASONS
    | countdown.REASONS
    | {"not-a-number": "an answer that is no number", "refused": "the server refused to answer"}
)


def verdict(sample: Mapping[str, Any]) -> str:
    """The grade of *sample* as a phrase. The answer in it is the model's own text, not made safe to print.

    *sample* is a row with its ``answer``, ``value``, ``reason`` and ``correct``, and ``truncated`` where that is known.
    """
    answer, value, reason = sample["answer"], sample["value"], sample["reason"]
    # An answer that states its value, or is a number itself, is left as it is.
    equation = answer if not value or "=" in answer or answer == value else f"{answer} = {value}"
    if sample["correct"]:
        return equation if value else "there is no way, and that is proved"
    if reason == "no-answer" and sample.get("truncated"):
        return "no answer: truncated at the token limit"
    if reason == "wrong-value":
        return f"{equation}, not {sample['gold'] if 'gold' in sample else sample['target']}"
    phrase = REASONS.get(reason, reason)
    return f"{answer}: {phrase}" if answer and reason not in ("not-impossible", "not-proved") else phrase
