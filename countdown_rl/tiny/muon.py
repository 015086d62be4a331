"""Muon for the matrices, AdamW for everything else, as one optimiser that a trainer can drive.

Muon orthogonalises each momentum matrix (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon);
with its step scaled to AdamW's (Moonshot AI, arXiv:2502.16982) one learning rate serves both.
"""

from collections.abc import Callable
from typing import Any

import torch


class Muon(torch.optim.Optimizer):
    """``torch.optim.Muon`` on the weight matrices of *model*'s layers, AdamW on embeddings, norms and biases."""

    def __init__(self, model: Any, *, lr: float, weight_decay: float) -> None:
        matrices: list[Any] = []
        others: list[Any] = []
        kept_apart = {id(model.get_input_embeddings().weight)}
        if model.get_output_embeddings() is not None:
            kept_apart.add(id(model.get_output_embeddings().weight))
        for parameter in model.parameters():
            if parameter.requires_grad:
                (matrices if parameter.ndim == 2 and id(parameter) not in kept_apart else others).append(parameter)
        self._parts = [
            torch.optim.Muon(matrices, lr=lr, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, lr=lr, betas=(0.9, 0.98), weight_decay=0.0),
        ]
        # The groups are shared, not copied: a scheduler that sets their rates here sets the parts' too.
        super().__init__([group for part in self._parts for group in part.param_groups], {})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:
        """One step of both parts."""
        for part in self._parts:
            part.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for part in self._parts:
            part.zero_grad(set_to_none)
