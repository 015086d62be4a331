"""Advantages as pure functions of rewards, masks and ends of lines."""

import math

import pytest
import torch

from countdown_rl.training import advantages

NONE = math.nan  # as TRL writes None


def test_rewards_are_summed_by_weight_where_one_applies():
    rewards = torch.tensor([[1.0, NONE], [0.0, 2.0], [NONE, NONE]])
    totals = advantages.total(rewards, torch.tensor([1.0, 0.5]))
    assert totals[:2].tolist() == [1.0, 1.0]
    assert totals[2].isnan()


def test_a_group_is_equal_whatever_rounding_leaves_and_where_no_reward_applies():
    groups = [[0.6] * 3 + [0.6 + 1e-7], [0.6, 0.6, NONE, NONE], [NONE] * 4, [0.6, 0.6, 0.6, 0.5]]
    equal = advantages.equal(torch.tensor(groups).flatten(), 4)
    assert equal.tolist() == [True] * 12 + [False] * 4


def test_leave_one_out_is_the_difference_from_the_mean_of_the_others():
    rewards = torch.tensor([1.0, 0.0, 0.5, 2.0, 1.0, NONE, 0.0, NONE])
    groups = rewards.view(2, 4)
    over_the_mean = (groups - groups.nanmean(1, keepdim=True)).flatten()
    found = over_the_mean * advantages.leave_one_out(rewards, 4)
    others = [[rewards[j] for j in range(i // 4 * 4, i // 4 * 4 + 4) if j != i] for i in range(8)]
    expected = torch.stack([reward - torch.stack(rest).nanmean() for reward, rest in zip(rewards, others, strict=True)])
    torch.testing.assert_close(found, expected, equal_nan=True)
    assert advantages.leave_one_out(torch.tensor([1.0, NONE]), 2).tolist() == [1.0, 1.0]  # none to compare with


def test_discounted_returns_are_compared_within_a_group_line_by_line():
    rewards = torch.tensor([1.0, 0.0, 0.0, 0.0])
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 1, 1]])
    ends = torch.tensor([[0, 0, 1, 1, 0], [1, 0, 1, 0, 0], [0, 1, 0, 0, 0], [0, 0, 0, 0, 1]]).bool()
    found = advantages.discounted(rewards, mask, ends, 0.5, group=2)
    # Three lines: of three tokens, of one, and the last; the other completion has the first two.
    expected = torch.tensor([[0.25 - 0.125] * 3 + [0.5 - 0.25, 0], [-0.125, -0.25, 0, 0, 0]])
    torch.testing.assert_close(found[:2], expected)
    assert not found[2:].any()  # groups without a success have no gradient
    alone = advantages.discounted(rewards, mask, ends, 0.5, group=2, leave_one_out=True)
    torch.testing.assert_close(alone[:2], torch.tensor([[0.25] * 3 + [0.5, 0], [-0.25, -0.5, 0, 0, 0]]))


@pytest.mark.parametrize("leave_one_out", [False, True])
def test_equal_completions_have_no_gradient_whatever_rounding_leaves(leave_one_out):
    mask = torch.ones(8, 44, dtype=torch.long)
    ends = torch.arange(1, 45).remainder(11).eq(0).expand(8, -1)
    found = advantages.discounted(torch.ones(8), mask, ends, 0.9, group=8, leave_one_out=leave_one_out)
    assert not found.any()


@pytest.mark.parametrize("leave_one_out", [False, True])
def test_a_completion_without_any_reward_counts_for_nothing_line_by_line(leave_one_out):
    rewards = torch.tensor([1.0, 0.0, NONE, 0.5, 0.6, 0.6, 0.6, NONE])
    mask, ends = torch.ones(8, 1, dtype=torch.long), torch.zeros(8, 1, dtype=torch.bool)
    found = advantages.discounted(rewards, mask, ends, 0.5, group=4, leave_one_out=leave_one_out)[:, 0]
    scale = 1.5 if leave_one_out else 1.0  # three of four count
    torch.testing.assert_close(found, scale * torch.tensor([0.5, -0.5, *[0.0] * 6]))


def test_tokens_after_the_last_advantage():
    found = advantages.up_to_last(torch.tensor([[0.0, 1.0, 0.0, -1.0, 0.0], [0.0] * 5]))
    assert found.tolist() == [[True] * 4 + [False], [False] * 5]
