"""Grades in words, and advice if next to no completion keeps the format."""

from countdown_rl.tasks.registry import task
from countdown_rl.tasks.task import Row

#: Shares below this count as near 0.
NEAR_0 = 0.02


def no_format(form: float, correct: float, truncated: float, limit: str) -> str:
    """The likely cause and a remedy if the share *form* of completions in the format is near 0; else "".

    If some are *correct*, the format does no harm. *limit* is the option that bounds their tokens.
    """
    if max(form, correct) >= NEAR_0:
        return ""
    text = f"{form:.0%} of the completions keep the format"
    if truncated > 0.5:
        return f"{text}, as {truncated:.0%} are truncated; raise {limit}, or begin with `countdown-rl sft`."
    return f"{text}; begin with `countdown-rl sft`, or try another style (`countdown-rl gen-data --style model_opens`)."


def verdict(row: Row, answer: str | None, value: str | None, reason: str, truncated: bool | None = False) -> str:
    """A grade of a completion of *row* as a phrase with the model's *answer*, which is not escaped for printing."""
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
