"""Estimate of the memory of a training run, from the shapes of the model alone.

Weights, gradients and optimiser states are counted exactly. The peak adds the larger of two parts that do not
overlap in time: the key-value cache of generation, and the activations kept for the backward pass. The latter follow
Korthikanti et al. 2022 (arXiv:2205.05198), section 4, adapted to gated blocks, to fused attention, which keeps no
scores, and to a LoRA pair on every linear layer.
"""

from dataclasses import asdict, dataclass
from math import prod
from typing import Any

from countdown_rl.models.shape import ModelShape
from countdown_rl.training.config import TrainOptions

#: Bytes per NF4 weight: 4 bits, one byte of scale per 64, and four per 256 of these scales.
NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
#: Bytes per trained weight, its gradient and each of its optimiser states.
_TRAINED = 4
#: Tokens and vocabulary entries of the fp32 logits that TRL computes at a time.
_TILE = (4_096, 32_768)
#: Copies of the fp32 logits in sampling: raw, warped, softmax.
_SAMPLING = 3


@dataclass(frozen=True)
class Estimate:
    """Bytes per process. ``device`` is "cuda", "mps" or "cpu"."""

    device: str
    weights: int
    adapter: int
    gradients: int
    optimiser: int
    generation: int
    loss: int

    @property
    def peak(self) -> int:
        """The maximum at any time: generation and loss alternate."""
        return self.weights + self.adapter + self.gradients + self.optimiser + max(self.generation, self.loss)

    def as_dict(self) -> dict[str, Any]:
        """All parts and the peak, for ``--json``."""
        return asdict(self) | {"peak": self.peak}


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
    options: TrainOptions,
    *,
    device: str,
    nf4: bool,
    width: int,
    prompt: int,
    rank: int,
    processes: int = 1,
) -> Estimate:
    """The memory of a run of *options* on *model*, which needs no weights, in each of *processes*.

    Args:
        nf4: linear layers are held in 4 bits, which only CUDA does.
        width: bytes per number in the forward pass, 2 or 4.
        prompt: tokens of the longest prompt.
        rank: of the adapter.
    """
    from countdown_rl.models.nf4 import linears

    shape = ModelShape.of(model.config)
    total = sum(parameter.numel() for parameter in model.parameters())
    packed = [prod(layer.weight.shape) for layer in linears(model).values()] if nf4 else []
    weights = round((total - sum(packed)) * width + sum(packed) * NF4_BYTES)
    trained = adapter = lora_parameters(model, rank)
    if options.tune == "all":  # fp32 weights, their copies for autocast, and the initial model
        trained, adapter = total, 0
        weights = total * (_TRAINED + (width if width < _TRAINED else 0) + (width if options.beta else 0))

    sequences = options.prompts * options.num_generations * options.steps_per_generation // processes
    length = prompt + options.max_completion_length
    cache = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * width * sequences * length
    generation = cache + _SAMPLING * 4 * sequences * shape.vocab_size

    tokens = options.micro_batch * length
    # Autocast passes an adapter its input in the type of the base; without it, in its own.
    pair, mask = (width, 1) if device == "cuda" else (_TRAINED, _TRAINED)
    if options.tune == "all":
        block = tokens * kept_by_trained_block(model, width)
    else:
        block = tokens * kept_by_block(model, width, pair, rank, options.lora_dropout, mask)
    if options.gradient_checkpointing:
        kept = shape.num_layers * tokens * shape.hidden_size * width + block
    else:
        kept = shape.num_layers * block
    scored = min(options.micro_batch * options.max_completion_length, _TILE[0])
    tile = 4 * scored * min(shape.vocab_size, _TILE[1])
    unpacked = max(packed, default=0) * width
    return Estimate(
        device=device,
        weights=weights,
        adapter=adapter * _TRAINED,
        gradients=trained * _TRAINED,
        optimiser=2 * trained * _TRAINED,
        generation=generation,
        loss=kept + tile + unpacked,
    )


def kept_by_block(model: Any, width: int, pair: int, rank: int, dropout: float, mask: int) -> int:
    """Bytes per token that one block of *model* keeps for the backward pass.

    A frozen base keeps no inputs of its layers; each LoRA pair keeps its own.

    Args:
        width: bytes per number in the base; *pair* in a LoRA pair; *mask* in a dropout mask.
    """
    shape = ModelShape.of(model.config)
    hidden, inner = shape.hidden_size, shape.intermediate_size
    queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    norms = 4 * (2 * hidden + _normed_heads(model, shape))  # computed in fp32
    attention = (2 * queries + 2 * keys) * width  # q, k, v, output
    gated = 3 * inner * width  # gate, its activation, up
    lora_inputs = 5 * hidden + queries + inner  # of q, k, v, gate and up; of o; of down
    if dropout:
        inputs = lora_inputs * (pair + mask)
    elif pair != width:
        inputs = lora_inputs * pair
    else:  # an input of several pairs is kept once, and the output of attention is counted already
        inputs = (2 * hidden + inner) * width
    return norms + attention + gated + inputs + 7 * rank * pair


def kept_by_trained_block(model: Any, width: int) -> int:
    """The same where all weights are trained, in fp32: under autocast if *width* is 2."""
    shape = ModelShape.of(model.config)
    kept = kept_by_block(model, width, width, 0, 0.0, 0)  # layers keep their inputs, as LoRA pairs would
    # The weight of a norm keeps what it scales, in fp32; autocast copies the input of q, k, v, gate and up for each.
    scaled = 2 * _TRAINED * shape.hidden_size + width * _normed_heads(model, shape)
    return kept + scaled + (0 if width == _TRAINED else 3 * width * shape.hidden_size)


def _normed_heads(model: Any, shape: ModelShape) -> int:
    """Values per token of the queries and keys that *model* norms, as Qwen3 does."""
    normed = any(name.endswith("q_norm") for name, _ in model.named_modules())
    return (shape.num_heads + shape.num_kv_heads) * shape.head_dim if normed else 0
