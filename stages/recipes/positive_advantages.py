"""Advantages without a baseline, for ``train --advantage positive_advantages:by_line``.

Only correct completions are reinforced, as in on-policy rejection sampling.
"""

from torch import Tensor

DISCOUNT = 0.9


def by_completion(rewards: Tensor) -> Tensor:
    """Return the rewards (groups, generations): every token of a completion has its reward."""
    return rewards


def by_line(rewards: Tensor, completion_mask: Tensor, line_ends: Tensor) -> Tensor:
    """Return the rewards by token, discounted once for each line that follows, as
    ``--discount 0.9`` does.

    Args:
        rewards: (groups, generations).
        completion_mask: 1 for the tokens of a completion, (groups, generations, tokens).
        line_ends: true where a token ends a line, of the same shape.
    """
    ends = line_ends * completion_mask
    lines_left = ends.flip(-1).cumsum(-1).flip(-1)
    return rewards[..., None] * DISCOUNT**lines_left * completion_mask
