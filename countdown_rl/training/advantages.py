"""Advantages other than those of GRPO: by line of a completion, and divided by the mean reward of a group."""

from torch import Tensor

#: Rewards that differ by no more are equal, and a mean that is no larger is 0: they are sums in fp32.
ROUNDING = 1e-6


def discounted(rewards: Tensor, mask: Tensor, ends: Tensor, discount: float, *, group: int) -> Tensor:
    """Return advantages (B, T): the discounted return of each token's line, less its mean over the group.

    The mean is over the completions that have such a line, the first, the second and so on.

    Args:
        rewards: (B,); each *group* of rows in turn belongs to one prompt. NaN is not applicable: such a row has no
            advantages and is in no mean.
        mask: (B, T), 1 where a completion has a token.
        ends: (B, T), true where a token ends a line.
    """
    mask = mask * rewards.isfinite()[:, None]
    ends = ends * mask
    left = ends.flip(1).cumsum(1).flip(1)  # ends of lines from this token on
    line = ends.cumsum(1) - ends
    returns = rewards.nan_to_num()[:, None] * discount**left * mask  # equal within a line
    lines = returns.new_zeros(len(mask), int(line.max()) + 1)
    tokens = lines.scatter_add(1, line, mask.to(lines.dtype)).view(-1, group, lines.size(1))
    by_line = lines.scatter_add(1, line, returns).view_as(tokens) / tokens.clamp(min=1)
    baseline = by_line.sum(1, keepdim=True) / tokens.gt(0).sum(1, keepdim=True).clamp(min=1)  # (groups, 1, lines)
    return (returns - baseline.expand_as(tokens).reshape_as(lines).gather(1, line)) * mask


def divided_by_mean(advantages: Tensor, means: Tensor) -> Tensor:
    """Return *advantages*, (B,) or (B, T), divided by the *means* (B,) of the rewards of each row's group.

    This is MaxRL (arXiv:2602.02710) for rewards of 0 and 1 that are not divided by their standard deviation: rare
    successes weigh more. Rows of a group whose mean is 0, or NaN, stay as they are.
    """
    divisors = means.where(means > ROUNDING, 1.0).view(-1, *[1] * (advantages.ndim - 1))
    return advantages / divisors
