"""The gradient of a round against an unchanged ``GRPOTrainer``, for the options of the pipeline and of the recipes."""

import copy
import re
import shlex
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import datasets
import peft
import pytest
import torch
import yaml
from trl import GRPOTrainer

from countdown_rl.core.errors import UsageError
from countdown_rl.inference.sampling import Stop
from countdown_rl.models import load, reference
from countdown_rl.tasks.registry import parse_row
from countdown_rl.training.grpo import advantages, trl
from countdown_rl.training.grpo.rollouts import Graded, Rollouts, Round
from countdown_rl.training.grpo.trainer import Trainer, _selected
from countdown_rl.training.options import TrainOptions
from tests.support import tiny_llama

STAGES = Path(__file__).parents[3] / "stages"
SMALL = {
    "prompts": 2,
    "num_generations": 4,
    "micro_batch": 4,
    "max_completion_length": 9,
    "lora_r": 4,
}
LENGTHS = torch.tensor([3, 9, 5, 7, 2, 9, 4, 6])
ENDED = torch.tensor([True, False, True, True, True, False, True, True])
REWARDS = [0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]


def stage():
    """The options of the pipeline about the loss."""
    read = yaml.safe_load((STAGES / "train.yaml").read_text())["train"]
    return {
        name.replace("-", "_"): tuple(value) if isinstance(value, list) else value
        for name, value in read.items()
    }


def recipes():
    """The options of each recipe about the loss, from its flags."""
    for path in sorted((STAGES / "recipes").glob("*.sh")):
        lists = re.findall(
            r"^(?:train|lora|grpo)\+?=\((.*?)\)$", path.read_text(), re.MULTILINE | re.DOTALL
        )
        words = shlex.split("\n".join(lists), comments=True)
        flags = dict(pairwise(words))
        flags["--trl"] = tuple(value for flag, value in pairwise(words) if flag == "--trl")
        yield (
            path.stem,
            {
                name: flags[flag]
                for name in LOSS
                if (flag := f"--{name.replace('_', '-')}") in flags
            },
        )


#: The fields that change the loss of a round, or that a value of --trl needs, and how the recipes write them.
LOSS = dict.fromkeys(("beta", "discount", "temperature"), float)
LOSS |= dict.fromkeys(("loss_type", "scale_rewards", "baseline", "lr_scheduler_type"), str)
LOSS |= {"num_iterations": int, "trl": tuple}
DISCOUNTED = {"discount": 0.9, "scale_rewards": "none"}
LOSSES = ("dapo", "grpo", "dr_grpo", "bnpo", "sapo", "vespo", "cispo")
COMBINATIONS = {
    "pipeline": {name: value for name, value in stage().items() if name in LOSS},
    **{
        name: {field: LOSS[field](value) for field, value in given.items()}
        for name, given in recipes()
    },
    "gsm8k, fast": {"num_iterations": 4, "beta": 0.02, "trl": ("epsilon_high=0.2",)},
    **{loss: {"loss_type": loss} for loss in LOSSES},
    **{f"{loss}, discount": {"loss_type": loss} | DISCOUNTED for loss in (*LOSSES, "luspo")},
    "luspo": {"loss_type": "luspo", "trl": ("importance_sampling_level=sequence",)},
    "gspo": {"loss_type": "grpo", "trl": ("importance_sampling_level=sequence",)},
    "rloo": {"baseline": "leave-one-out", "scale_rewards": "none"},
    "max-rl": {"advantage": "max-rl"},
    "entropy": {"trl": ("entropy_coef=0.1",)},
    "scaled": {"scale_rewards": "group"},
    "own loss": {"loss": f"{__name__}:clipped"},
    "own loss, KL": {"loss": f"{__name__}:clipped", "beta": 0.02},
    "own loss, iterations": {"loss": f"{__name__}:clipped", "num_iterations": 4},
    "own loss, discount": {"loss": f"{__name__}:clipped", "discount": 0.9},
}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    path = tiny_llama.checkpoint(tmp_path_factory.mktemp("model"), max_position_embeddings=1024)
    return load.load_model(reference.find_model(str(path)), precision="fp32")


def correct(**_):
    return REWARDS


def clipped(logps, old_logps, advantages, mask):
    """The loss of TRL's ``dapo``."""
    ratio = (logps - old_logps).exp()
    return -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.28) * advantages) * mask


def sampled(rewards=REWARDS):
    """The round whose tensors :func:`round_of` returns."""
    samples = [SimpleNamespace(truncated=not ended) for ended in ENDED.tolist()]
    pairs = zip(samples, rewards, strict=True)
    return Round(
        [Graded("", [], [], None, sample, {"correct": reward}) for sample, reward in pairs],
        0.0,
        0.0,
    )


def made(loaded, directory, changes, cls=Trainer):
    """A trainer of a random adapter: ours, or TRL's own."""
    options = TrainOptions(**SMALL | changes)
    config = trl.grpo_config(options, loaded, [1.0], directory)
    arguments = {
        "model": copy.deepcopy(loaded.model),
        "reward_funcs": [correct],
        "args": config,
        "train_dataset": datasets.Dataset.from_list([{"prompt": 0}]),
        "processing_class": loaded.tokenizer,
        "peft_config": peft.LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False),
    }
    torch.manual_seed(0)
    if cls is Trainer:
        stop = Stop(loaded.tokenizer, loaded.model, "</answer>")
        trainer = Trainer(
            options, Rollouts([], stop, {"correct": 1.0}), lambda *round: None, **arguments
        )
    else:
        trainer = cls(**arguments)
    trainer.current_gradient_accumulation_steps = 2
    trainer.model.train()
    return trainer


def round_of(trainer, options):
    """A round of completions as TRL returns it, sampled from weights other than the present ones."""
    generator = torch.Generator().manual_seed(0)
    mask = (torch.arange(9) < LENGTHS[:, None]).int()
    rewards = torch.tensor(REWARDS).view(2, 4)
    over_the_mean = rewards - rewards.mean(1, keepdim=True)
    if options.scale_rewards == "group":
        over_the_mean /= rewards.std(1, keepdim=True) + 1e-4
    logps = torch.randn(8, 9, generator=generator) * 0.1 - 5.8
    prompt_mask = (torch.arange(6) >= torch.tensor([0, 2, 1, 0, 3, 2, 2, 0])[:, None]).long()
    batch = {
        "prompt_ids": torch.randint(5, 300, (8, 6), generator=generator),
        "prompt_mask": prompt_mask,
    }
    batch |= {
        "completion_ids": torch.randint(5, 300, (8, 9), generator=generator),
        "completion_mask": mask,
    }
    batch |= {"advantages": over_the_mean.flatten(), "num_items_in_batch": mask.sum()}
    if options.beta:
        batch["ref_per_token_logps"] = logps
    if options.num_iterations > 1:
        batch["old_per_token_logps"] = logps + 0.05
    if options.discount < 1:  # one line each; the two longest rows of the first group have a second
        batch["completion_ids"][trainer.ends_line[batch["completion_ids"]]] = 5
        batch["completion_ids"][[1, 3], 4] = trainer.ends_line.nonzero()[0, 0]
    return batch


def gradient(trainer, parts):
    trainer.model.zero_grad()
    for part in parts:
        trainer.compute_loss(trainer.model, part).backward()
    return torch.cat(
        [
            parameter.grad.flatten()
            for parameter in trainer.model.parameters()
            if parameter.requires_grad
        ]
    )


def by_definition(batch, trainer, options):
    """The round with the advantages of its options, uncut and unsorted."""
    batch = dict(batch)
    rewards = torch.tensor(REWARDS)
    if trainer.args.mask_truncated_completions:
        batch["completion_mask"] = batch["completion_mask"] * ENDED[:, None]
        batch["num_items_in_batch"] = batch["completion_mask"].sum()
    if options.discount < 1:
        ends = trainer.ends_line[batch["completion_ids"]]
        mask = batch["completion_mask"]
        by_line = advantages.discounted(
            rewards.view(2, 4), mask.view(2, 4, -1), ends.view(2, 4, -1), options.discount
        )
        batch["advantages"] = by_line.flatten(0, 1)
    elif options.advantage:
        batch["advantages"] = 4 * rewards - rewards.view(2, 4).sum(1).repeat_interleave(
            4
        )  # one of four is solved
    elif options.baseline == "leave-one-out":
        batch["advantages"] = (
            rewards - (rewards.view(2, 4).sum(1).repeat_interleave(4) - rewards) / 3
        )
    return batch


def rows(batch, chosen):
    return {name: value[chosen] if value.ndim else value for name, value in batch.items()}


@pytest.mark.parametrize("mask_truncated", [False, True])
@pytest.mark.parametrize("name", COMBINATIONS)
def test_the_gradient_of_a_round_is_that_of_trl(loaded, tmp_path, name, mask_truncated):
    masking = (f"mask_truncated_completions={mask_truncated}".lower(),)
    trainer = made(
        loaded, tmp_path, COMBINATIONS[name] | {"trl": COMBINATIONS[name].get("trl", ()) + masking}
    )
    plain = made(loaded, tmp_path, COMBINATIONS[name], GRPOTrainer)
    options = trainer.options
    batch = round_of(trainer, options)
    whole = by_definition(batch, trainer, options)
    parts = trainer.micro_batches(dict(batch), sampled())
    halves = [rows(whole, slice(0, 4)), rows(whole, slice(4, 8))]
    if options.discount < 1 and any("top_entropy_quantile" in item for item in options.trl):
        # What differs: TRL's quantile is over a random half of the rows, ours over the rows and tokens that are left.
        last = advantages.up_to_last(whole["advantages"])
        whole["completion_mask"] = whole["completion_mask"] * last
        live = whole["completion_mask"].sum(1).argsort(descending=True, stable=True)
        count = sum(len(part["advantages"]) for part in parts)
        halves = [rows(whole, live[:4][:count])]
        assert count == int(whole["completion_mask"].any(1).sum()) <= 4
    expected = gradient(plain, halves)
    assert expected.any()
    torch.testing.assert_close(gradient(trainer, parts), expected, atol=1e-6, rtol=1e-4)


def kept(trainer, batch):
    parts = [part for part in trainer.micro_batches(batch, sampled()) if len(part["advantages"])]
    return sum(len(part["advantages"]) for part in parts), max(
        part["completion_mask"].shape[1] for part in parts
    )


@pytest.mark.parametrize("loss", ["dapo", "grpo", "dr_grpo", "bnpo", "sapo", "vespo", "luspo"])
def test_rows_without_a_gradient_and_columns_after_the_last_are_left_out(loaded, tmp_path, loss):
    trainer = made(loaded, tmp_path, {"loss_type": loss})
    assert kept(trainer, round_of(trainer, trainer.options)) == (
        (8, 9) if loss == "bnpo" else (4, 9)
    )
    trainer = made(loaded, tmp_path, {"loss_type": loss} | DISCOUNTED)
    # Only the row that is solved and those beside it have an advantage, in the line that all have.
    batch = round_of(trainer, trainer.options)
    assert kept(trainer, batch) == (
        (8, 9) if loss == "bnpo" else (4, 5) if loss == "dapo" else (4, 9)
    )
    shares = [part["share"] for part in trainer.micro_batches(batch, sampled())]
    assert shares == ([1.0, 0.0] if trainer.options.aggregation.sum_over == "rows" else [1.0, 1.0])


BY_SEQUENCE = [
    {"trl": (item,)}
    for item in ("importance_sampling_level=sequence", "off_policy_mask_threshold=0.1")
]


@pytest.mark.parametrize("changes", [*BY_SEQUENCE, {"loss_type": "vespo"}])
def test_means_over_a_completion_keep_the_tokens_after_the_last_advantage(
    loaded, tmp_path, changes
):
    trainer = made(loaded, tmp_path, DISCOUNTED | changes)
    assert kept(trainer, round_of(trainer, trainer.options)) == (4, 9)


EVERY_ROW = [{"beta": 0.1}, {"trl": ("entropy_coef=0.1",)}, {"trl": ("use_adaptive_entropy=true",)}]


@pytest.mark.parametrize("changes", [*EVERY_ROW, {"loss": f"{__name__}:clipped"}])
def test_no_row_is_left_out_where_each_has_a_gradient(loaded, tmp_path, changes):
    trainer = made(loaded, tmp_path, changes)
    batch = round_of(trainer, replace(trainer.options, beta=0.0))
    assert kept(trainer, batch)[0] == 8


def test_a_step_without_any_reward_is_an_error(loaded, tmp_path):
    trainer = made(loaded, tmp_path, {})
    with pytest.raises(UsageError, match="No reward function returned a number"):
        trainer.micro_batches(round_of(trainer, trainer.options), sampled([None] * 8))


def test_a_micro_batch_without_rows_gives_every_trained_parameter_a_gradient_of_zero(
    loaded, tmp_path
):
    trainer = made(loaded, tmp_path, {})
    trainer.compute_loss(trainer.model, {"advantages": torch.empty(0)}).backward()
    for name, parameter in trainer.model.named_parameters():
        assert (
            parameter.grad is None if not parameter.requires_grad else not parameter.grad.any()
        ), name


def test_a_hint_is_graded_with_the_completion_and_gets_no_gradient(loaded, tmp_path):
    trainer = made(loaded, tmp_path, {"prompts": 1, "trl": ("top_k=50",)})
    row = parse_row({"nums": [3, 7, 50], "target": 46})
    hint = "\n50 - 7 = 43\n</think>\n<answer>50 - 7 + 3</answer>"
    torch.manual_seed(0)
    columns = Rollouts([row], Stop(loaded.tokenizer, loaded.model, "</end>"), {})(
        [(0, hint)] * 4, trainer
    )
    for graded in columns["round"].graded:
        assert graded.sample.completion.startswith(hint)
        assert graded.sample.grade.correct
        assert graded.sample.details == {"hint": hint}
    length = len(columns["prompt_ids"][0])
    assert loaded.tokenizer.decode(columns["prompt_ids"][0]).endswith(hint)
    prompts, completions = (
        torch.tensor(columns[name]) for name in ("prompt_ids", "completion_ids")
    )
    batch = {
        "prompt_ids": prompts,
        "prompt_mask": torch.ones_like(prompts),
        "completion_ids": completions,
    }
    batch |= {
        "completion_mask": torch.ones_like(completions),
        "num_items_in_batch": torch.tensor(completions.numel()),
    }
    states = []

    def keep(module, args, output):
        output.last_hidden_state.retain_grad()
        states.append(output.last_hidden_state)

    decoder = trainer.model.get_base_model().get_decoder()
    with decoder.register_forward_hook(keep):
        batch |= {"advantages": torch.tensor([1.0, -1, 1, -1]), "share": 1.0}
        trainer.compute_loss(trainer.model, batch).backward()
    # The last token of the prompt predicts the first one of a completion.
    assert not states[0].grad[:, : length - 1].any()
    assert states[0].grad[:, length - 1].any()


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
    assert min(expected) > 0
    trainer.adapter_is_new = False
    assert trainer.divergence(prompts, completions) == []  # the start is not in memory


def test_rollouts_of_generate_end_at_the_answer(loaded, tmp_path):
    class Third(Stop):
        def __call__(self, ids):
            return len(ids) == 3

    trainer = made(
        loaded, tmp_path, {"max_completion_length": 40, "trl": ("top_k=50",)}
    )  # not by the decoder
    stop = Third(loaded.tokenizer, loaded.model, "</answer>")
    stop.may_end[:] = True
    rows = [parse_row({"nums": nums, "target": 46}) for nums in ([3, 7], [3, 7, 50])]
    columns = Rollouts(rows, stop, {})([1, 0], trainer)
    assert [len(ids) for ids in columns["completion_ids"]] == [3, 3]
    assert columns["logprobs"] is None
    samples = [graded.sample for graded in columns["round"].graded]
    assert [(each.row, each.truncated) for each in samples] == [(rows[1], False), (rows[0], False)]
    assert trainer.model.training


@pytest.mark.parametrize(("multiple", "columns"), [(1, (3, 5)), (8, (8, 8)), (32, (32, 20))])
def test_columns_without_a_token_stay_up_to_a_multiple_and_the_width_of_the_batch(
    multiple, columns
):
    mask = torch.zeros(4, 40, dtype=torch.long)
    batch = {"prompt_ids": mask, "prompt_mask": mask.clone(), "completion_ids": mask[:, :20]}
    batch |= {"completion_mask": mask[:, :20].clone(), "advantages": torch.ones(4)}
    batch["prompt_mask"][1:, -3:] = 1
    batch["completion_mask"][0, :9] = batch["completion_mask"][2, :5] = 1
    selected = _selected(batch, torch.tensor([1, 2]), multiple)
    assert (selected["prompt_ids"].shape[1], selected["completion_mask"].shape[1]) == columns
