"""Private parts of TRL's trainer: rounds of completions cut by us, and the correction for vLLM in the loss.

The public ways were considered:

* ``_prepare_inputs`` is where TRL shuffles a round and cuts it into micro-batches. ``training_step`` and
  ``compute_loss`` see one micro-batch only.
* ``_generate_and_score_completions`` gives the round itself; nothing public returns it.
* ``_metrics`` has the metrics of a round; the public ``log_metric`` is for reward functions alone.
* ``_last_loaded_step`` is set where TRL makes the engine itself, which would load other weights; ``use_vllm`` needs it.
* ``_get_per_token_logps_and_entropies`` has the log-probabilities for the ratio to vLLM's; without it TRL computes all
  rows of a round once more.
* ``_compute_loss`` is where a loss of the user's own replaces TRL's, between its checks and its scaling.
"""

import os
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from trl import GRPOTrainer
from trl.generation.vllm_generation import VLLMGeneration
from trl.trainer.utils import pad, use_adapter

from countdown_rl.training.grpo.rollouts import Round

PRIVATE = (
    "trl.GRPOTrainer._prepare_inputs",
    "trl.GRPOTrainer._generate_and_score_completions",
    "trl.GRPOTrainer._last_loaded_step",
    "trl.GRPOTrainer._get_per_token_logps_and_entropies",
    "trl.GRPOTrainer._metrics",
    "trl.GRPOTrainer._compute_loss",
)

Batch = dict[str, Any]

_MEAN_RATIO = "sampling/importance_sampling_ratio/mean"


class RoundTrainer(GRPOTrainer):
    """``GRPOTrainer`` with a method that cuts each round of completions into micro-batches."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        os.environ.setdefault(
            "TRL_EXPERIMENTAL_SILENCE", "1"
        )  # it warns that rollout_func may change
        super().__init__(*args, **kwargs)
        self.waiting: list[Batch] = []
        self.corrects_in_loss = False
        self.scored: Batch | None = None
        self.adapter_is_new = kwargs.get("peft_config") is not None

    def micro_batches(self, batch: Batch, sampled: Round) -> list[Batch]:
        """*batch*, the round *sampled* as tensors, as ``steps_per_generation`` micro-batches in order of use."""
        raise NotImplementedError

    own_loss: Callable[..., torch.Tensor] | None = None

    def log_metric(self, name: str, value: float) -> None:
        """Log the metric *name* of a round."""
        self._metrics["train"][name].append(value)

    def _prepare_inputs(self, generation_batch: list[Batch]) -> Batch:
        if not self.waiting:
            batch = self._generate_and_score_completions(generation_batch)
            sampled: Round = generation_batch[0]["round"]  # TRL adds the columns of `rollout_func`
            self.log_metric("seconds_generation", sampled.generation)
            self.log_metric("seconds_reward", sampled.reward)
            if sampled.attempts is not None:
                self.log_metric("draws", float(sampled.attempts))
            if "importance_sampling_ratio" in batch:
                difference, mask = self._difference(batch, batch["old_per_token_logps"])
                by_token = batch["importance_sampling_ratio"].shape[1] > 1
                self._metrics["train"].pop(_MEAN_RATIO)  # taken after the cap
                self._log_ratio(difference.exp()[mask] if by_token else difference.sum(1).exp())
            self.waiting = self.micro_batches(batch, sampled) * self.num_iterations
        return self.waiting.pop(0)

    def _difference(self, batch: Batch, logps: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """*logps* less those of the engine, 0 where it has none, and the mask of the completions; (B, T)."""
        mask = batch["completion_mask"].bool()
        return (logps - batch["sampling_per_token_logps"]).nan_to_num() * mask, mask

    def _log_ratio(self, ratio: torch.Tensor) -> None:
        """Log the mean of *ratio*, before its cap, which would hide a mean above it."""
        self.log_metric(_MEAN_RATIO, self.accelerator.gather(ratio.mean()).nanmean().item())

    @torch.no_grad()
    def divergence(self, prompts: list[list[int]], completions: list[list[int]]) -> list[float]:
        """The KL divergence from the initial policy, summed over the tokens of each completion; [] if not in memory."""
        model = self.accelerator.unwrap_model(self.model)
        start = "ref" if "ref" in getattr(model, "peft_config", ()) else None
        if not prompts or (self.ref_model is None and not (start or self.adapter_is_new)):
            return []
        columns = []
        for rows, side in ((prompts, "left"), (completions, "right")):
            ids = [torch.tensor(row, device=self.accelerator.device) for row in rows]
            masks = [torch.ones_like(row) for row in ids]
            columns.append(
                (pad(ids, self.processing_class.pad_token_id, side), pad(masks, 0, side))
            )
        (_, _), (_, present) = columns
        ids, mask = (torch.cat(parts, 1) for parts in zip(*columns, strict=True))
        settings = (ids, mask, present.shape[1], self.args.per_device_train_batch_size)
        self.model.eval()
        logps, _, _ = self._get_per_token_logps_and_entropies(self.model, *settings)
        with nullcontext() if self.ref_model is not None else use_adapter(model, start):
            reference, _, _ = self._get_per_token_logps_and_entropies(
                self.ref_model or self.model, *settings
            )
        self.model.train()
        difference = (
            reference - logps
        )  # k3 of Schulman 2020, "Approximating KL Divergence", as in the loss
        return ((difference.exp() - difference - 1) * present).sum(1).tolist()

    def use_engine(self, engine: VLLMGeneration) -> None:
        """Let *engine* complete the prompts, and correct the loss for its difference from the policy."""
        self.use_vllm, self.vllm_generation, self._last_loaded_step = True, engine, -1
        # The policy of the loss is the one that the engine has, if a round is one step.
        one_step = (
            self.args.gradient_accumulation_steps
            % (self.args.steps_per_generation * self.num_iterations)
            == 0
        )
        by_token = self.vllm_importance_sampling_mode == "token_truncate"
        self.corrects_in_loss = self.vllm_importance_sampling_correction and one_step and by_token
        self.vllm_importance_sampling_correction &= not self.corrects_in_loss

    def compute_loss(
        self, model: torch.nn.Module, inputs: Batch, *args: object, **kwargs: object
    ) -> torch.Tensor:
        if not self.corrects_in_loss:
            return super().compute_loss(model, inputs, *args, **kwargs)
        self.scored, self.vllm_importance_sampling_correction = inputs, True
        try:
            return super().compute_loss(model, inputs, *args, **kwargs)
        finally:
            self.scored, self.vllm_importance_sampling_correction = None, False

    def _get_per_token_logps_and_entropies(
        self, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        logps, entropies, auxiliary = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if self.scored is not None:
            difference, mask = self._difference(self.scored, logps.detach())
            ratio = difference.exp()
            low, high = (
                self.vllm_importance_sampling_clip_min,
                self.vllm_importance_sampling_clip_max,
            )
            self.scored["importance_sampling_ratio"] = ratio.clamp(low, high)
            self._log_ratio(ratio[mask])
        return logps, entropies, auxiliary

    def _compute_loss(self, model: torch.nn.Module, inputs: Batch) -> torch.Tensor:
        """TRL's loss, or the sum of the user's own per token, and of the KL divergence, over the tokens of the step."""
        if self.own_loss is None:
            return super()._compute_loss(model, inputs)
        mask = inputs["completion_mask"]  # (B, T), as all that follows
        ids, present = (
            torch.cat((inputs[f"prompt_{key}"], inputs[f"completion_{key}"]), 1)
            for key in ("ids", "mask")
        )
        logps, entropies, _ = self._get_per_token_logps_and_entropies(
            model, ids, present, mask.shape[1], compute_entropy=True
        )
        advantages, old = inputs["advantages"], inputs.get("old_per_token_logps")
        old = logps.detach() if old is None else old
        advantages = advantages if advantages.ndim > 1 else advantages[:, None].expand_as(mask)
        losses = self.own_loss(logps, old, advantages, mask)
        if self.use_vllm and self.vllm_importance_sampling_correction:
            losses = losses * inputs["importance_sampling_ratio"]
        metrics = {"entropy": entropies}
        if self.beta:
            difference = inputs["ref_per_token_logps"] - logps
            ratio = (logps - old).exp() if self.args.use_bias_correction_kl else 1.0
            metrics["kl"] = (difference.exp() - difference - 1) * ratio
            losses = losses + self.beta * metrics["kl"]
        for name, values in metrics.items():
            sums = torch.stack(((values * mask).sum(), mask.sum().float())).detach()
            total, count = self.accelerator.reduce(sums, reduction="sum").tolist()
            self.log_metric(name, total / max(count, 1.0))
        steps = self.args.steps_per_generation / self.current_gradient_accumulation_steps
        tokens = (
            inputs["num_items_in_batch"].clamp(min=1.0) / self.accelerator.num_processes / steps
        )
        return (losses * mask).sum() / tokens

    def sync_engine(self) -> None:
        """Send the weights to the engine unless it has them, for an evaluation; before each round TRL does so."""
        if self.state.global_step != self._last_loaded_step:
            self.vllm_generation.sync_weights()
            self._last_loaded_step = self.state.global_step
