"""Countdown as a task: its prompt, and how a completion is read and graded, side by side."""

from collections.abc import Mapping
from typing import Any

SYSTEM = (
    "You are a careful solver of number puzzles. First reason inside <think> and </think>, "
    "then give the final answer inside <answer> and </answer>."
)
#: The assistant turn that the prompt has already begun; the model continues inside ``<think>``.
BEGUN = "Let me work through this step by step.\n<think>"


def messages(row: Mapping[str, Any]) -> list[dict[str, str]]:
    """The conversation that puts *row* to a model, ending in a begun assistant turn."""
    numbers = " ".join(str(number) for number in row["nums"])
    user = (
        f"Numbers: {numbers}\nTarget: {row['target']}\n"
        "Reach the target with + - * / and parentheses, using each number exactly once. "
        "If there is no way, answer impossible."
    )
    return [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": user},
        {"role": "assistant", "content": BEGUN},
    ]
