"""TRL's GRPO trainer, made faster on small machines.

The loss of a micro-batch and its gradient are TRL's. The differences, beside those of
:func:`countdown_rl.training.weights.make_trainer`:

* completions are those of :mod:`countdown_rl.training.rollouts`;
* without a discount, groups with equal rewards have an advantage of exactly zero, where TRL leaves the rounding of
  their mean;
* rows with zero advantage, which add nothing to the gradient unless there is a KL or entropy term, are left out of the
  forward and backward passes; the loss is normalised as if they were there, but the logged entropy, KL and clip
  ratios are means over the rows that are left;
* the rows of an optimiser step are sorted by length, where TRL shuffles them, and each micro-batch is cut to its
  longest row. A sum over rows stays the same (LoRA dropout draws other masks). Where a micro-batch has a mean over its
  tokens (``bnpo``, an entropy bonus, experts), rows are neither sorted nor left out;
* so ``top_entropy_quantile`` takes its quantile over the tokens of the rows that are left, of about equal length,
  where TRL takes it over those of a random part of all rows;
* with a discount below 1 each line of a completion has its own advantage: the reward, discounted by the lines after
  it, less the mean over its group at the same line, so that of a search that succeeds the last lines are reinforced
  most;
* the baseline may be that of RLOO;
* groups that are all right or all wrong may be drawn again;
* the prompt of a group may be computed once, see :mod:`countdown_rl.training.shared_prompts`;
* the seconds of generation, rewards and loss are logged.
"""

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from countdown_rl.core.errors import UsageError
from countdown_rl.models.shape import ModelShape
from countdown_rl.training import advantages
from countdown_rl.training.config import LOSSES, TrainOptions
from countdown_rl.training.rollouts import Rollouts, Round
from countdown_rl.training.shared_prompts import SharedPrompts
from countdown_rl.training.trl_internals import Batch, RoundTrainer

#: Losses that sum over the tokens of a step and divide by their number, and those of them that are by token alone.
SUMS = tuple(name for name, loss in LOSSES.items() if loss.sum_over == "step")
BY_TOKEN = tuple(name for name, loss in LOSSES.items() if loss.by_token)
#: Losses that average over the rows of a micro-batch: scaled for the rows left out.
MEANS = tuple(name for name, loss in LOSSES.items() if loss.sum_over == "rows")

_PROMPT = ("prompt_ids", "prompt_mask")
_COMPLETION = (
    "advantages",  # (B,), or (B, T) with a discount
    "completion_ids",
    "completion_mask",
    "old_per_token_logps",
    "ref_per_token_logps",
    "sampling_per_token_logps",
    "importance_sampling_ratio",  # (B, T), or (B, 1) at sequence level
)


class Trainer(RoundTrainer):
    """``GRPOTrainer`` for the data set of :class:`countdown_rl.training.rollouts.Rollouts`."""

    def __init__(self, options: TrainOptions, rollouts: Rollouts, **kwargs: Any) -> None:
        self.options, self.rollouts = options, rollouts
        super().__init__(rollout_func=rollouts, **kwargs)
        self.mask_truncated_completions = False  # TRL recognises only ends of one token; micro_batches masks instead
        self.shared = SharedPrompts(self.model) if options.share_prompts else None
        self.eos_token_ids = sorted(rollouts.stop.ids)
        self.ends_line = torch.empty(0, dtype=torch.bool)
        if options.discount < 1:
            count = ModelShape.of(self.model.config).vocab_size
            ends = ["\n" in rollouts.stop.tokenizer.decode([index]) for index in range(count)]
            self.ends_line = torch.tensor(ends, device=self.accelerator.device)  # (V,)

    def micro_batches(self, batch: Batch, sampled: Round) -> list[Batch]:
        gather, options, device = self.accelerator.gather, self.options, self.accelerator.device
        rewards = [
            [torch.nan if (value := graded.rewards[name]) is None else value for name in self.reward_func_names]
            for graded in sampled.graded
        ]
        totals = advantages.total(gather(torch.tensor(rewards, device=device)), self.reward_weights)  # (B of all,)
        if totals.isnan().all():
            raise UsageError(
                "No reward function returned a number for any completion of a step; return one where it applies, or "
                "add another --reward."
            )
        equal = advantages.equal(totals, self.num_generations)
        self.log_metric("equal_groups", equal.float().mean().item())
        factors = torch.ones_like(totals)
        if options.baseline == "leave-one-out":
            factors = advantages.leave_one_out(totals, self.num_generations)
        if self.multi_objective_aggregation == "sum_then_normalize":  # else by reward function
            factors = factors.masked_fill(equal, 0.0)
        totals, factors = (
            part.chunk(self.accelerator.num_processes)[self.accelerator.process_index] for part in (totals, factors)
        )
        mask = batch["completion_mask"]
        if self.args.mask_truncated_completions:
            ended = torch.tensor([not graded.sample.truncated for graded in sampled.graded], device=device)
            mask = mask * ended[:, None]
            batch |= {"completion_mask": mask, "num_items_in_batch": gather(mask.sum()).sum()}
        if options.discount < 1:
            batch["advantages"] = advantages.discounted(
                totals,
                mask,
                self.ends_line[batch["completion_ids"]],
                options.discount,
                group=self.num_generations,
                leave_one_out=options.baseline == "leave-one-out",
            )
            # Cut what follows the last advantage. Sequence-level ratios and the off-policy mask are means over it all.
            by_token = self.importance_sampling_level == "token" and self.off_policy_mask_threshold is None
            if by_token and self.skips_zero_advantage and self.loss_type in BY_TOKEN:
                batch["completion_mask"] = mask * advantages.up_to_last(batch["advantages"])
        else:
            batch["advantages"] = batch["advantages"] * factors
        return self._cut(batch)

    def _cut(self, batch: Batch) -> list[Batch]:
        """The rows of *batch* that have a gradient, in ``steps_per_generation`` micro-batches."""
        size = self.args.per_device_train_batch_size
        lengths = batch["completion_mask"].sum(1)  # (B,)
        live = lengths >= 0
        if self.skips_zero_advantage:
            live = batch["advantages"].reshape(len(lengths), -1).ne(0).any(1) & (lengths > 0)
        updates = self.args.steps_per_generation // self.args.gradient_accumulation_steps
        order = torch.randperm(len(lengths)) if updates > 1 else torch.arange(len(lengths))
        parts: list[Tensor] = []
        for update in order.tensor_split(updates):
            if self.sums_over_rows:
                rank = live[update].long().cpu()
                if not self.shared:  # which keeps the completions of a prompt together
                    rank = rank * (lengths.max() + 1).cpu() + lengths[update].cpu()
                update = update[rank.argsort(descending=True, stable=True)]  # the live ones first, the longest of all
            parts.extend(update.split(size))
        counts = self._equal_counts([int(live[rows].sum()) for rows in parts])
        kept = [rows[:count] for rows, count in zip(parts, counts, strict=True)]
        mean = self.loss_type in MEANS
        return [_selected(batch, rows) | {"share": len(rows) / size if mean else 1.0} for rows in kept]

    def _equal_counts(self, counts: list[int]) -> list[int]:
        """The maximum of *counts* over all processes, by micro-batch.

        TRL gathers one figure per row, and a backward pass needs all processes, so none may keep fewer rows.
        """
        if self.accelerator.num_processes == 1:
            return counts
        own = torch.tensor([counts], device=self.accelerator.device)
        return self.accelerator.gather(own).max(0).values.clamp(min=1).tolist()

    @property
    def sums_over_rows(self) -> bool:
        """True if the gradient of a step is a sum over its rows, however they are cut into micro-batches.

        A quantile of entropies is taken to be one too; see the head of this module.
        """
        per_micro_batch = self.args.entropy_coef or self.args.use_adaptive_entropy or self.aux_loss_enabled
        return not per_micro_batch and self.loss_type in (*SUMS, *MEANS)

    @property
    def skips_zero_advantage(self) -> bool:
        """True if rows with zero advantage add nothing to the gradient."""
        return self.beta == 0.0 and self.sums_over_rows

    def compute_loss(self, model: Any, inputs: Batch, *args: Any, **kwargs: Any) -> Tensor:
        if len(inputs["advantages"]) == 0:
            # A gradient of zero for all: the optimiser leaves out parameters without one.
            return sum(parameter.sum() for parameter in model.parameters() if parameter.requires_grad) * 0.0
        packing = self.shared.packed(inputs["prompt_ids"].shape[1]) if self.shared else nullcontext()
        with packing:
            return super().compute_loss(model, inputs, *args, **kwargs) * inputs["share"]


def _selected(batch: Batch, rows: Tensor) -> Batch:
    """The *rows* of *batch*, without columns in which none of them has a token."""
    out = {key: value[rows] if value.ndim else value for key, value in batch.items()}
    if len(rows):
        prompt = int(out["prompt_mask"].sum(1).max())
        completion = max(1, int(out["completion_mask"].sum(1).max()))
        out |= {key: out[key][:, -prompt:] for key in _PROMPT}
        out |= {key: out[key][:, :completion] for key in _COMPLETION if key in out and out[key].ndim > 1}
    return out
