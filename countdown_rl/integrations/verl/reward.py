"""Reward of a row for verl: ``reward.custom_reward_function.path=reward.py``.

Needs ``pip install countdown-rl``.
"""

from countdown_rl.rewards import compute_score

__all__ = ["compute_score"]
