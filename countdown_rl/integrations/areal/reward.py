"""Reward of AReaL's ``RLVRWorkflow(reward_fn=...)`` for the rows of train.jsonl. Needs ``pip install countdown-rl``."""

from typing import Any

from countdown_rl.rewards import compute_score


def reward_fn(
    prompt: Any, completions: str, prompt_ids: Any, completion_ids: Any, row: str, **_: Any
) -> float:
    """1.0 if *completions*, the text of one, is correct for *row*, the fields of the puzzle as JSON, else 0.0."""
    return compute_score(None, completions, row)["score"]
