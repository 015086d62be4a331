"""Grades in words."""

from collections.abc import Mapping
from typing import Any

from countdown_rl.tasks.registry import parse_row, task_of


def verdict(sample: Mapping[str, Any]) -> str:
    """The grade of *sample* as a phrase. The answer in it is the model's own text, not made safe to print.

    *sample* is a row with its ``answer``, ``value``, ``reason`` and ``correct``, and ``truncated`` where that is known.
    """
    answer, value, reason = sample["answer"], sample["value"], sample["reason"]
    # An answer that states its value, or is a number itself, is left as it is.
    equation = answer if not value or "=" in answer or answer == value else f"{answer} = {value}"
    if sample["correct"]:
        return str(equation)
    if reason == "no-answer" and sample.get("truncated"):
        return "no answer: truncated at the token limit"
    if reason == "wrong-value":
        return f"{equation}, not {parse_row(sample).reference}"
    phrase = task_of(sample).reason(reason)
    return f"{answer}: {phrase}" if answer else phrase
