"""Advantages of completions from their rewards: rows without a gradient, by line of a completion, and RLOO's.

The completions of a group stand side by side, and a reward of NaN is not applicable: it is in no mean.
"""

import torch
from torch import Tensor

#: Rewards that differ by no more are equal, and so are advantages by line and zero: they are sums in fp32.
ROUNDING = 1e-6


def total(rewards: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted sums (B,) of *rewards* (B, F); NaN where no reward function applies."""
    sums = (rewards * weights.to(rewards.device)).nansum(1)
    return sums.masked_fill(rewards.isnan().all(1), torch.nan)


def equal(totals: Tensor, group: int) -> Tensor:
    """Return a mask (B,) of the groups in which all rewards (B,) are equal or not applicable."""
    groups = totals.view(-1, group)
    groups = groups.where(groups.isfinite(), groups.nanmean(1, keepdim=True))
    mixed = groups.amax(1) - groups.amin(1) > ROUNDING  # False for NaN
    return ~mixed.repeat_interleave(group)


def leave_one_out(totals: Tensor, group: int) -> Tensor:
    """Return factors (B,) that turn advantages over the mean of a group into those over the mean of its other rows.

    That is RLOO (Ahmadian et al. 2024, arXiv:2402.14740): of n rewards, r - (S - r) / (n - 1) is n / (n - 1) times
    r - S / n.
    """
    count = totals.view(-1, group).isfinite().sum(1)
    return (count / (count - 1).clamp(min=1)).repeat_interleave(group)


def discounted(
    rewards: Tensor, mask: Tensor, ends: Tensor, discount: float, *, group: int, leave_one_out: bool = False
) -> Tensor:
    """Return advantages (B, T): the discounted return of each token's line, less its mean over the group.

    The mean is over the completions that have such a line, the first, the second and so on.

    Args:
        rewards: (B,).
        mask: (B, T), 1 where a completion has a token.
        ends: (B, T), true where a token ends a line.
        leave_one_out: the mean is over the other completions; where there is none, the advantage is 0.
    """
    mask = mask * rewards.isfinite()[:, None]
    ends = ends * mask
    left = ends.flip(1).cumsum(1).flip(1)  # ends of lines from this token on
    line = ends.cumsum(1) - ends
    returns = rewards.nan_to_num()[:, None] * discount**left * mask  # equal within a line
    lines = returns.new_zeros(len(mask), int(line.max()) + 1)
    tokens = lines.scatter_add(1, line, mask.to(lines.dtype)).view(-1, group, lines.size(1))
    by_line = lines.scatter_add(1, line, returns).view_as(tokens) / tokens.clamp(min=1)
    count = tokens.gt(0).sum(1, keepdim=True)  # (groups, 1, lines)
    baseline = by_line.sum(1, keepdim=True) / count.clamp(min=1)
    out = (returns - baseline.expand_as(tokens).reshape_as(lines).gather(1, line)) * mask
    if leave_one_out:
        factors = count / (count - 1).clamp(min=1)
        out = out * factors.expand_as(tokens).reshape_as(lines).gather(1, line)
    return out.masked_fill(out.abs() <= ROUNDING, 0.0)  # equal completions have no gradient


def up_to_last(advantages: Tensor) -> Tensor:
    """Return a mask (B, T) of the tokens up to the last one with an advantage."""
    return advantages.ne(0).flip(1).cumsum(1).flip(1).gt(0)
