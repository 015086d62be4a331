"""Advantages of completions from their rewards.

A function of advantages has the form ``f(rewards) -> advantages``, both (groups, generations) over
all processes. A reward of NaN is not applicable: it is in no mean, and its advantage is 0. A
function with some of the parameters ``completion_mask``, ``completion_ids`` and ``line_ends``, each
(groups, generations, tokens), gets the groups of its own process and may return advantages by
token, of that shape.
"""

import inspect
from collections.abc import Callable
from functools import partial, wraps

from torch import Tensor
from trl.trainer.utils import nanstd

from countdown_rl.core import user_code
from countdown_rl.core.errors import UsageError
from countdown_rl.training.options import TrainOptions

#: Rewards that differ by no more are equal, and an advantage by line of no more is zero: they are
#: sums in fp32.
ROUNDING = 1e-6
#: Added to a standard deviation that divides, as in TRL.
_EPSILON = 1e-4
#: What a function may ask for beside the rewards.
COLUMNS = ("completion_mask", "completion_ids", "line_ends")

Advantage = Callable[..., Tensor]


def equal(rewards: Tensor) -> Tensor:
    """A mask (groups, 1) of the groups in which all rewards are equal or not applicable."""
    rewards = rewards.where(rewards.isfinite(), rewards.nanmean(1, keepdim=True))
    spread = rewards.amax(1, keepdim=True) - rewards.amin(1, keepdim=True)
    return ~(spread > ROUNDING)  # True for NaN


def varies(rewards: Tensor) -> list[bool]:
    """For each group of *rewards* True if they have non-zero variance."""
    return equal(rewards).logical_not().flatten().tolist()


def group(rewards: Tensor) -> Tensor:
    """Return the rewards less the mean of their group, not scaled: GRPO, arXiv:2402.03300."""
    advantages = rewards - rewards.nanmean(1, keepdim=True)
    return advantages.masked_fill(equal(rewards) | rewards.isnan(), 0.0)


def leave_one_out(rewards: Tensor) -> Tensor:
    """Return the rewards less the mean of the others of their group: RLOO, arXiv:2402.14740."""
    # Of n rewards with the sum S, r - (S - r) / (n - 1) is n / (n - 1) times r - S / n.
    count = rewards.isfinite().sum(1, keepdim=True)
    return group(rewards) * (count / (count - 1).clamp(min=1))


def max_rl(rewards: Tensor) -> Tensor:
    """Return :func:`group` over the mean of the group if positive: MaxRL, arXiv:2602.02710."""
    mean = rewards.nanmean(1, keepdim=True)
    return group(rewards) / mean.where(mean > ROUNDING, 1.0)


def scaled(rewards: Tensor, baseline: Advantage, by_batch: bool = False) -> Tensor:
    """Return *baseline* divided by the standard deviation of the group, or of all *rewards*."""
    compared = rewards.view(1, -1) if by_batch else rewards
    deviation = nanstd(compared, dim=1)[:, None]
    return (baseline(rewards) / (deviation + _EPSILON)).nan_to_num(nan=0.0)


def discounted(
    rewards: Tensor,
    completion_mask: Tensor,
    line_ends: Tensor,
    discount: float,
    leave_one_out: bool = False,
) -> Tensor:
    """Return the discounted return of each token's line, less its mean over the group.

    The mean is over the completions, or with *leave_one_out* over the other ones, that have such a
    line, the first, the second and so on.

    Args:
        rewards: (groups, generations).
        completion_mask: (groups, generations, tokens), 1 for the tokens of completions.
        line_ends: the same shape, true where a token ends a line.
        discount: of a line by those after it.
        leave_one_out: compare with the others of the group.
    """
    group, rewards = rewards.shape[1], rewards.flatten()
    mask = completion_mask.flatten(0, 1) * rewards.isfinite()[:, None]
    ends = line_ends.flatten(0, 1) * mask
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
    # Equal completions have no gradient.
    return out.masked_fill(out.abs() <= ROUNDING, 0.0).view_as(completion_mask)


def advantage(options: TrainOptions) -> Advantage:
    """Return the function of advantages that *options* name."""
    if ":" in options.advantage:
        return own_advantage(options.advantage)
    if options.advantage == "max-rl":
        return max_rl
    leave = options.advantage == "leave-one-out"
    if options.discount < 1:
        return partial(discounted, discount=options.discount, leave_one_out=leave)
    baseline = leave_one_out if leave else group
    if options.scale_rewards == "none":
        return baseline
    return partial(scaled, baseline=baseline, by_batch=options.scale_rewards == "batch")


def columns(function: Advantage) -> list[str]:
    """Return the names of the parameters of *function* that are among :data:`COLUMNS`."""
    return [name for name in COLUMNS if name in inspect.signature(function).parameters]


def own_advantage(name: str) -> Advantage:
    """Return the function *name* of the user's: it gets copies, and what it returns is checked."""
    function = user_code.imported(name)

    @wraps(function)
    def checked(rewards: Tensor, **tokens: Tensor) -> Tensor:
        copies = {column: tensor.clone() for column, tensor in tokens.items()}
        with user_code.running(f"advantage {name}"):
            result: object = function(rewards.clone(), **copies)
        shapes = {tuple(tensor.shape) for tensor in (rewards, *tokens.values())}
        if not isinstance(result, Tensor) or tuple(result.shape) not in shapes:
            shape = " or ".join(map(str, shapes))
            raise UsageError(f"The advantage {name} should return a tensor of the shape {shape}.")
        applies = rewards.isfinite().view(*rewards.shape, *[1] * (result.ndim - 2))
        values = result.detach().to(rewards).where(applies, 0.0)
        if not values.isfinite().all():
            raise UsageError(f"The advantage {name} returned a number that is not finite.")
        return values

    return checked


def up_to_last(advantages: Tensor) -> Tensor:
    """A mask (B, T) of the tokens up to the last one with an advantage."""
    return advantages.ne(0).flip(1).cumsum(1).flip(1).gt(0)
