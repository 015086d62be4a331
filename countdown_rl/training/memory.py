"""Memory of a run by arithmetic: weights, what is trained, and the cache of generation.

What the loss keeps for its backward pass depends on the device and the architecture, and is not
computed: a micro-batch that does not fit is halved by :func:`countdown_rl.training.run.train`.
"""

import os
from dataclasses import asdict, dataclass
from math import prod

import torch

from countdown_rl.models import load, nf4
from countdown_rl.models.shape import ModelShape

#: Bytes per NF4 weight: 4 bits, one byte of scale per 64, and four per 256 of these scales.
NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)


@dataclass(frozen=True)
class Memory:
    """Bytes that a process of a run holds beside what the loss keeps for its backward pass."""

    trainable: int  # parameters
    weights: int  # as they compute; beside trained ones in fp32 these are copies
    states: int  # trained parameters, their gradients and Adam's two moments in fp32
    cache: int  # keys and values of a round of completions
    device_memory: int  # of the GPU, or main memory

    @property
    def checkpoint(self) -> int:
        """Bytes of a checkpoint on disk: fp32 weights and the two moments."""
        return 12 * self.trainable

    @property
    def total(self) -> int:
        """The sum of the parts."""
        return self.weights + self.states + self.cache

    def as_dict(self) -> dict[str, int]:
        """The values that ``--check --json`` prints."""
        return asdict(self) | {"total": self.total, "checkpoint": self.checkpoint}


def of_run(
    loaded: load.Loaded, adapted: torch.nn.Module, *, sequences: int = 0, length: int = 0
) -> Memory:
    """Return the memory of a run.

    Args:
        loaded: the skeleton of the model.
        adapted: the same with what is trained.
        sequences: completions that a process samples at a time.
        length: tokens of the longest prompt and completion together.
    """
    model = loaded.model
    device = torch.device(load.device_name("auto"))
    width = load.compute_dtype(loaded.precision, device, model).itemsize
    parameters = model.num_parameters()
    weights = parameters * width
    if loaded.precision == "nf4" and device.type == "cuda":
        in_4_bits = sum(prod(layer.weight.shape) for layer in nf4.linears(model).values())
        weights -= round(in_4_bits * (width - NF4_BYTES))
    trainable = sum(weight.numel() for weight in adapted.parameters() if weight.requires_grad)
    shape = ModelShape.of(model.config)
    cache = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * width
    return Memory(
        trainable=trainable,
        weights=weights,
        states=16 * trainable,
        cache=cache * sequences * length,
        device_memory=_device_memory(device),
    )


def _device_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
