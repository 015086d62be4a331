import math
from types import SimpleNamespace

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM
from trl.kernels import ChunkedLogProbFunction

from countdown_rl.errors import UsageError
from countdown_rl.inference.stop import Stop
from countdown_rl.training import logprobs
from countdown_rl.training.advantages import discounted, divided_by_mean
from countdown_rl.training.trainer import GRPOTrainer, Trainer
from tests.support import tiny_llama


def test_discounted_returns_are_compared_within_a_group_line_by_line():
    rewards = torch.tensor([1.0, 0.0, 0.0, 0.0])
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 1, 1]])
    ends = torch.tensor([[0, 0, 1, 1, 0], [1, 0, 1, 0, 0], [0, 1, 0, 0, 0], [0, 0, 0, 0, 1]]).bool()
    advantages = discounted(rewards, mask, ends, 0.5, group=2)
    # Three lines: of three tokens, of one, and the last; the other completion has the first two.
    expected = torch.tensor([[0.25 - 0.125] * 3 + [0.5 - 0.25, 0], [-0.125, -0.25, 0, 0, 0]])
    torch.testing.assert_close(advantages[:2], expected)
    assert not advantages[2:].any()  # groups without a success have no gradient


def bare_trainer(**changes):
    """A trainer without a model, of two groups of four with one and three successes."""
    trainer = Trainer.__new__(Trainer)
    trainer._discount, trainer._divide_by_mean, trainer._mask_truncated = 1.0, False, False
    trainer._rewards = torch.tensor([1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0])
    trainer._means = torch.tensor([0.25] * 4 + [0.75] * 4)
    trainer._ends_line = torch.tensor([False, True])
    trainer.num_generations, trainer.loss_type, trainer.beta, trainer.aux_loss_enabled = 4, "dapo", 0.0, False
    trainer.importance_sampling_level, trainer.off_policy_mask_threshold = "token", None
    trainer.accelerator = SimpleNamespace(num_processes=1, process_index=0)
    sizes = {"steps_per_generation": 1, "gradient_accumulation_steps": 1, "per_device_train_batch_size": 8}
    others = dict.fromkeys(("entropy_coef", "use_adaptive_entropy", "use_liger_kernel"), 0)
    trainer.args = SimpleNamespace(**sizes, **others)
    trainer.reward_weights, trainer.multi_objective_aggregation = torch.ones(2), "sum_then_normalize"
    trainer._seconds = {"reward": 0.0}
    vars(trainer).update(changes)
    return trainer


def micro_batch(trainer, completion_ids=((0, 1),) * 8):
    """The micro-batch of *trainer* for completions whose token 1 ends a line."""
    ids = torch.as_tensor(completion_ids)
    masks = dict.fromkeys(("prompt_ids", "prompt_mask", "completion_mask"), torch.ones_like(ids))
    batch = {**masks, "completion_ids": ids, "advantages": trainer._rewards - trainer._means}
    return trainer._micro_batches(batch)[0]


@pytest.mark.parametrize("discount", [1.0, 0.5])
def test_advantages_divided_by_the_mean_reward_of_their_group(discount):
    plain, divided = (
        micro_batch(bare_trainer(_discount=discount, _divide_by_mean=by_mean))["advantages"]
        for by_mean in (False, True)
    )
    assert plain.any()
    torch.testing.assert_close(divided, torch.cat([plain[:4] * 4, plain[4:] / 0.75]))


@pytest.fixture
def given(monkeypatch):
    """Lets the reward functions of a trainer return the given numbers."""

    def by_function(trainer, rewards):
        monkeypatch.setattr(GRPOTrainer, "_calculate_rewards", lambda self: torch.tensor(rewards))
        return trainer._calculate_rewards()

    return by_function


NONE = math.nan  # as TRL writes None


def test_a_completion_without_any_reward_counts_for_nothing(given):
    trainer = bare_trainer(_divide_by_mean=True)
    given(trainer, [[1.0, NONE], [0.0, 0.0], [NONE, NONE], [0.5, 0.0], *[[0.6, 0.0]] * 3, [NONE, NONE]])
    assert trainer._means.tolist() == pytest.approx([0.5] * 4 + [0.6] * 4)
    assert trainer._equal.tolist() == [False] * 4 + [True] * 4
    advantages = discounted(trainer._rewards, *torch.tensor([[[1]] * 8, [[0]] * 8]), 0.5, group=4)[:, 0]
    torch.testing.assert_close(advantages, torch.tensor([0.5, -0.5, *[0.0] * 6]))


def test_a_step_without_any_reward_is_an_error(given):
    with pytest.raises(UsageError, match="No reward function returned a number"):
        given(bare_trainer(), [[NONE, NONE]] * 8)


def test_division_by_the_mean_refuses_rewards_below_0(given):
    rewards = [[1.0, -0.5], [0.0, -0.5], *[[0.0, 0.0]] * 6]
    given(bare_trainer(), rewards)
    with pytest.raises(UsageError, match=r"--scale-rewards mean .* at least 0.* -0.5"):
        given(bare_trainer(_divide_by_mean=True), rewards)


def test_advantages_are_not_divided_by_the_rounding_of_a_mean():
    advantages = torch.tensor([1e-7, -1e-7, 0.5])
    torch.testing.assert_close(
        divided_by_mean(advantages, torch.tensor([1e-9, 1e-9, 0.5])), advantages * torch.tensor([1, 1, 2])
    )


@pytest.mark.parametrize(
    ("changes", "tokens"),
    [({}, 23), ({"importance_sampling_level": "sequence"}, 24), ({"off_policy_mask_threshold": 0.1}, 24)],
)
def test_tokens_after_the_last_advantage_count_in_means_over_a_completion(changes, tokens):
    ids = [[0, 1, 0]] + [[0, 0, 0]] * 7  # nothing to compare the second line with
    assert micro_batch(bare_trainer(_discount=0.5, **changes), ids)["completion_mask"].sum() == tokens


@pytest.mark.parametrize("entropy", [False, True])
def test_tokens_without_a_gradient_are_left_out_of_the_backward_pass_and_change_nothing(entropy):
    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(size, 8, generator=generator, requires_grad=True) for size in (30, 50))
    targets = torch.randint(50, (30,), generator=generator)
    scale = torch.randn(30, generator=generator) * (torch.arange(30) % 5 == 0)
    found = []
    for function in (ChunkedLogProbFunction, logprobs.LogProbFunction):
        outputs = function.apply(hidden, weight, None, targets, 0.7, 16)
        loss = (outputs[0] * scale).sum() + (outputs[1].sum() if entropy else 0)
        found.append(torch.autograd.grad(loss, (hidden, weight)))
    for expected, value in zip(*found, strict=True):
        torch.testing.assert_close(value, expected)
        assert value.any()


def test_rollouts_of_generate_end_at_the_answer(monkeypatch):
    class Third(Stop):
        def __call__(self, ids):
            return len(ids) == 3

    config = {"vocab_size": 320, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "eos_token_id": 1, "pad_token_id": 0}
    model = Qwen2ForCausalLM(Qwen2Config(**config, **heads))
    trainer = Trainer.__new__(Trainer)
    trainer.model, trainer._plain_sampling, trainer._seconds = model, True, {"generation": 0.0}
    trainer.use_vllm, trainer._metrics = False, {"train": {"truncated": []}}
    trainer.accelerator = SimpleNamespace(unwrap_model=lambda model: model, gather=lambda value: value, device="cpu")
    trainer.stop = Third(tiny_llama.tokenizer(), model, "</answer>")
    trainer.stop.may_end[:] = True
    widths = []

    def plain(self, prompt_ids):
        ids = torch.tensor(prompt_ids)
        sequences = self.model.generate(input_ids=ids, max_new_tokens=40, do_sample=True, eos_token_id=319)
        widths.append(sequences.shape[1] - ids.shape[1])
        return sequences[:, ids.shape[1] :].tolist(), None

    monkeypatch.setattr(GRPOTrainer, "_generate_single_turn", plain)
    completions, _ = trainer._generate_single_turn([[5, 6, 7], [8, 9, 10]])
    assert widths == [3]
    assert [len(ids) for ids in completions] == [3, 3]
    assert trainer._metrics["train"]["truncated"] == [0.0]
    assert "generate" not in vars(model)


def test_a_micro_batch_without_rows_gives_every_trained_parameter_a_gradient_of_zero():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    model[0].bias.requires_grad = False
    bare_trainer()._compute_loss(model, {"advantages": torch.empty(0)}).backward()
    assert model[0].bias.grad is None
    assert [parameter.grad.any().item() for parameter in model.parameters() if parameter.requires_grad] == [False] * 3
