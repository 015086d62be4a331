"""Advantages of a round, and its micro-batches: what differs from TRL's GRPO trainer.

The loss of a micro-batch and its gradient are TRL's. The differences:

* rows with zero advantage, which add nothing to the gradient without a KL or entropy term, are skipped; the loss is
  normalized as if they were there, but the logged entropy, KL and clip ratios are means over the other rows. Groups
  with equal rewards have an advantage of exactly zero, where TRL leaves the rounding of their mean;
* the rows of an optimizer step are sorted by length, not shuffled, and each micro-batch is cut to its longest row. A
  sum over rows stays the same (LoRA dropout has other masks). Where a micro-batch has a mean over its tokens
  (``bnpo``, an entropy bonus, experts), rows are neither sorted nor skipped;
* so ``top_entropy_quantile`` takes its quantile over the remaining tokens of a micro-batch, not of random rows;
* advantages come from a function of :mod:`advantages` or of the user, and may differ by token.
"""

from collections.abc import Callable
from itertools import islice

import torch
from accelerate.utils import gather_object
from torch import Tensor

from countdown_rl.core.errors import UsageError
from countdown_rl.models.shape import ModelShape
from countdown_rl.training.grpo import advantages
from countdown_rl.training.grpo.prompts import Outcome
from countdown_rl.training.grpo.rollouts import Rollouts, Round
from countdown_rl.training.grpo.trl_internals import Batch, RoundTrainer
from countdown_rl.training.options import TrainOptions


class Trainer(RoundTrainer):
    """``GRPOTrainer`` on the prompts of *rollouts*; *on_round* gets each round with its rewards and advantages."""

    def __init__(
        self,
        options: TrainOptions,
        rollouts: Rollouts,
        on_round: Callable[[int, Round], None],
        **kwargs: object,
    ) -> None:
        self.options, self.rollouts, self._on_round = options, rollouts, on_round
        self.advantage = advantages.advantage(options)
        self.own_loss = advantages.loss(options.loss) if options.loss else None
        super().__init__(rollout_func=rollouts, **kwargs)
        self.mask_truncated_completions = (
            False  # TRL recognizes only ends of one token; micro_batches masks instead
        )
        self.eos_token_ids = sorted(rollouts.stop.ids)
        # The gradient of a step is a sum over its rows, however they are cut into micro-batches.
        per_micro_batch = (
            self.args.entropy_coef or self.args.use_adaptive_entropy or self.aux_loss_enabled
        )
        self.sums_over_rows = bool(options.aggregation.sum_over and not per_micro_batch)
        self.skips_zero_advantage = self.sums_over_rows and self.beta == 0.0 and not options.loss
        self.ends_line = torch.empty(0, dtype=torch.bool)
        if "line_ends" in advantages.columns(self.advantage):
            count = ModelShape.of(self.model.config).vocab_size
            ends = ["\n" in rollouts.stop.tokenizer.decode([index]) for index in range(count)]
            self.ends_line = torch.tensor(ends, device=self.accelerator.device)  # (V,)

    def micro_batches(self, batch: Batch, sampled: Round) -> list[Batch]:
        gather, device, group = (
            self.accelerator.gather,
            self.accelerator.device,
            self.num_generations,
        )
        totals = gather(sampled.totals(self.rollouts.weights).to(device))  # (B of all processes,)
        if totals.isnan().all():
            raise UsageError("No reward function returned a number for any completion of a step.")
        self.log_metric(
            "equal_groups", advantages.equal(totals.view(-1, group)).float().mean().item()
        )
        if self.options.sampler or self.options.curriculum:
            sampled.outcomes = _outcomes(totals.view(-1, group), sampled)
        mask = batch["completion_mask"]
        if self.args.mask_truncated_completions:
            ended = torch.tensor(
                [not graded.sample.truncated for graded in sampled.graded], device=device
            )
            mask = mask * ended[:, None]
            batch |= {"completion_mask": mask, "num_items_in_batch": gather(mask.sum()).sum()}
        if self.multi_objective_aggregation == "sum_then_normalize":  # else by reward function
            batch["advantages"] = self._advantages(totals, batch | {"completion_mask": mask})
        means = batch["advantages"]
        if means.ndim > 1:
            means = means.sum(1) / mask.sum(1).clamp(min=1)
        for graded, mean in zip(sampled.graded, means.tolist(), strict=True):
            graded.advantage = mean
        self._on_round(self.state.global_step + 1, sampled)
        if batch["advantages"].ndim > 1:
            # Cut what follows the last advantage. Sequence-level ratios and the off-policy mask are means over it all.
            by_token = (
                self.importance_sampling_level == "token" and self.off_policy_mask_threshold is None
            )
            if by_token and self.skips_zero_advantage and self.options.aggregation.by_token:
                batch["completion_mask"] = mask * advantages.up_to_last(batch["advantages"])
        return self._cut(batch)

    def _advantages(self, totals: Tensor, batch: Batch) -> Tensor:
        """The advantages (B,), or (B, T) by token, of the completions of this process."""
        names = advantages.columns(self.advantage)
        if "line_ends" in names:
            batch["line_ends"] = self.ends_line[batch["completion_ids"]]
        rewards = (self._own(totals) if names else totals).view(-1, self.num_generations)
        tokens = {name: batch[name].view(*rewards.shape, -1) for name in names}
        values = advantages.compute(str(self.options.advantage), self.advantage, rewards, tokens)
        if values.ndim > 2:
            return values.flatten(0, 1) * batch["completion_mask"]
        return values.flatten() if names else self._own(values.flatten())

    def _own(self, values: Tensor) -> Tensor:
        """Of *values* (B of all processes,) those of this process."""
        return values.chunk(self.accelerator.num_processes)[self.accelerator.process_index]

    def _cut(self, batch: Batch) -> list[Batch]:
        """The rows of *batch* that have a gradient, in ``steps_per_generation`` micro-batches."""
        size = self.args.per_device_train_batch_size
        lengths = batch["completion_mask"].sum(1)  # (B,)
        live = torch.ones_like(lengths, dtype=torch.bool)  # has a gradient
        if self.skips_zero_advantage:
            live = batch["advantages"].reshape(len(lengths), -1).ne(0).any(1) & (lengths > 0)
        updates = self.args.steps_per_generation // self.args.gradient_accumulation_steps
        order = torch.randperm(len(lengths)) if updates > 1 else torch.arange(len(lengths))
        parts: list[Tensor] = []
        for update in order.tensor_split(updates):
            if self.sums_over_rows:
                rank = (live[update] * (lengths.max() + 1) + lengths[update]).cpu()
                # The rows that have a gradient come first, the longest of all.
                update = update[rank.argsort(descending=True, stable=True)]
            parts.extend(update.split(size))
        counts = torch.tensor([[int(live[rows].sum()) for rows in parts]], device=lengths.device)
        if self.accelerator.num_processes > 1:
            # TRL gathers a metric per row, and a backward pass needs all processes: each has as many rows as the most.
            counts = self.accelerator.gather(counts).amax(0, keepdim=True).clamp(min=1)
        filtered = [rows[:count] for rows, count in zip(parts, counts[0].tolist(), strict=True)]
        mean = self.options.aggregation.sum_over == "rows"
        multiple = 32 if lengths.is_cuda else 1  # a GPU chooses kernels anew for each length
        return [
            _selected(batch, rows, multiple) | {"share": len(rows) / size if mean else 1.0}
            for rows in filtered
        ]

    def compute_loss(
        self, model: torch.nn.Module, inputs: Batch, *args: object, **kwargs: object
    ) -> Tensor:
        if len(inputs["advantages"]) == 0:
            # A gradient of zero for all: the optimizer leaves out parameters without one.
            return (
                sum(parameter.sum() for parameter in model.parameters() if parameter.requires_grad)
                * 0.0
            )
        return super().compute_loss(model, inputs, *args, **kwargs) * inputs["share"]


def _outcomes(rewards: Tensor, sampled: Round) -> list[Outcome]:
    """The groups of a round in all processes; *rewards* (groups, generations)."""
    samples = [(graded.index, graded.sample) for graded in sampled.graded]
    completions = iter(
        gather_object([(row, bool(each.grade.correct), each.truncated) for row, each in samples])
    )
    outcomes = []
    for values in rewards.tolist():
        rows, correct, truncated = zip(*islice(completions, len(values)), strict=True)
        known = [
            None if reward != reward else reward for reward in values
        ]  # NaN differs from itself
        outcomes.append(Outcome(rows[0], known, correct, truncated))
    return outcomes


def _selected(batch: Batch, rows: Tensor, multiple: int) -> Batch:
    """The *rows* of *batch*, without columns in which none of them has a token, except to fill a *multiple*."""
    out = {key: value[rows] if value.ndim else value for key, value in batch.items()}
    prompt = {key: out.pop(key) for key in ("prompt_ids", "prompt_mask")}
    if len(rows):

        def columns(mask: Tensor) -> int:
            return -(-max(1, int(mask.sum(1).max())) // multiple) * multiple

        completion = columns(out["completion_mask"])
        out = {
            key: value[:, :completion] if value.ndim > 1 else value for key, value in out.items()
        }  # (B, T)
        prompt = {key: value[:, -columns(prompt["prompt_mask"]) :] for key, value in prompt.items()}
    return out | prompt
