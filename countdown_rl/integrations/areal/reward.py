"""Reward of AReaL's ``RLVRWorkflow(reward_fn=...)`` for the rows of train.jsonl.

Needs ``pip install countdown-rl``.
"""

from countdown_rl.rewards import compute_score


def reward_fn(
    prompt: object,
    completions: str,
    prompt_ids: object,
    completion_ids: object,
    row: str,
    **_: object,
) -> float:
    """Return 1.0 if *completions*, one text, is correct for *row*, a puzzle as JSON, else 0.0."""
    return compute_score(None, completions, row)["score"]
