"""Advantages as pure functions of rewards, masks and ends of lines."""

import math

import pytest
import torch
from trl.trainer.utils import nanstd

from countdown_rl.core.errors import UsageError, user_frames
from countdown_rl.core.user_code import name_of
from countdown_rl.training.grpo import advantages
from countdown_rl.training.grpo.round import Graded, Round
from countdown_rl.training.options import TrainOptions

NONE = math.nan  # as TRL writes None


def test_rewards_are_summed_by_weight_where_one_applies():
    rewards = [{"a": 1.0, "b": None}, {"a": 0.0, "b": 2.0}, {"a": None, "b": None}]
    sampled = Round([Graded(None, None, each) for each in rewards], 0.0, 0.0, [])
    totals = sampled.totals({"a": 1.0, "b": 0.5})
    assert totals[:2].tolist() == [1.0, 1.0]
    assert totals[2].isnan()


def test_a_group_is_equal_whatever_rounding_leaves_and_where_no_reward_applies():
    groups = [[0.6] * 3 + [0.6 + 1e-7], [0.6, 0.6, NONE, NONE], [NONE] * 4, [0.6, 0.6, 0.6, 0.5]]
    assert advantages.equal(torch.tensor(groups)).flatten().tolist() == [True] * 3 + [False]


MIXED = torch.tensor(
    [[1.0, 0.0, 0.0, 1.0], [0.5, 0.5, 0.5, 0.5], [0.0, 0.0, 0.0, 0.0], [1.0, 0.0, NONE, 0.0]]
)


@pytest.mark.parametrize(
    ("function", "by_half", "by_third"),
    [
        (advantages.group, 1.0, 1.0),
        (advantages.max_rl, 2.0, 3.0),
        (advantages.leave_one_out, 4 / 3, 3 / 2),
    ],
)
def test_the_advantages_of_a_group_are_those_of_the_formulas(function, by_half, by_third):
    expected = (MIXED - MIXED.nanmean(1, keepdim=True)).T
    expected = expected * torch.tensor([by_half, 0, 0, by_third])
    torch.testing.assert_close(function(MIXED), expected.T.nan_to_num())
    assert not function(torch.tensor([[1.0, NONE]]))[0, 0]  # none to compare with


def test_max_rl_does_not_turn_negative_rewards_around():
    assert advantages.max_rl(torch.tensor([[-1.0, 0.0]])).tolist() == [[-0.5, 0.5]]


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_group_advantages_have_the_bits_of_trl(scale):
    rewards = torch.rand(16, 8, generator=torch.Generator().manual_seed(0))
    rewards[3, 2] = NONE
    deviation = nanstd(rewards.flatten()) if scale == "batch" else nanstd(rewards, dim=1)[:, None]
    expected = rewards - rewards.nanmean(1)[:, None]
    if scale != "none":
        expected = expected / (deviation + 1e-4)
    found = advantages.advantage(TrainOptions(scale_rewards=scale))(rewards)
    assert torch.equal(found.nan_to_num(), expected.nan_to_num())


def halved(rewards, completion_mask):
    return torch.ones(completion_mask.shape) / 2


def broken(rewards, line_ends):
    raise KeyError("mine")


def spoils(rewards, completion_mask, completion_ids, line_ends):
    for tensor in (rewards, completion_mask, completion_ids, line_ends):
        tensor.zero_()
    return rewards


def computed(function):
    """The advantages of a group by *function* of the user's, which gets the tokens it asks for."""
    own = advantages.own_advantage(name_of(function))
    tokens = dict.fromkeys(advantages.columns(own), torch.ones(1, 4, 3, dtype=torch.bool))
    return own(torch.tensor([[1.0, 0.0, NONE, 0.0]]), **tokens)


def test_a_function_of_the_user_is_accepted_and_gets_copies():
    rewards, tokens = torch.ones(1, 4), torch.ones(1, 4, 3, dtype=torch.int)
    own = advantages.advantage(TrainOptions(advantage=f"{__name__}:spoils"))
    own(rewards, **dict.fromkeys(advantages.COLUMNS, tokens))
    assert rewards.all()
    assert tokens.all()
    assert computed(halved).tolist() == [[[0.5] * 3, [0.5] * 3, [0.0] * 3, [0.5] * 3]]
    assert computed(lambda rewards: rewards.argsort(1).argsort(1))[0, 2] == 0  # no reward applies


@pytest.mark.parametrize(
    "function",
    [
        lambda rewards: rewards[:, :1],
        lambda rewards: 1 / rewards,
        lambda rewards: rewards.tolist(),
        broken,
    ],
)
def test_a_wrong_function_is_refused(function):
    with pytest.raises(UsageError, match="advantage tests") as caught:
        computed(function)
    assert ('raise KeyError("mine")' in user_frames(caught.value)) == (function is broken)


@pytest.mark.parametrize("leave_one_out", [False, True])
def test_equal_completions_have_no_gradient_whatever_rounding_leaves(leave_one_out):
    mask = torch.ones(1, 8, 44, dtype=torch.long)
    ends = mask.cumsum(2).remainder(11).eq(0)
    rewards = torch.ones(1, 8)
    assert not advantages.discounted(rewards, mask, ends, 0.9, leave_one_out=leave_one_out).any()


@pytest.mark.parametrize(("leave_one_out", "scale"), [(False, 1.0), (True, 1.5)])
def test_a_completion_without_any_reward_counts_for_nothing_line_by_line(leave_one_out, scale):
    rewards = torch.tensor([[1.0, 0.0, NONE, 0.5]])  # three of four count
    mask, ends = torch.ones(1, 4, 1, dtype=torch.long), torch.zeros(1, 4, 1, dtype=torch.bool)
    found = advantages.discounted(rewards, mask, ends, 0.5, leave_one_out=leave_one_out)
    torch.testing.assert_close(found.flatten(), scale * torch.tensor([0.5, -0.5, 0.0, 0.0]))
