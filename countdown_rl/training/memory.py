"""Estimate of the memory of a training run, from the shapes of the model alone.

Weights, gradients and optimiser states are counted exactly. The peak adds the larger of two parts that do not
overlap in time: the key-value cache of generation, in GRPO, and the activations kept for the backward pass. The latter
follow Korthikanti et al. 2022 (arXiv:2205.05198), section 4, adapted to gated blocks, to fused attention with a mask,
which keeps no scores, but keys and values repeated for every query head, and to a LoRA pair on every linear layer.
"""

from dataclasses import asdict, dataclass, replace
from math import prod
from typing import Any

from countdown_rl.inference import generate
from countdown_rl.models import load, model_files, reference
from countdown_rl.models.shape import ModelShape
from countdown_rl.training.sft_config import TuningOptions

#: Bytes per NF4 weight: 4 bits, one byte of scale per 64, and four per 256 of these scales.
NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
#: Bytes per trained weight, its gradient and each of its optimiser states.
_TRAINED = 4
#: Bytes per optimiser state of 8 bits: one, and an fp32 scale per 256.
_STATE_OF_8_BITS = 1 + 4 / 256
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

    ``engine`` is vLLM, with a cache of its own. ``generation`` is the ``cache`` of the completions and the weights that
    are gathered or, on a CPU, copied for them.
    """

    device: str
    weights: int
    adapter: int
    gradients: int
    optimiser: int
    generation: int
    loss: int
    cache: int = 0
    engine: int = 0

    @property
    def training(self) -> int:
        """The maximum without vLLM: generation and loss alternate."""
        held = self.weights + self.adapter + self.gradients + self.optimiser
        return held + max(self.generation, self.loss)

    @property
    def peak(self) -> int:
        """The maximum at any time."""
        return self.training + self.engine

    def as_dict(self) -> dict[str, Any]:
        """All parts and the peak, for ``--json``."""
        return asdict(self) | {"peak": self.peak}


@dataclass(frozen=True)
class Memory:
    """The memory of a run.

    Attributes:
        trainable: parameters that are trained.
        estimates: for the device of this machine and, where that is another one, for CUDA: the last is for CUDA.
        available: bytes that the device of this machine has, where that is known.
        checkpoint: bytes of a checkpoint on disk; the one before it is removed after it.
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


def plan(
    model: Any, ref: reference.ModelRef, options: TuningOptions, *, shards: int, zero: int = 0, **sizes: Any
) -> Memory:
    """The memory of a run of *options* on *ref*, whose skeleton is *model*.

    Args:
        shards: processes that each hold a part of what they share.
        zero: the stage of DeepSpeed's ZeRO.
        sizes: those of :func:`estimate` that follow from neither.
    """
    device = load.device_name("auto").partition(":")[0]
    precision, rank = load.trained_precision(ref, options.precision), options.lora_r
    if ref.base is not None:
        rank = int(model_files.adapter_config(reference.local_path(ref)).get("r", 8))
    estimates = []
    for kind in dict.fromkeys((device, "cuda")):
        width, nf4 = forward_width(precision, kind, model), kind == "cuda" and precision == "nf4"
        single = estimate(model, options, device=kind, nf4=nf4, width=width, rank=rank, zero=zero > 0, **sizes)
        estimates.append(_shared(single, model, width, shards, zero) if shards > 1 else single)
    trainable = lora_parameters(model, rank) if options.tune == "lora" else model.num_parameters()
    checkpoint = trainable * _TRAINED + single.optimiser
    return Memory(trainable, estimates, _device_memory(device), checkpoint)


def _shared(single: Estimate, model: Any, width: int, shards: int, zero: int) -> Estimate:
    """The memory of one of *shards* processes, of *single*.

    ZeRO-2 shares gradients and optimiser states, ZeRO-3 and FSDP also the weights. Of these, embeddings, head and two
    blocks are gathered at a time, and all by ZeRO-3 to generate.
    """
    from countdown_rl.models.nf4 import linears

    shared = ["gradients", "optimiser", *([] if zero == 2 else ["weights", "adapter"])]
    parts = {name: getattr(single, name) // shards for name in shared}
    if zero != 2:
        blocks = sum(prod(layer.weight.shape) for layer in linears(model).values())
        waiting = blocks - 2 * blocks // ModelShape.of(model.config).num_layers
        total = model.num_parameters()
        parts["loss"] = single.loss + width * (total - waiting)
        if single.generation:
            parts["generation"] = single.generation + width * (total if zero else total - waiting)
    return replace(single, **parts)


def lora_parameters(model: Any, rank: int) -> int:
    """Parameters of a LoRA adapter of *rank* on every linear layer of *model* but the output head."""
    head = model.get_output_embeddings()
    return sum(
        rank * sum(module.weight.shape)
        for module in model.modules()
        if module is not head and type(module).__name__ in ("Linear", "Conv1D")
    )


def estimate(
    model: Any,
    options: TuningOptions,
    *,
    device: str,
    nf4: bool,
    width: int,
    rank: int,
    length: int,
    scored: int,
    sequences: int = 0,
    reference: bool = False,
    optimiser: str = "adamw_torch",
    zero: bool = False,
) -> Estimate:
    """The memory of a process of a run of *options* on *model*, which needs no weights.

    Args:
        nf4: linear layers are held in 4 bits, which only CUDA does.
        width: bytes per number in the forward pass, 2 or 4.
        rank: of the adapter.
        length: tokens of the longest sequence, of which the loss is computed on *scored*.
        sequences: those that are generated at a time.
        reference: a run that trains all weights keeps the initial model too.
        optimiser: the name that TRL has for it.
        zero: DeepSpeed holds trained weights in the type of the forward pass, and an fp32 copy beside the states.
    """
    from countdown_rl.models.nf4 import linears

    shape = ModelShape.of(model.config)
    total = sum(parameter.numel() for parameter in model.parameters())
    layers = [prod(layer.weight.shape) for layer in linears(model).values()]
    packed = layers if nf4 else []
    weights = round((total - sum(packed)) * width + sum(packed) * NF4_BYTES)
    trained = adapter = lora_parameters(model, rank)
    held = width if zero else _TRAINED
    if options.tune == "all":  # with copies of the layers for autocast, and the initial model
        trained, adapter = total, 0
        weights = total * (held + (width if reference else 0)) + (width * sum(layers) if width < held else 0)
    states = 2 * (_STATE_OF_8_BITS if "8bit" in optimiser else _TRAINED) + (_TRAINED if zero else 0)

    cache = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * width * sequences * length
    cache += _SAMPLING * 4 * sequences * shape.vocab_size
    laid_out = width * sum(layers) if device == "cpu" and sequences else 0  # a copy for the CPU decoder

    tokens = options.micro_batch * length
    # Autocast passes an adapter its input in the type of the base; without it, in its own.
    pair, mask = (width, 1) if device == "cuda" else (_TRAINED, _TRAINED)
    if options.tune == "all":
        block = tokens * kept_by_trained_block(model, width, length)
    else:
        block = tokens * kept_by_block(model, width, pair, rank, options.lora_dropout, mask, length)
    if options.gradient_checkpointing:
        kept = shape.num_layers * tokens * shape.hidden_size * width + block
    else:
        kept = shape.num_layers * block
    # TRL sums the gradients of the head and of its input in fp32, beside a tile of logits.
    scored *= options.micro_batch
    tile = min(shape.vocab_size, CPU_TILE if device == "cpu" else _TILE[1])
    head = (width if device == "cuda" else 4) * min(scored, _TILE[0]) * tile
    head += _TRAINED * shape.hidden_size * (scored + (shape.vocab_size if options.tune == "all" else 0))
    unpacked = max(packed, default=0) * width
    return Estimate(
        device=device,
        weights=weights,
        adapter=adapter * held,
        gradients=trained * held,
        optimiser=round(trained * states),
        generation=cache + laid_out,
        loss=kept + head + unpacked,
        cache=cache,
    )


def kept_by_block(model: Any, width: int, pair: int, rank: int, dropout: float, mask: int, length: int) -> int:
    """Bytes per token that one block of *model* keeps for the backward pass.

    A frozen base keeps no inputs of its layers; each LoRA pair keeps its own.

    Args:
        width: bytes per number in the base; *pair* in a LoRA pair; *mask* in a dropout mask.
        length: tokens of a sequence, which the mask of attention has for each of its tokens.
    """
    shape = ModelShape.of(model.config)
    hidden, inner = shape.hidden_size, shape.intermediate_size
    queries = shape.num_heads * shape.head_dim
    norms = 4 * (2 * hidden + _normed_heads(model, shape))  # computed in fp32
    attention = (4 * queries + length) * width  # q, repeated k and v, output; the mask
    gated = 3 * inner * width  # gate, its activation, up
    lora_inputs = 5 * hidden + queries + inner  # of q, k, v, gate and up; of o; of down
    if dropout:
        inputs = lora_inputs * (pair + mask)
    elif pair != width:
        inputs = lora_inputs * pair
    else:  # an input of several pairs is kept once, and the output of attention is counted already
        inputs = (2 * hidden + inner) * width
    return norms + attention + gated + inputs + 7 * rank * pair


def kept_by_trained_block(model: Any, width: int, length: int) -> int:
    """The same where all weights are trained, in fp32: under autocast if *width* is 2."""
    shape = ModelShape.of(model.config)
    kept = kept_by_block(model, width, width, 0, 0.0, 0, length)  # layers keep their inputs, as LoRA pairs would
    # The weight of a norm keeps what it scales, in fp32; autocast copies the input of q, k, v, gate and up for each.
    scaled = 2 * _TRAINED * shape.hidden_size + width * _normed_heads(model, shape)
    return kept + scaled + (0 if width == _TRAINED else 3 * width * shape.hidden_size)


def _normed_heads(model: Any, shape: ModelShape) -> int:
    """Values per token of the queries and keys that *model* norms, as Qwen3 does."""
    normed = any(name.endswith("q_norm") for name, _ in model.named_modules())
    return (shape.num_heads + shape.num_kv_heads) * shape.head_dim if normed else 0


def forward_width(precision: str, device: str, skeleton: Any) -> int:
    """Bytes per number in the forward pass on *device*; a CUDA GPU that is not in this machine has bf16."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        return 4 if precision == "fp32" else 2
    return int(load.compute_dtype(precision, torch.device(device), skeleton).itemsize)


def _device_memory(device: str) -> int | None:
    """Bytes of memory that *device* has in total."""
    import torch

    if device == "cuda":
        return int(torch.cuda.mem_get_info()[1])
    return generate.main_memory()
