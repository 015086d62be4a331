"""Grades in words, and what to do where next to none is good."""

from countdown_rl.tasks.registry import task
from countdown_rl.tasks.task import Row

#: Shares below this are near 0.
NEAR_0 = 0.02


def no_format(form: float, correct: float, truncated: float, limit: str) -> str:
    """The likely cause of a share *form* of completions in the format near 0, and what to do; "" where it is higher.

    Where some are *correct*, the format does no harm. *limit* is the option that bounds their tokens.
    """
    if max(form, correct) >= NEAR_0:
        return ""
    text = f"{form:.0%} of the completions keep the format"
    if truncated > 0.5:
        return f"{text}, as {truncated:.0%} are truncated; raise {limit}, or begin with `countdown-rl sft`."
    return f"{text}; begin with `countdown-rl sft`, or try another style (`countdown-rl gen-data --style model_opens`)."


def verdict(row: Row, answer: str | None, value: str | None, reason: str, truncated: bool | None = False) -> str:
    """A grade of a completion of *row* as a phrase; the *answer* in it is the model's text, not made safe to print."""
    # An answer that states its value, or is a number itself, is left as it is.
    equation = answer if not (answer and value) or "=" in answer or answer == value else f"{answer} = {value}"
    if not reason:
        return str(equation)
    if reason == "no-answer" and truncated:
        return "no answer: truncated at the token limit"
    if reason == "wrong-value":
        return f"{equation}, not {row.reference}"
    phrase = task(row.task).reason(reason)
    return f"{answer}: {phrase}" if answer else phrase
