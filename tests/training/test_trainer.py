import torch

from countdown_rl.training.trainer import discounted


def test_discounted_returns_are_compared_within_a_group():
    rewards = torch.tensor([1.0, 0.0, 0.0, 0.0])
    mask = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1]])
    advantages = discounted(rewards, mask, 0.5, group=2)
    mean = (0.25 + 0.5 + 1) / 4
    torch.testing.assert_close(advantages[0], torch.tensor([0.25 - mean, 0.5 - mean, 1 - mean, 0]))
    torch.testing.assert_close(advantages[1], torch.tensor([-mean, 0, 0, 0]))
    assert not advantages[2:].any()  # groups without a success have no gradient
