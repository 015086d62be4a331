"""Grades in words, for people."""

from collections.abc import Mapping
from typing import Any

from countdown_rl.puzzle import expression
from countdown_rl.tasks import countdown

#: What each reason means.
REASONS = {
    **expression.REASONS,
    **countdown.REASONS,
    "not-a-number": "an answer that is no number",
}


def verdict(sample: Mapping[str, Any]) -> str:
    """What the grade of *sample* comes to, as a phrase; the answer in it is the model's own text, as it came.

    *sample* is a row with its ``answer``, ``value``, ``reason``, ``correct`` and ``truncated``.
    """
    answer, value, reason = sample["answer"], sample["value"], sample["reason"]
    goal = sample["gold"] if "gold" in sample else sample["target"]
    if sample["correct"]:
        return "there is no way, and that is proved" if value is None else _equation(answer, value)
    if reason == "no-answer" and sample["truncated"]:
        return "no answer: it ran out of tokens"
    if reason in ("no-answer", "not-impossible", "not-proved"):
        return REASONS[reason]
    if reason == "wrong-value":
        return f"{_equation(answer, value)}, not {goal}"
    return f"{answer}: {REASONS.get(reason, reason)}" if answer else REASONS.get(reason, reason)


def _equation(answer: str, value: str) -> str:
    """``3 + 4 = 7``; an answer that says what it comes to, or that is a number itself, is left as it is."""
    return answer if "=" in answer or answer == value else f"{answer} = {value}"
