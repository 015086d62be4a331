"""A loss of the user's own in place of TRL's."""

import torch
from torch import Tensor

from countdown_rl.core import user_code
from countdown_rl.core.errors import UsageError
from countdown_rl.training.grpo.policy import Batch, PolicyTrainer


class OwnLoss:
    """The function *name*, ``f(logps, old_logps, advantages, mask) -> losses``, all (B, T)."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.function = user_code.imported(name)

    def __call__(self, trainer: PolicyTrainer, model: torch.nn.Module, inputs: Batch) -> Tensor:
        """Return the sum of the loss and of the KL divergence over the tokens of the step."""
        mask = inputs["completion_mask"]  # (B, T), as all that follows
        logps, entropies = trainer.scores(model, inputs, compute_entropy=True)
        old = inputs.get("old_per_token_logps", logps.detach())
        advantage = inputs["advantages"]
        if advantage.ndim == 1:
            advantage = advantage[:, None].expand_as(mask)

        losses = self.losses(logps, old, advantage, mask)
        if "importance_sampling_ratio" in inputs:
            losses = losses * inputs["importance_sampling_ratio"]
        noted = {"entropy": entropies}
        if trainer.beta:
            difference = inputs["ref_per_token_logps"] - logps
            ratio = (logps - old).exp() if trainer.args.use_bias_correction_kl else 1.0
            noted["kl"] = (difference.exp() - difference - 1) * ratio
            losses = losses + trainer.beta * noted["kl"]

        for name, values in noted.items():
            sums = torch.stack(((values * mask).sum(), mask.sum().float())).detach()
            total, count = trainer.accelerator.reduce(sums, reduction="sum").tolist()
            trainer.metrics[name].append(total / max(count, 1.0))
        tokens = inputs["num_items_in_batch"].clamp(min=1.0) / trainer.accelerator.num_processes
        return (losses * mask).sum() / tokens

    def losses(self, *columns: Tensor) -> Tensor:
        """Return the losses of the function for copies of *columns*, checked."""
        with user_code.running(f"loss {self.name}"):
            losses = self.function(*(column.clone() for column in columns))
        is_loss = isinstance(losses, Tensor) and losses.requires_grad
        if not is_loss or losses.shape != columns[0].shape:
            raise UsageError(
                f"The loss {self.name} should return a tensor of the shape of logps, computed from "
                "them."
            )
        return losses
