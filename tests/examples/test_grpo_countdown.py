"""GRPO on one page: its gradient is the package's, and it trains."""

import csv

import pytest
import torch

from countdown_rl import generate
from examples import grpo_countdown as example
from tests.support import tiny_llama
from tests.training.grpo.test_trainer import REWARDS, gradient, loaded, made, round_of  # noqa: F401


def test_its_gradient_is_that_of_the_package(loaded, tmp_path):  # noqa: F811
    trainer = made(loaded, tmp_path, {"scale_rewards": "none"})
    batch, sampled = round_of(trainer)
    expected = gradient(trainer, trainer.micro_batches(sampled))
    ids, attention = (
        torch.cat([batch[f"prompt_{name}"], batch[f"completion_{name}"]], 1)
        for name in ("ids", "mask")
    )
    completion = torch.cat([torch.zeros_like(batch["prompt_mask"]), batch["completion_mask"]], 1)
    new = example.log_probabilities(
        trainer.model, example.Batch(ids, attention, completion, []), 1.0
    )
    advantage = example.advantages(torch.tensor(REWARDS), 4)
    trainer.model.zero_grad()
    example.compute_loss(new, new.detach(), advantage, completion[:, 1:], 0.2).backward()
    found = torch.cat(
        [value.grad.flatten() for value in trainer.model.parameters() if value.requires_grad]
    )
    assert expected.any()
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-4)


def test_ratios_beyond_the_clip_have_no_gradient_and_others_do():
    new = torch.tensor([[0.5, 0.0], [-0.5, 0.1]], requires_grad=True)
    example.compute_loss(
        new, torch.zeros(2, 2), torch.tensor([1.0, -1.0]), torch.ones(2, 2), 0.2
    ).backward()
    assert (new.grad != 0).tolist() == [[False, True], [False, True]]


def test_equal_rewards_have_no_advantage():
    found = example.advantages(torch.tensor([1.0, 1.0, 0.0, 1.0]), 2)
    assert found[:2].tolist() == [0.0, 0.0]
    assert found[2] == -found[3]


@pytest.mark.slow
def test_it_trains_and_writes_a_log(here):
    path = tiny_llama.checkpoint(here / "model", max_position_embeddings=1024)
    config = example.Config(
        model=str(path),
        steps=2,
        prompts=2,
        num_generations=2,
        max_completion_length=8,
        eval_size=3,
        num_iterations=2,
    )
    log = example.train(config)
    rows = list(csv.DictReader((here / config.log).open()))
    assert [row["step"] for row in rows] == ["1", "2"]
    assert len(log) == 2
    assert len(list(generate(config.eval_size, split="valid", seed=config.seed))) == 3
