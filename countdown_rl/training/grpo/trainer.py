"""One step of GRPO, in its order: choose puzzles, sample, grade, reward, advantages, loss, log.

The losses, the optimizer and the distributed backends are TRL's, as they are.
``examples/grpo_countdown.py`` has the same step without TRL, by the same names. What differs from TRL:

* rewards are computed once, here; a reward of None is in no mean;
* advantages come from a function of :mod:`advantages` or of the user, and may differ by token;
* rows with zero advantage, which add nothing to the gradient without a KL or entropy term, are
  skipped. The loss is normalized as if they were there, but the logged entropy, KL and clip ratios
  are means over the other rows. Groups with equal rewards have an advantage of exactly zero, where
  TRL leaves the rounding of their mean;
* the rows of an optimizer step are sorted by length, not shuffled, and each micro-batch is cut to
  its longest row. A sum over rows stays the same. Where a micro-batch has a mean over its tokens
  (``bnpo``, an entropy bonus, experts), rows are neither sorted nor skipped;
* so ``top_entropy_quantile`` takes its quantile over the remaining tokens of a micro-batch.

Private names of TRL, and the public ways that were considered:

* ``_prepare_inputs`` is where TRL turns prompts into a micro-batch. ``training_step`` and
  ``compute_loss`` see one micro-batch only.
* ``_get_per_token_logps_and_entropies`` has the log-probabilities of a batch; nothing public
  returns them.
"""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from statistics import fmean
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object
from torch import Tensor
from trl import GRPOTrainer
from trl.trainer.utils import pad, use_adapter

from countdown_rl.core.errors import UsageError
from countdown_rl.evaluation.sample import Sample
from countdown_rl.inference.engine import Completion, batches, to_completion
from countdown_rl.inference.sampling import Stop
from countdown_rl.models import chat_template
from countdown_rl.models.shape import ModelShape
from countdown_rl.tasks.task import Row
from countdown_rl.training.grpo import advantages, rewards
from countdown_rl.training.grpo.engines import Engine
from countdown_rl.training.grpo.prompts import Outcome
from countdown_rl.training.grpo.round import Graded, Round, Sampled
from countdown_rl.training.options import TrainOptions

PRIVATE = (
    "trl.GRPOTrainer._prepare_inputs",
    "trl.GRPOTrainer._get_per_token_logps_and_entropies",
)

Batch = dict[str, Any]
#: Maximum attempts of a round. Where half of the groups have reward variance, four fill 94% of it.
#: Where none has, the run needs easier puzzles, not more attempts.
MAX_ATTEMPTS = 4
#: Completions of an evaluation on which each process measures the divergence from the initial policy.
KL_COMPLETIONS = 64


class Trainer(GRPOTrainer):
    """``GRPOTrainer`` on a data set of indices into *rows*.

    Args:
        options: of the run.
        rows: to complete.
        reward_weights: by name.
        stop: end of a completion.
        engine: completes prompts.
        on_round: gets the first step of each round, and the round.
        settings: of ``GRPOTrainer``.
    """

    def __init__(
        self,
        options: TrainOptions,
        rows: Sequence[Row],
        reward_weights: Mapping[str, float],
        stop: Stop,
        engine: Engine,
        on_round: Callable[[int, Round], None],
        **settings: Any,
    ) -> None:
        self.options = options
        self.rows = rows
        self.weight_of = reward_weights
        self.reward_of = {name: rewards.reward(name) for name in reward_weights}
        self.stop = stop
        self.engine = engine
        self.on_round = on_round
        self.advantage = advantages.advantage(options)
        self.own_loss = advantages.loss(options.loss_type) if options.own_loss else None
        super().__init__(reward_funcs=list(self.reward_of.values()), **settings)

        self.waiting: list[Batch] = []
        self.metrics: dict[str, list[float]] = defaultdict(list)  # of a step, for the log
        self.starts_at_base = settings.get("peft_config") is not None
        # The gradient of a step is a sum over its rows, however they are cut into micro-batches.
        per_micro_batch = (
            self.args.entropy_coef or self.args.use_adaptive_entropy or self.aux_loss_enabled
        )
        self.sums_over_rows = bool(options.aggregation.sum_over and not per_micro_batch)
        self.skips_rows = self.sums_over_rows and self.beta == 0.0 and not self.own_loss
        self.ends_line = torch.empty(0, dtype=torch.bool)
        if "line_ends" in advantages.columns(self.advantage):
            count = ModelShape.of(self.model.config).vocab_size
            ends = ["\n" in stop.tokenizer.decode([index]) for index in range(count)]
            self.ends_line = torch.tensor(ends, device=self.accelerator.device)  # (V,)

    def _prepare_inputs(self, generation_batch: list[Batch]) -> Batch:
        """Return the next micro-batch, of a new round where the last one is used up."""
        if not self.waiting:
            sampled = self.round([row["index"] for row in generation_batch])
            if self.options.sampler == "dynamic":
                self.resample(sampled)
            self.waiting = self.micro_batches(sampled) * self.num_iterations
        return self.waiting.pop(0)

    def round(self, indices: Sequence[int]) -> Round:
        """Sample, grade and reward completions of the rows *indices*, those of a group side by side."""
        begin = time.perf_counter()
        sampled = self.sample(indices)
        between = time.perf_counter()
        graded = [self.grade(each) for each in sampled]
        logged = self.reward(graded)
        return Round(graded, between - begin, time.perf_counter() - between, logged)

    def sample(self, indices: Sequence[int]) -> list[Sampled]:
        """Complete the prompts of the rows *indices*."""
        tokenizer = self.stop.tokenizer
        chosen = list(dict.fromkeys(indices))
        texts = [chat_template.render(tokenizer, self.rows[index].messages()) for index in chosen]
        encoded = chat_template.token_ids(tokenizer, texts)
        prompts = dict(zip(chosen, zip(texts, encoded, strict=True), strict=True))
        self.model.eval()  # no LoRA dropout while sampling
        prompt_ids = [prompts[index][1] for index in indices]
        ids, logps = self.engine(self, prompt_ids, self.temperature)
        self.model.train()
        sampled = []
        for position, index in enumerate(indices):
            own_logps = logps[position] if logps else None
            sampled.append(Sampled(index, *prompts[index], ids[position], own_logps))
        return sampled

    def grade(self, sampled: Sampled) -> Graded:
        """Grade a completion, with the thinking that its prompt began."""
        row = self.rows[sampled.index]
        completion = to_completion(self.stop, sampled.ids).after(row, sampled.prompt)
        return Graded(sampled, Sample.of(row, completion))

    def reward(self, graded: Sequence[Graded]) -> list[tuple[str, float]]:
        """Set the rewards of completions, and return the metrics that the functions log."""
        logged: list[tuple[str, float]] = []
        samples = [each.sample for each in graded]
        columns = {
            "prompts": [each.sampled.prompt for each in graded],
            "completion_ids": [each.sampled.ids for each in graded],
            "trainer_state": self.state,
            # Beside the columns of the log, of which none has such a prefix.
            "log_metric": lambda name, value: logged.append((f"metric/{name}", value)),
        }
        for name, function in self.reward_of.items():
            values = rewards.values(name, function, samples, columns)
            for each, value in zip(graded, values, strict=True):
                each.rewards[name] = value
        return logged

    def resample(self, sampled: Round) -> None:
        """Replace groups with equal rewards by new ones: DAPO (Yu et al. 2025, arXiv:2503.14476).

        The puzzles of an attempt depend on the seed, the step and the attempt alone, so a resumed
        run samples the same.
        """
        size = self.num_generations
        processes = self.accelerator.num_processes
        groups = sampled.groups(self.weight_of, size)
        sampled.draws = len(groups) * processes
        for attempt in range(1, MAX_ATTEMPTS):
            missing = [index for index, (_, varies) in enumerate(groups) if not varies]
            # All processes complete as many: with some engines they must.
            most = max(gather_object([len(missing)]))
            if not most:
                break
            rng = np.random.default_rng((self.options.seed, self.state.global_step, attempt))
            rows = rng.integers(len(self.rows), size=(processes, most))
            more = self.round(rows[self.accelerator.process_index].repeat(size).tolist())
            varied = [group for group in more.groups(self.weight_of, size) if group[1]]
            for index, group in zip(missing, varied, strict=False):
                groups[index] = group
            sampled.draws += most * processes
            sampled.seconds_generation += more.seconds_generation
            sampled.seconds_reward += more.seconds_reward
            sampled.logged += more.logged
        sampled.graded = [graded for group, _ in groups for graded in group]

    def micro_batches(self, sampled: Round) -> list[Batch]:
        """Return the round as micro-batches of tensors with advantages, and note its metrics."""
        batch = self.tensors(sampled)
        totals = self.accelerator.gather(sampled.totals(self.weight_of).to(self.model.device))
        self.note(sampled, totals)
        mask = batch["completion_mask"]
        batch["advantages"] = self.advantages(totals, batch)
        means = batch["advantages"]
        if means.ndim > 1:
            means = means.sum(1) / mask.sum(1).clamp(min=1)
        for graded, mean in zip(sampled.graded, means.tolist(), strict=True):
            graded.advantage = mean
        self.on_round(self.state.global_step + 1, sampled)
        if batch["advantages"].ndim > 1:
            # Cut what follows the last advantage. Sequence-level ratios and the off-policy mask are
            # means over it all.
            by_token = (
                self.importance_sampling_level == "token" and self.off_policy_mask_threshold is None
            )
            if by_token and self.skips_rows and self.options.aggregation.by_token:
                batch["completion_mask"] = mask * advantages.up_to_last(batch["advantages"])
        return self.cut(batch)

    def tensors(self, sampled: Round) -> Batch:
        """Return the tokens of a round, their masks, and the log-probabilities that the loss needs."""
        completions = [graded.sampled for graded in sampled.graded]
        batch = self.padded(
            [each.prompt_ids for each in completions], [each.ids for each in completions]
        )
        corrects = self.use_vllm and self.vllm_importance_sampling_correction
        if self.num_iterations > 1 or corrects:
            old = self.log_probabilities(self.model, batch)
            batch["old_per_token_logps"] = old
        if corrects:
            rows = [torch.tensor(each.logps, device=old.device) for each in completions]
            batch["importance_sampling_ratio"] = self.importance_ratio(
                old - pad(rows, 0.0, "right"), batch["completion_mask"]
            )
        if self.beta:
            batch["ref_per_token_logps"] = self.initial_log_probabilities(batch)
        if self.args.mask_truncated_completions:
            truncated = [bool(graded.sample.truncated) for graded in sampled.graded]
            ended = ~torch.tensor(truncated, device=self.model.device)
            batch["completion_mask"] = batch["completion_mask"] * ended[:, None]
        count = batch["completion_mask"].sum()
        batch["num_items_in_batch"] = self.accelerator.gather(count).sum()
        return batch

    def padded(self, prompts: list[list[int]], completions: list[list[int]]) -> Batch:
        """Return *prompts* (B, P), padded on the left, and *completions* (B, T), on the right."""
        batch = {}
        sides = {"prompt": (prompts, "left"), "completion": (completions, "right")}
        for name, (rows, side) in sides.items():
            ids = [torch.tensor(row, device=self.model.device) for row in rows]
            masks = [torch.ones_like(row) for row in ids]
            batch[f"{name}_ids"] = pad(ids, self.processing_class.pad_token_id, side)
            batch[f"{name}_mask"] = pad(masks, 0, side)
        return batch

    @torch.no_grad()
    def log_probabilities(self, model: torch.nn.Module, batch: Batch) -> Tensor:
        """Return the log-probabilities (B, T) of completions by *model*."""
        ids = torch.cat((batch["prompt_ids"], batch["completion_ids"]), 1)
        mask = torch.cat((batch["prompt_mask"], batch["completion_mask"]), 1)
        length = batch["completion_ids"].shape[1]
        size = self.args.per_device_train_batch_size
        logps, _, _ = self._get_per_token_logps_and_entropies(model, ids, mask, length, size)
        return logps

    def initial_log_probabilities(self, batch: Batch) -> Tensor:
        """Return the log-probabilities (B, T) of completions by the initial policy."""
        if self.ref_model is not None:
            return self.log_probabilities(self.ref_model, batch)
        model = self.accelerator.unwrap_model(self.model)
        # TRL holds the start of an adapter that is trained further under the name "ref".
        with use_adapter(model, "ref" if "ref" in model.peft_config else None):
            return self.log_probabilities(self.model, batch)

    def importance_ratio(self, difference: Tensor, mask: Tensor) -> Tensor:
        """Return the weights (B, T) that correct the loss for another engine's samples.

        Args:
            difference: (B, T) log-probabilities by the policy less those by the engine.
            mask: (B, T), 1 for the tokens of completions.
        """
        ratio = (difference.nan_to_num() * mask).exp()
        # The cap would hide a mean above it.
        mean = self.accelerator.gather(ratio[mask.bool()].mean()).nanmean()
        self.metrics["sampling/importance_sampling_ratio/mean"].append(mean.item())
        return ratio.clamp(
            self.vllm_importance_sampling_clip_min, self.vllm_importance_sampling_clip_max
        )

    def advantages(self, totals: Tensor, batch: Batch) -> Tensor:
        """Return the advantages (B,), or (B, T) by token, of the completions of this process."""
        names = advantages.columns(self.advantage)
        if "line_ends" in names:
            batch["line_ends"] = self.ends_line[batch["completion_ids"]]
        own = self.own(totals) if names else totals
        groups = own.view(-1, self.num_generations)
        tokens = {name: batch[name].view(*groups.shape, -1) for name in names}
        values = advantages.compute(self.options.advantage, self.advantage, groups, tokens)
        if values.ndim > 2:
            return values.flatten(0, 1) * batch["completion_mask"]
        return values.flatten() if names else self.own(values.flatten())

    def own(self, values: Tensor) -> Tensor:
        """Return of *values* (B of all processes,) those of this process."""
        return values.chunk(self.accelerator.num_processes)[self.accelerator.process_index]

    def cut(self, batch: Batch) -> list[Batch]:
        """Return the rows of *batch* that have a gradient, in micro-batches."""
        size = self.args.per_device_train_batch_size
        lengths = batch["completion_mask"].sum(1)  # (B,)
        live = torch.ones_like(lengths, dtype=torch.bool)  # has a gradient
        if self.skips_rows:
            live = batch["advantages"].reshape(len(lengths), -1).ne(0).any(1) & (lengths > 0)
        order = torch.arange(len(lengths))
        if self.sums_over_rows:
            # The rows that have a gradient come first, the longest of all.
            rank = (live * (lengths.max() + 1) + lengths).cpu()
            order = rank.argsort(descending=True, stable=True)
        parts = order.split(size)
        counts = torch.tensor([[int(live[rows].sum()) for rows in parts]], device=lengths.device)
        if self.accelerator.num_processes > 1:
            # TRL gathers a metric per row, and a backward pass needs all processes: each has as
            # many rows as the most.
            counts = self.accelerator.gather(counts).amax(0, keepdim=True).clamp(min=1)
        multiple = 32 if lengths.is_cuda else 1  # a GPU chooses kernels anew for each length
        micro_batches = []
        for rows, count in zip(parts, counts[0].tolist(), strict=True):
            part = selected(batch, rows[:count], multiple)
            mean = self.options.aggregation.sum_over == "rows"
            part["share"] = count / size if mean else 1.0
            micro_batches.append(part)
        return micro_batches

    def compute_loss(
        self, model: torch.nn.Module, inputs: Batch, *args: object, **settings: object
    ) -> Tensor:
        """Return the loss of a micro-batch by TRL, or by a function of the user's."""
        if len(inputs["advantages"]) == 0:
            # A gradient of zero for all: the optimizer leaves out parameters without one.
            trained = [each for each in model.parameters() if each.requires_grad]
            return sum(parameter.sum() for parameter in trained) * 0.0
        if self.own_loss is not None:
            return self.summed(self.own_loss, model, inputs)
        return super().compute_loss(model, inputs, *args, **settings) * inputs["share"]

    def summed(
        self, own_loss: Callable[..., Tensor], model: torch.nn.Module, inputs: Batch
    ) -> Tensor:
        """Return the sum of *own_loss* and of the KL divergence over the tokens of the step."""
        mask = inputs["completion_mask"]  # (B, T), as all that follows
        ids = torch.cat((inputs["prompt_ids"], inputs["completion_ids"]), 1)
        present = torch.cat((inputs["prompt_mask"], mask), 1)
        logps, entropies, _ = self._get_per_token_logps_and_entropies(
            model, ids, present, mask.shape[1], compute_entropy=True
        )
        old = inputs.get("old_per_token_logps", logps.detach())
        advantage = inputs["advantages"]
        if advantage.ndim == 1:
            advantage = advantage[:, None].expand_as(mask)
        losses = own_loss(logps, old, advantage, mask)
        if "importance_sampling_ratio" in inputs:
            losses = losses * inputs["importance_sampling_ratio"]
        noted = {"entropy": entropies}
        if self.beta:
            difference = inputs["ref_per_token_logps"] - logps
            ratio = (logps - old).exp() if self.args.use_bias_correction_kl else 1.0
            noted["kl"] = (difference.exp() - difference - 1) * ratio
            losses = losses + self.beta * noted["kl"]
        for name, values in noted.items():
            sums = torch.stack(((values * mask).sum(), mask.sum().float())).detach()
            total, count = self.accelerator.reduce(sums, reduction="sum").tolist()
            self.metrics[name].append(total / max(count, 1.0))
        tokens = inputs["num_items_in_batch"].clamp(min=1.0) / self.accelerator.num_processes
        return (losses * mask).sum() / tokens

    def note(self, sampled: Round, totals: Tensor) -> None:
        """Note the metrics of a round; *totals* are the rewards of all processes."""
        if totals.isnan().all():
            raise UsageError("No reward function returned a number for any completion of a step.")
        groups = totals.view(-1, self.num_generations)
        columns: dict[str, list[float]] = defaultdict(list)
        for name, value in sampled.logged:
            columns[name].append(value)
        for graded in sampled.graded:
            for name, value in rewards.metrics(graded.sample, graded.rewards).items():
                columns[name].append(value)
        parts = gather_object([dict(columns)])
        for name in dict.fromkeys(name for part in parts for name in part):
            values = [value for part in parts for value in part.get(name, ())]
            self.metrics[name].append(fmean(values))
            if name.startswith("rewards/"):
                deviation = torch.tensor(values).std() if len(values) > 1 else torch.zeros(())
                self.metrics[name.removesuffix("mean") + "std"].append(deviation.item())
        self.metrics["reward"].append(totals.nanmean().item())
        equal = advantages.equal(groups).float().mean()
        self.metrics["frac_reward_zero_std"].append(equal.item())
        self.metrics["seconds_generation"].append(sampled.seconds_generation)
        self.metrics["seconds_reward"].append(sampled.seconds_reward)
        if sampled.draws is not None:
            self.metrics["draws"].append(float(sampled.draws))
        if self.options.sampler not in ("uniform", "dynamic"):
            sampled.outcomes = outcomes(groups, sampled)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log the metrics of a step beside those of TRL."""
        noted = {name: fmean(values) for name, values in self.metrics.items()}
        super().log(logs | noted, start_time)
        self.metrics.clear()

    def validate(self, prompts: Sequence[str]) -> list[Completion]:
        """Return a greedy completion of each rendered prompt; processes share them."""
        share = -(-len(prompts) // self.accelerator.num_processes)
        begin = share * self.accelerator.process_index
        own = [prompts[index % len(prompts)] for index in range(begin, begin + share)]
        prompt_ids = chat_template.token_ids(self.stop.tokenizer, own)
        # One size in all processes, which may have to take part.
        size = self.args.per_device_train_batch_size * self.args.steps_per_generation
        ids: dict[int, list[int]] = {}
        self.model.eval()
        for batch in batches(list(map(len, prompt_ids)), lambda _: size):
            completed, _ = self.engine(self, [prompt_ids[index] for index in batch], 0.0)
            ids |= zip(batch, completed, strict=True)
        completions = [to_completion(self.stop, ids[index]) for index in range(share)]
        scored = range(min(share, KL_COMPLETIONS))
        divergences = self.divergence(prompt_ids[:KL_COMPLETIONS], [ids[index] for index in scored])
        for index, divergence in enumerate(divergences):
            completions[index] = replace(completions[index], details={"kl": divergence})
        self.model.train()
        return gather_object(completions)[: len(prompts)]

    def divergence(self, prompts: list[list[int]], completions: list[list[int]]) -> list[float]:
        """Return the KL divergence from the initial policy, summed over each completion's tokens.

        It is k3 of Schulman 2020, "Approximating KL Divergence", as in the loss. Empty if the
        initial policy is not in memory.
        """
        model = self.accelerator.unwrap_model(self.model)
        in_memory = self.starts_at_base or "ref" in getattr(model, "peft_config", ())
        if not prompts or not (in_memory or self.ref_model is not None):
            return []
        batch = self.padded(prompts, completions)
        difference = self.initial_log_probabilities(batch) - self.log_probabilities(
            self.model, batch
        )
        divergence = (difference.exp() - difference - 1) * batch["completion_mask"]
        return divergence.sum(1).tolist()


def outcomes(totals: Tensor, sampled: Round) -> list[Outcome]:
    """Return the groups of a round in all processes; *totals* (groups, generations)."""
    own = [
        (each.sampled.index, bool(each.sample.grade.correct), each.sample.truncated)
        for each in sampled.graded
    ]
    completions = iter(gather_object(own))
    groups = []
    for values in totals.tolist():
        rows, correct, truncated = zip(*islice(completions, len(values)), strict=True)
        known = [None if math.isnan(value) else value for value in values]
        groups.append(Outcome(rows[0], known, correct, truncated))
    return groups


def selected(batch: Batch, rows: Tensor, multiple: int) -> Batch:
    """Return the *rows* of *batch* without columns in which none of them has a token.

    Columns stay that fill a *multiple*, as far as *batch* has them.
    """
    part = {name: value[rows] if value.ndim else value for name, value in batch.items()}
    if len(rows) == 0:
        return part

    def columns(mask: Tensor) -> int:
        return -(-max(1, int(mask.sum(1).max())) // multiple) * multiple

    prompt = columns(part["prompt_mask"])
    completion = columns(part["completion_mask"])
    for name, value in part.items():
        if name.startswith("prompt_"):
            part[name] = value[:, -prompt:]
        elif value.ndim > 1:
            part[name] = value[:, :completion]
    return part
