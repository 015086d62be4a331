"""Estimate of the memory of a training run, from the shapes of the model alone.

Weights, gradients and optimizer states are counted. What is kept for the backward pass is estimated after Korthikanti
et al. 2022 (arXiv:2205.05198), section 4, adapted to gated blocks, fused attention with a mask, and LoRA pairs. Every
process is taken to hold all weights, as in DDP.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from math import prod
from typing import Any, TypeVar

import torch
from transformers import PreTrainedModel

from countdown_rl.inference import generate, graph_decoder
from countdown_rl.models import load, nf4
from countdown_rl.models.shape import ModelShape
from countdown_rl.training.options import MAX_GPU_MICRO_BATCH, TuningOptions

Tuning = TypeVar("Tuning", bound=TuningOptions)

#: Bytes per NF4 weight: 4 bits, one byte of scale per 64, and four per 256 of these scales.
NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
#: Entries of the vocabulary of which TRL computes logits at a time, on a CPU (whose cache then holds some hundred
#: tokens) and on a GPU, and the tokens.
CPU_TILE, _GPU_TILE, _TILE_TOKENS = 4_096, 32_768, 4_096
#: A run should find its estimate times the first, and so many bytes for CUDA and fragments.
_MARGIN_SHARE, _MARGIN = 1.1, 2**30


@dataclass(frozen=True)
class Estimate:
    """Bytes per process on *device* ("cuda", "mps" or "cpu"). Generation and loss alternate; ``engine`` is vLLM."""

    device: str
    weights: int
    adapter: int
    gradients: int
    optimiser: int
    generation: int
    loss: int
    engine: int = 0

    @property
    def training(self) -> int:
        """The maximum without vLLM."""
        return (
            self.weights
            + self.adapter
            + self.gradients
            + self.optimiser
            + max(self.generation, self.loss)
        )

    @property
    def peak(self) -> int:
        """The maximum at any time."""
        return self.training + self.engine

    def as_dict(self) -> dict[str, object]:
        """All parts and the peak, for ``--json``."""
        return asdict(self) | {"peak": self.peak}


@dataclass(frozen=True)
class Memory:
    """The estimated memory of a run."""

    trainable: int  # parameters
    estimates: list[
        Estimate
    ]  # for the device of this machine and, where that is another one, for CUDA, the last
    available: int | None  # bytes of the device of this machine, if known
    free: int | None = None  # those of a GPU that are not in use
    plain: bool = False  # a GPU holds NF4 values in plain layers, which fit

    @property
    def checkpoint(self) -> int:
        """Bytes of a checkpoint on disk: fp32 weights and the optimizer's two states."""
        return 12 * self.trainable

    @property
    def fits(self) -> bool | None:
        """True if the run fits the memory of this machine with a margin; None if that is not known."""
        return (
            None
            if self.available is None
            else self._holds(self.estimates[0].training, self.available)
        )

    @property
    def keeps_caches(self) -> bool:
        """True if the caches of generation fit beside the loss, with the margin of :attr:`fits`."""
        estimate = self.estimates[0]
        return self._holds(
            estimate.training + min(estimate.generation, estimate.loss), self.available or 0
        )

    def _holds(self, needed: int, available: int) -> bool:
        return (
            _MARGIN_SHARE * needed + self.estimates[0].engine + _MARGIN <= available
        )  # vLLM keeps to its share

    def as_dict(self) -> dict[str, object]:
        """The values that ``--check --json`` prints."""
        values = {
            "trainable": self.trainable,
            "checkpoint": self.checkpoint,
            "device_memory": self.available,
        }
        return values | {
            "fits": self.fits,
            "memory": [estimate.as_dict() for estimate in self.estimates],
        }


def plan(
    model: PreTrainedModel,
    adapted: PreTrainedModel,
    options: TuningOptions,
    precision: str,
    *,
    vllm: float | None = None,  # its share of the GPU, if it completes the prompts
    **sizes: Any,  # those of :func:`estimate`
) -> Memory:
    """The memory of a run of *options* on the skeleton *model* in *precision*, *adapted* with what is trained."""
    device = load.device_name("auto").partition(":")[0]
    memory = _device_memory(device)
    trainable = sum(
        parameter.numel() for parameter in adapted.parameters() if parameter.requires_grad
    )

    def planned(*, in_4_bits: bool) -> Memory:
        estimates = []
        for kind in dict.fromkeys((device, "cuda")):
            shared = {"device": kind, "width": forward_width(precision, kind, model), **sizes}
            packed = in_4_bits and kind == "cuda"
            estimates.append(estimate(model, options, trainable, in_4_bits=packed, **shared))
        if vllm is not None:
            estimates[-1] = replace(estimates[-1], generation=0, engine=int(vllm * (memory or 0)))
        return Memory(trainable, estimates, memory, _free_memory(device), plain=not in_4_bits)

    plain = planned(in_4_bits=False)
    return (
        planned(in_4_bits=True)
        if precision == "nf4" and not (device == "cuda" and plain.fits)
        else plain
    )


def with_micro_batch(
    options: Tuning, processes: int, plan: Callable[[Tuning], tuple[str, Memory]]
) -> Tuning:
    """*options* with the largest micro-batch that fits a GPU, if left open; *plan* returns engine and memory."""
    if options.micro_batch or not torch.cuda.is_available():
        return options
    engine, _ = plan(options)
    for size in range(MAX_GPU_MICRO_BATCH, 0, -1):
        if options.step_size % (size * processes) == 0:
            sized = replace(options, micro_batch=size)
            chosen, memory = plan(sized)
            if chosen == engine and memory.fits:
                return sized
    return options


def estimate(
    model: PreTrainedModel,
    options: TuningOptions,
    trainable: int,
    *,
    device: str,
    in_4_bits: bool,  # linear layers are held in NF4, which only CUDA does
    width: int,  # bytes per number in the forward pass
    length: int,  # tokens of the longest sequence
    scored: int,  # those of which the loss is computed
    sequences: int = 0,  # generated at a time
    prompts: int = 0,  # distinct ones of these
    reference: bool = False,  # a run that trains all weights keeps the initial model too
) -> Estimate:
    """The memory of a process of a run of *options* on *model*, which needs no weights."""
    shape, total = ModelShape.of(model.config), model.num_parameters()
    layers = sum(prod(layer.weight.shape) for layer in nf4.linears(model).values())
    if options.tune == "all":  # with copies of the layers for autocast, and the initial model
        weights, adapter = total * (4 + width * reference) + (width * layers if width < 4 else 0), 0
    else:
        weights = round((total - layers) * width + layers * (NF4_BYTES if in_4_bits else width))
        adapter = 4 * trainable

    # The decoders of this package read a prompt once.
    read = prompts if device == "cpu" or graph_decoder.supports(model) else sequences
    sizes = (shape, sequences, length - scored, scored)
    gpu = device == "cuda"
    generation = generate.batch_memory(
        *sizes, width=width, gpu=gpu, read=read, lora=options.tune == "lora"
    )
    generation += (
        width * layers if device == "cpu" and sequences else 0
    )  # a copy for the CPU decoder

    tokens = options.per_device_batch * length
    loss = tokens * kept_by_block(model, options, width, length, autocast=gpu)
    if options.gradient_checkpointing:
        loss += shape.num_layers * tokens * shape.hidden_size * width
    else:
        loss *= shape.num_layers
    # TRL sums the gradients of the head and of its input in fp32, beside a tile of logits.
    scored *= options.per_device_batch
    tile = min(shape.vocab_size, CPU_TILE if device == "cpu" else _GPU_TILE)
    loss += 4 * shape.hidden_size * (scored + (shape.vocab_size if options.tune == "all" else 0))
    loss += (width if gpu else 4) * min(scored, _TILE_TOKENS) * tile
    return Estimate(device, weights, adapter, 4 * trainable, 8 * trainable, generation, loss)


def kept_by_block(
    model: PreTrainedModel, options: TuningOptions, width: int, length: int, *, autocast: bool
) -> int:
    """Bytes per token that one block of *model* keeps for the backward pass.

    A frozen base keeps no inputs of its layers; each LoRA pair keeps its own, in *width* bytes per number with
    *autocast* (as on CUDA), else in fp32. The mask of attention has *length* numbers for each token.
    """
    shape, lora = ModelShape.of(model.config), options.tune == "lora"
    hidden, inner, queries = (
        shape.hidden_size,
        shape.intermediate_size,
        shape.num_heads * shape.head_dim,
    )
    has_head_norms = any(name.endswith("q_norm") for name, _ in model.named_modules())  # as Qwen3
    normed = (shape.num_heads + shape.num_kv_heads) * shape.head_dim if has_head_norms else 0
    kept = 4 * (2 * hidden + normed)  # norms, computed in fp32
    kept += (4 * queries + length) * width  # q, repeated k and v, output; the mask
    kept += 3 * inner * width  # gate, its activation, up
    pair = width if autocast or not lora else 4
    if pair == width and not (lora and options.lora_dropout):
        kept += (
            2 * hidden + inner
        ) * width  # an input of several layers is kept once, and that of o counted above
    else:
        mask = (1 if autocast else 4) if options.lora_dropout else 0
        kept += (5 * hidden + queries + inner) * (
            pair + mask
        )  # of q, k, v, gate and up; of o; of down
    if (
        not lora
    ):  # norms keep what they scale, in fp32; autocast copies the input of q, k, v, gate and up
        kept += 8 * hidden + width * normed + (0 if width == 4 else 3 * width * hidden)
    return kept


def forward_width(precision: str, device: str, skeleton: PreTrainedModel) -> int:
    """Bytes per number in the forward pass on *device*; a CUDA GPU that is not in this machine has bf16."""
    if device == "cuda" and not torch.cuda.is_available():
        return 4 if precision == "fp32" else 2
    return int(load.compute_dtype(precision, torch.device(device), skeleton).itemsize)


def _device_memory(device: str) -> int | None:
    return int(torch.cuda.mem_get_info()[1]) if device == "cuda" else generate.main_memory()


def _free_memory(device: str) -> int | None:
    return (
        int(torch.cuda.mem_get_info()[0])
        if device == "cuda" and torch.cuda.is_available()
        else None
    )
