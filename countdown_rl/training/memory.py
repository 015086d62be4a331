"""Estimate of the memory of a training run, from the shapes of the model alone.

Weights, gradients and optimiser states are counted; what is kept for the backward pass is estimated, after Korthikanti
et al. 2022 (arXiv:2205.05198), section 4, adapted to gated blocks, to fused attention with a mask, which keeps no
scores but keys and values repeated for every query head, and to a LoRA pair on every linear layer. The peak adds the
larger of two parts that do not overlap in time: the key-value cache of generation, in GRPO, and the loss.
"""

from dataclasses import asdict, dataclass
from math import prod
from typing import Any

from countdown_rl.inference import generate
from countdown_rl.models import load
from countdown_rl.models.shape import ModelShape
from countdown_rl.training.config import TuningOptions

#: Bytes per NF4 weight: 4 bits, one byte of scale per 64, and four per 256 of these scales.
NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
#: Bytes per trained weight, its gradient and each of its two optimiser states.
_TRAINED = 4
#: Tokens and entries of the vocabulary of the logits that TRL computes at a time.
_TILE = (4_096, 32_768)
#: The same entries on a CPU, whose cache then holds the logits of some hundred tokens.
CPU_TILE = 4_096
#: Copies of the fp32 logits in sampling: raw, warped, softmax.
_SAMPLING = 3
#: The memory that a run should find: its estimate times the first, and the second in bytes for CUDA and fragments.
_MARGIN_SHARE, _MARGIN = 1.1, 2**30


@dataclass(frozen=True)
class Estimate:
    """Bytes per process. ``device`` is "cuda", "mps" or "cpu".

    ``engine`` is vLLM. ``generation`` is the key-value cache of the completions and the weights that are gathered or,
    on a CPU, copied for them.
    """

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
        """The maximum without vLLM: generation and loss alternate."""
        return self.weights + self.adapter + self.gradients + self.optimiser + max(self.generation, self.loss)

    @property
    def peak(self) -> int:
        """The maximum at any time."""
        return self.training + self.engine

    def as_dict(self) -> dict[str, Any]:
        """All parts and the peak, for ``--json``."""
        return asdict(self) | {"peak": self.peak}


@dataclass(frozen=True)
class Memory:
    """The estimated memory of a run.

    Attributes:
        trainable: parameters that are trained.
        estimates: for the device of this machine and, where that is another one, for CUDA: the last is for CUDA.
        available: bytes that the device of this machine has, where that is known.
        checkpoint: bytes of a checkpoint on disk.
    """

    trainable: int
    estimates: list[Estimate]
    available: int | None
    checkpoint: int = 0

    @property
    def spare(self) -> float | None:
        """Bytes of this machine's memory that the run leaves, with a margin; None where its memory is not known."""
        estimate = self.estimates[0]
        needed = _MARGIN_SHARE * estimate.training + estimate.engine  # vLLM takes no more than it is given
        return None if self.available is None else self.available - needed - _MARGIN

    @property
    def fits(self) -> bool | None:
        """True if the run fits the memory of this machine; None where that is not known."""
        return None if self.spare is None else self.spare >= 0

    def as_dict(self) -> dict[str, Any]:
        """The values that ``--check --json`` prints."""
        memory = [estimate.as_dict() for estimate in self.estimates]
        values = {"trainable": self.trainable, "checkpoint": self.checkpoint, "device_memory": self.available}
        return values | {"fits": self.fits, "memory": memory}


def plan(model: Any, adapted: Any, options: TuningOptions, precision: str, **sizes: Any) -> Memory:
    """The memory of a run of *options* on the skeleton *model*, which is *adapted* with what is trained.

    Args:
        precision: that of the base.
        sizes: those of :func:`estimate` that the options do not name.
    """
    device = load.device_name("auto").partition(":")[0]
    trainable = sum(parameter.numel() for parameter in adapted.parameters() if parameter.requires_grad)
    estimates = []
    for kind in dict.fromkeys((device, "cuda")):
        width, nf4 = forward_width(precision, kind, model), kind == "cuda" and precision == "nf4"
        estimates.append(estimate(model, options, trainable, device=kind, nf4=nf4, width=width, **sizes))
    return Memory(trainable, estimates, _device_memory(device), checkpoint=3 * _TRAINED * trainable)


def estimate(
    model: Any,
    options: TuningOptions,
    trainable: int,
    *,
    device: str,
    nf4: bool,
    width: int,
    length: int,
    scored: int,
    sequences: int = 0,
    shards: int = 1,
    zero: int = 0,
    reference: bool = False,
) -> Estimate:
    """The memory of a process of a run of *options* on *model*, which needs no weights.

    Args:
        trainable: parameters that are trained.
        nf4: linear layers are held in 4 bits, which only CUDA does.
        width: bytes per number in the forward pass, 2 or 4.
        length: tokens of the longest sequence, of which the loss is computed on *scored*.
        sequences: those that are generated at a time.
        shards: processes that share gradients and optimiser states and, but for ZeRO-2, weights.
        zero: the stage of DeepSpeed's ZeRO, which holds trained weights in the type of the forward pass, and an fp32
            copy beside the optimiser states.
        reference: a run that trains all weights keeps the initial model too.
    """
    from countdown_rl.models.nf4 import linears

    shape = ModelShape.of(model.config)
    total = model.num_parameters()
    layers = [prod(layer.weight.shape) for layer in linears(model).values()]
    held = width if zero else _TRAINED
    if options.tune == "all":  # with copies of the layers for autocast, and the initial model
        adapter = 0
        weights = total * (held + (width if reference else 0)) + (width * sum(layers) if width < held else 0)
    else:
        adapter = trainable * held
        weights = round((total - nf4 * sum(layers)) * width + nf4 * sum(layers) * NF4_BYTES)

    generation = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * width * sequences * length
    generation += _SAMPLING * 4 * sequences * shape.vocab_size
    generation += width * sum(layers) if device == "cpu" and sequences else 0  # a copy for the CPU decoder

    tokens = options.micro_batch * length
    block = tokens * kept_by_block(model, options, width, length, autocast=device == "cuda")
    recomputed = shape.num_layers * tokens * shape.hidden_size * width + block
    loss = recomputed if options.gradient_checkpointing else shape.num_layers * block
    # TRL sums the gradients of the head and of its input in fp32, beside a tile of logits.
    scored *= options.micro_batch
    tile = min(shape.vocab_size, CPU_TILE if device == "cpu" else _TILE[1])
    loss += (width if device == "cuda" else 4) * min(scored, _TILE[0]) * tile
    loss += _TRAINED * shape.hidden_size * (scored + (shape.vocab_size if options.tune == "all" else 0))
    loss += max(layers, default=0) * width if nf4 else 0  # one layer, de-quantized

    gradients, states = trainable * held, trainable * _TRAINED * (3 if zero else 2)
    if shards > 1:
        gradients, states = gradients // shards, states // shards
    if (
        shards > 1 and zero != 2
    ):  # embeddings, head and two blocks are gathered at a time, and all by ZeRO-3 to generate
        weights, adapter = weights // shards, adapter // shards
        parts = total - sum(layers) + 2 * sum(layers) // shape.num_layers
        loss += width * parts
        generation += width * (total if zero else parts) if sequences else 0
    return Estimate(device, weights, adapter, gradients, states, generation, loss)


def kept_by_block(model: Any, options: TuningOptions, width: int, length: int, *, autocast: bool) -> int:
    """Bytes per token that one block of *model* keeps for the backward pass.

    A frozen base keeps no inputs of its layers; each LoRA pair keeps its own.

    Args:
        width: bytes per number in the base.
        length: tokens of a sequence, which the mask of attention has for each of its tokens.
        autocast: LoRA pairs compute in the type of the base, as on CUDA, and not in their own.
    """
    shape = ModelShape.of(model.config)
    hidden, inner = shape.hidden_size, shape.intermediate_size
    queries = shape.num_heads * shape.head_dim
    has_head_norms = any(name.endswith("q_norm") for name, _ in model.named_modules())  # as Qwen3
    normed = (shape.num_heads + shape.num_kv_heads) * shape.head_dim if has_head_norms else 0
    kept = 4 * (2 * hidden + normed)  # norms, computed in fp32
    kept += (4 * queries + length) * width  # q, repeated k and v, output; the mask
    kept += 3 * inner * width  # gate, its activation, up
    pair = width if autocast or options.tune == "all" else _TRAINED
    if pair == width and not (options.lora_dropout and options.tune == "lora"):
        kept += (2 * hidden + inner) * width  # an input of several layers is kept once, and that of o counted above
    else:
        mask = (1 if autocast else _TRAINED) if options.lora_dropout else 0
        kept += (5 * hidden + queries + inner) * (pair + mask)  # of q, k, v, gate and up; of o; of down
    if options.tune == "all":  # norms keep what they scale, in fp32; autocast copies the input of q, k, v, gate and up
        kept += 2 * _TRAINED * hidden + width * normed + (0 if width == _TRAINED else 3 * width * hidden)
    return kept


def forward_width(precision: str, device: str, skeleton: Any) -> int:
    """Bytes per number in the forward pass on *device*; a CUDA GPU that is not in this machine has bf16."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        return 4 if precision == "fp32" else 2
    return int(load.compute_dtype(precision, torch.device(device), skeleton).itemsize)


def _device_memory(device: str) -> int | None:
    """Bytes of memory that *device* has in total."""
    import torch

    return int(torch.cuda.mem_get_info()[1]) if device == "cuda" else generate.main_memory()
