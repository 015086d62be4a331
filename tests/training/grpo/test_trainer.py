"""The gradient of a round against an unchanged ``GRPOTrainer``, for each loss and the options of the recipes."""

import copy
from dataclasses import replace

import datasets
import peft
import pytest
import torch
from trl import GRPOTrainer

from countdown_rl.core.errors import UsageError
from countdown_rl.evaluation.sample import Sample
from countdown_rl.inference.engine import Completion
from countdown_rl.inference.sampling import Stop
from countdown_rl.models import load, reference
from countdown_rl.tasks.registry import parse_row
from countdown_rl.training.grpo import advantages
from countdown_rl.training.grpo.engines import PolicyEngine
from countdown_rl.training.grpo.round import Graded, Round, Sampled
from countdown_rl.training.grpo.run import grpo_config
from countdown_rl.training.grpo.trainer import Trainer
from countdown_rl.training.options import TrainOptions
from tests.support import tiny_llama

SMALL = TrainOptions(
    prompts=2,
    num_generations=4,
    micro_batch=4,
    max_completion_length=9,
    lora_r=4,
    learning_rate=1e-4,
)
LENGTHS = torch.tensor([3, 9, 5, 7, 2, 9, 4, 6])
ENDED = torch.tensor([True, False, True, True, True, False, True, True])
REWARDS = [0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
ROW = parse_row({"nums": [3, 7, 50], "target": 46})
ENTROPY = ("top_entropy_quantile=0.2",)


def clipped(logps, old_logps, advantages, mask):
    """The loss of TRL's ``dapo``."""
    ratio = (logps - old_logps).exp()
    return -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.28) * advantages) * mask


DISCOUNTED = {"discount": 0.9}
LOSSES = ("dapo", "grpo", "dr_grpo", "bnpo", "sapo", "vespo", "cispo")
OWN = {"loss_type": f"{__name__}:clipped"}
SEQUENCE = ("importance_sampling_level=sequence",)
CHECKPOINTED = ("gradient_checkpointing=true", "epsilon_high=0.2", "top_p=0.9")
COMBINATIONS = {
    "pipeline": DISCOUNTED | {"trl": ENTROPY},
    "smollm2": DISCOUNTED | {"trl": ENTROPY, "temperature": 0.6},
    "controls": {"trl": ENTROPY},
    "hacking": {"loss_type": "grpo", "scale_rewards": "group"},
    "gsm8k": {"beta": 0.02, "temperature": 0.7, "scale_rewards": "group", "trl": CHECKPOINTED},
    "iterations": {"beta": 0.02, "trl": ("num_iterations=4", "epsilon_high=0.2")},
    **{loss: {"loss_type": loss} for loss in LOSSES},
    **{f"{loss}, KL": {"loss_type": loss, "beta": 0.1} for loss in LOSSES[:4]},
    **{f"{loss}, discount": {"loss_type": loss} | DISCOUNTED for loss in (*LOSSES, "luspo")},
    "luspo": {"loss_type": "luspo", "trl": SEQUENCE},
    "gspo": {"loss_type": "grpo", "trl": SEQUENCE},
    "rloo": {"advantage": "leave-one-out"},
    "max-rl": {"advantage": "max-rl"},
    "entropy": {"trl": ("entropy_coef=0.1",)},
    "scaled": {"scale_rewards": "group", "trl": CHECKPOINTED},
    "own loss": OWN,
    "own loss, KL": OWN | {"beta": 0.02},
    "own loss, iterations": OWN | {"trl": ("num_iterations=4",)},
    "own loss, discount": OWN | DISCOUNTED,
}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    path = tiny_llama.checkpoint(tmp_path_factory.mktemp("model"), max_position_embeddings=1024)
    return load.load_model(reference.find_model(str(path)), precision="fp32")


def made(loaded, directory, changes, cls=Trainer, rows=(ROW,), stop=None):
    """A trainer of a random adapter: ours, or TRL's own."""
    options = replace(SMALL, **changes)
    settings = {
        "model": copy.deepcopy(loaded.model),
        "args": grpo_config(options, loaded, directory),
        "train_dataset": datasets.Dataset.from_list([{"index": 0}]),
        "processing_class": loaded.tokenizer,
        "peft_config": peft.LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False),
    }
    torch.manual_seed(0)
    if cls is Trainer:
        stop = stop or Stop(loaded.tokenizer, loaded.model, "</answer>")
        engine = PolicyEngine(stop)
        trainer = Trainer(
            options, rows, {"correct": 1.0}, stop, engine, lambda *round: None, **settings
        )
    else:
        trainer = cls(reward_funcs=[lambda **_: REWARDS], **settings)
    trainer.current_gradient_accumulation_steps = 2
    trainer.model.train()
    return trainer


def round_of(trainer, rewards=REWARDS):
    """A round as tensors, sampled from weights other than the present ones, and as completions."""
    options = trainer.options
    generator = torch.Generator().manual_seed(0)
    logps = torch.randn(8, 9, generator=generator) * 0.1 - 5.8
    batch = {
        "prompt_ids": torch.randint(5, 300, (8, 6), generator=generator),
        "prompt_mask": (torch.arange(6) >= torch.tensor([[0, 2, 1, 0, 3, 2, 2, 0]]).T).long(),
        "completion_ids": torch.randint(5, 300, (8, 9), generator=generator),
        "completion_mask": (torch.arange(9) < LENGTHS[:, None]).long(),
    }
    if options.discount < 1:  # one line each; the two longest rows of the first group have a second
        batch["completion_ids"][trainer.ends_line[batch["completion_ids"]]] = 5
        batch["completion_ids"][[1, 3], 4] = trainer.ends_line.nonzero()[0, 0]
    if options.beta:
        batch["ref_per_token_logps"] = logps
    if options.round_steps > 1:
        batch["old_per_token_logps"] = logps + 0.05
    trainer.log_probabilities = lambda model, batch: logps + 0.05
    trainer.initial_log_probabilities = lambda batch: logps
    graded = []
    for index, reward in enumerate(rewards):
        row = rows_of(batch, index)
        prompt = row["prompt_ids"][row["prompt_mask"].bool()].tolist()
        completion = row["completion_ids"][row["completion_mask"].bool()].tolist()
        sample = Sample.of(ROW, Completion("", len(completion), bool(ENDED[index])))
        sampled = Sampled(0, "", prompt, completion, None)
        graded.append(Graded(sampled, sample, {"correct": reward}))
    return batch, Round(graded, 0.0, 0.0, [])


def gradient(trainer, parts):
    trainer.model.zero_grad()
    for part in parts:
        trainer.compute_loss(trainer.model, part).backward()
    trained = [each for each in trainer.model.parameters() if each.requires_grad]
    return torch.cat([parameter.grad.flatten() for parameter in trained])


def by_line(rewards, mask, ends, discount):
    """Credit by line: the discounted reward of a line less its mean over the group."""
    credit = torch.zeros(mask.shape)
    line = ends.cumsum(1) - ends.long()
    count = (ends * mask).sum(1)
    for group in torch.arange(len(rewards)).view(-1, 4):
        for number in range(int(line.max()) + 1):
            own = (mask[group] * (line[group] == number)).bool()
            values = rewards[group] * discount ** (count[group] - number)
            mean = values[own.any(1)].mean()
            credit[group] = (values - mean)[:, None].where(own, credit[group])
    return credit


def by_definition(batch, trainer):
    """The round with the advantages of its options, uncut and unsorted."""
    options = trainer.options
    batch = dict(batch)
    if trainer.args.mask_truncated_completions:
        batch["completion_mask"] = batch["completion_mask"] * ENDED[:, None]
    batch["num_items_in_batch"] = batch["completion_mask"].sum()
    rewards = torch.tensor(REWARDS)
    sums = rewards.view(2, 4).sum(1).repeat_interleave(4)
    values = rewards - sums / 4
    if options.discount < 1:
        ends = trainer.ends_line[batch["completion_ids"]]
        values = by_line(rewards, batch["completion_mask"], ends, options.discount)
    elif options.advantage == "max-rl":
        values = 4 * rewards - sums  # one of four is solved
    elif options.advantage == "leave-one-out":
        values = rewards - (sums - rewards) / 3
    elif options.scale_rewards == "group":
        values = values / (rewards.view(2, 4).std(1).repeat_interleave(4) + 1e-4)
    return batch | {"advantages": values}


def rows_of(batch, chosen):
    return {name: value[chosen] if value.ndim else value for name, value in batch.items()}


@pytest.mark.parametrize("mask_truncated", [False, True])
@pytest.mark.parametrize("name", COMBINATIONS)
def test_the_gradient_of_a_round_is_that_of_trl(loaded, tmp_path, name, mask_truncated):
    changes = COMBINATIONS[name]
    masking = (f"mask_truncated_completions={mask_truncated}".lower(),)
    trainer = made(loaded, tmp_path, changes | {"trl": changes.get("trl", ()) + masking})
    plain_changes = changes | ({"loss_type": "dapo"} if trainer.own_loss else {})
    plain = made(loaded, tmp_path, plain_changes, GRPOTrainer)
    batch, sampled = round_of(trainer)
    whole = by_definition(batch, trainer)
    parts = trainer.micro_batches(sampled)
    halves = [rows_of(whole, slice(0, 4)), rows_of(whole, slice(4, 8))]
    if trainer.options.discount < 1 and any("top_entropy" in item for item in trainer.options.trl):
        # TRL's quantile is over a random half of the rows, ours over the rows and tokens left.
        last = advantages.up_to_last(whole["advantages"])
        whole["completion_mask"] = whole["completion_mask"] * last
        live = whole["completion_mask"].sum(1).argsort(descending=True, stable=True)
        count = sum(len(part["advantages"]) for part in parts)
        halves = [rows_of(whole, live[:count])]
    expected = gradient(plain, halves)
    assert expected.any()
    torch.testing.assert_close(gradient(trainer, parts), expected, atol=1e-6, rtol=1e-4)


def kept(trainer):
    """Rows and columns that are left of a round."""
    parts = [
        part for part in trainer.micro_batches(round_of(trainer)[1]) if len(part["advantages"])
    ]
    width = max(part["completion_mask"].shape[1] for part in parts)
    return sum(len(part["advantages"]) for part in parts), width


@pytest.mark.parametrize("loss", ["dapo", "grpo", "dr_grpo", "bnpo", "sapo", "vespo", "luspo"])
def test_rows_without_a_gradient_and_columns_after_the_last_are_left_out(loaded, tmp_path, loss):
    whole = loss == "bnpo"
    trainer = made(loaded, tmp_path, {"loss_type": loss})
    assert kept(trainer) == ((8, 9) if whole else (4, 9))
    trainer = made(loaded, tmp_path, {"loss_type": loss} | DISCOUNTED)
    # Only the row that is solved and those beside it have an advantage, in the line that all have.
    cut = (4, 5) if loss == "dapo" else (4, 9)
    assert kept(trainer) == ((8, 9) if whole else cut)
    shares = [part["share"] for part in trainer.micro_batches(round_of(trainer)[1])]
    assert shares == ([1.0, 0.0] if trainer.options.aggregation.sum_over == "rows" else [1.0, 1.0])


@pytest.mark.parametrize(
    ("changes", "rows"),
    [
        (DISCOUNTED | {"trl": SEQUENCE}, 4),
        (DISCOUNTED | {"trl": ("off_policy_mask_threshold=0.1",)}, 4),
        ({"beta": 0.1}, 8),
        ({"trl": ("entropy_coef=0.1",)}, 8),
        ({"trl": ("use_adaptive_entropy=true",)}, 8),
        (OWN, 8),
    ],
)
def test_what_has_a_gradient_or_counts_in_a_mean_is_kept(loaded, tmp_path, changes, rows):
    assert kept(made(loaded, tmp_path, changes)) == (rows, 9)


def test_a_step_without_any_reward_is_an_error(loaded, tmp_path):
    trainer = made(loaded, tmp_path, {})
    with pytest.raises(UsageError, match="No reward function returned a number"):
        trainer.micro_batches(round_of(trainer, [None] * 8)[1])


def test_a_micro_batch_without_rows_gives_every_trained_parameter_a_gradient_of_zero(
    loaded, tmp_path
):
    trainer = made(loaded, tmp_path, {})
    trainer.compute_loss(trainer.model, {"advantages": torch.empty(0)}).backward()
    for name, parameter in trainer.model.named_parameters():
        zero = parameter.grad is not None and not parameter.grad.any()
        assert zero == parameter.requires_grad, name


def test_the_divergence_from_the_start_is_that_of_separate_forward_passes(loaded, tmp_path):
    trainer = made(loaded, tmp_path, {})
    prompts, completions = [[7, 8, 9], [10]], [[20, 21], [22, 23, 24]]
    expected = []
    trainer.model.eval()
    for prompt, completion in zip(prompts, completions, strict=True):
        ids, count = torch.tensor([prompt + completion]), len(completion)
        with torch.no_grad():
            policy = trainer.model(ids).logits.log_softmax(-1)
            with trainer.model.disable_adapter():
                start = trainer.model(ids).logits.log_softmax(-1)
        difference = (start - policy)[0, -count - 1 : -1].gather(1, ids[0, -count:, None])
        expected.append(float((difference.exp() - 1 - difference).sum()))
    assert trainer.divergence(prompts, completions) == pytest.approx(expected, rel=1e-3)
    trainer.starts_at_base = False
    assert trainer.divergence(prompts, completions) == []  # the start is not in memory


def test_the_ratio_to_another_engine_is_capped(loaded, tmp_path):
    trainer = made(loaded, tmp_path, {})
    difference = torch.tensor([[8.0, 0.5, 9.0]]).log()
    ratio = trainer.importance_ratio(difference, torch.tensor([[1, 1, 0]]))
    torch.testing.assert_close(ratio, torch.tensor([[2.0, 0.5, 1.0]]))
    (mean,) = trainer.metrics["sampling/importance_sampling_ratio/mean"]
    assert mean == pytest.approx(4.25)


def test_rollouts_of_generate_end_at_the_answer(loaded, tmp_path):
    class Third(Stop):
        def __call__(self, ids):
            return len(ids) == 3

    stop = Third(loaded.tokenizer, loaded.model, "</answer>")
    changes = {"max_completion_length": 40, "trl": ("top_k=50", "repetition_penalty=1.1")}
    rows = [parse_row({"nums": [3, 7], "target": 46}), ROW]
    trainer = made(loaded, tmp_path, changes, rows=rows, stop=stop)
    graded = trainer.round([1, 0]).graded
    assert [len(each.sampled.ids) for each in graded] == [3, 3]
    assert [each.sample.row for each in graded] == [ROW, rows[0]]
    assert not any(each.sample.truncated for each in graded)
    assert trainer.model.training
