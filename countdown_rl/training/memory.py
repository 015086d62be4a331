"""How much memory a training run will need, worked out from the model's shape before a weight is loaded.

What stays for the whole run (weights, adapter, gradients, optimiser) is counted exactly. On top of it comes
the larger of two peaks that never meet: the key-value cache while completions are drawn, and what the
backward pass keeps. The second follows Korthikanti et al. 2022 (arXiv:2205.05198), section 4, redone for
gated blocks with a fused attention, whose scores are never kept, and with a LoRA pair on every linear layer.
"""

from dataclasses import asdict, dataclass
from math import prod
from typing import Any

from countdown_rl.training.config import TrainOptions

#: Bytes of one NF4 weight: half a byte, one byte of scale for 64, and four more for 256 of those scales.
NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
#: TRL projects this many tokens by this many words at once, in fp32, instead of holding all logits.
_TILE = (4_096, 32_768)
#: Copies of a row of fp32 logits that sampling holds: the raw ones, the warped ones, their softmax.
_SAMPLING = 3


@dataclass(frozen=True)
class Estimate:
    """Bytes that one process needs. ``device`` is "cuda", "mps" or "cpu"."""

    device: str
    weights: int
    adapter: int
    gradients: int
    optimiser: int
    generation: int
    loss: int

    @property
    def peak(self) -> int:
        """All that stays, and the larger of the two that take turns."""
        return self.weights + self.adapter + self.gradients + self.optimiser + max(self.generation, self.loss)

    def as_dict(self) -> dict[str, Any]:
        """Every part and the peak, for ``--json``."""
        return asdict(self) | {"peak": self.peak}


@dataclass(frozen=True)
class Shape:
    """What of a model's configuration decides how much it keeps for each token."""

    layers: int
    hidden: int
    inner: int
    queries: int
    keys: int
    vocabulary: int
    normed: bool = False

    @classmethod
    def of(cls, model: Any) -> "Shape":
        """The shape of a transformers *model* that is built like Llama; ``normed`` where it norms q and k."""
        text = model.config.get_text_config()
        heads = text.num_attention_heads
        width = getattr(text, "head_dim", None) or text.hidden_size // heads
        shared = getattr(text, "num_key_value_heads", None) or heads
        inner = getattr(text, "intermediate_size", None) or 4 * text.hidden_size
        return cls(
            text.num_hidden_layers,
            text.hidden_size,
            inner,
            heads * width,
            shared * width,
            text.vocab_size,
            any(name.endswith("q_norm") for name, _ in model.named_modules()),
        )


def skeleton(config: Any) -> Any:
    """The model of *config* without any weights: every parameter has a shape and no bytes."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def lora_parameters(model: Any, rank: int) -> int:
    """How many numbers a LoRA pair of *rank* on every linear layer but the output head of *model* has."""
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
    """What a run of *options* on *model*, a :func:`skeleton`, will need in each of *processes*.

    Args:
        nf4: linear layers are held in 4 bits; only CUDA does.
        width: bytes of a number that the model computes with: 2 or 4.
        prompt: tokens of the longest prompt.
        rank: of the adapter.
    """
    from countdown_rl.models.nf4 import linears

    shape = Shape.of(model)
    total = sum(parameter.numel() for parameter in model.parameters())
    packed = [prod(layer.weight.shape) for layer in linears(model).values()] if nf4 else []
    weights = round((total - sum(packed)) * width + sum(packed) * NF4_BYTES)
    trained = lora_parameters(model, rank)
    adapter_width = 2 if nf4 else 4  # TRL trains the pair in bf16 over 4-bit weights; PEFT keeps it in fp32 else

    sequences = options.prompts * options.num_generations * options.steps_per_generation // processes
    length = prompt + options.max_completion_length
    cache = 2 * shape.layers * shape.keys * width * sequences * length
    generation = cache + _SAMPLING * 4 * sequences * shape.vocabulary

    tokens = options.micro_batch * length
    # Autocast hands a pair its input in the type of the base; without it, in the pair's own.
    pair, mask = (width, 1) if device == "cuda" else (adapter_width, adapter_width)
    block = tokens * kept_by_block(shape, width, pair, rank, options.lora_dropout, mask)
    if options.gradient_checkpointing:
        kept = shape.layers * tokens * shape.hidden * width + block
    else:
        kept = shape.layers * block
    scored = min(options.micro_batch * options.max_completion_length, _TILE[0])
    tile = 4 * scored * min(shape.vocabulary, _TILE[1])
    unpacked = max(packed, default=0) * width
    return Estimate(
        device=device,
        weights=weights,
        adapter=trained * adapter_width,
        gradients=trained * adapter_width,
        optimiser=2 * trained * adapter_width,
        generation=generation,
        loss=kept + tile + unpacked,
    )


def kept_by_block(shape: Shape, width: int, pair: int, rank: int, dropout: float, mask: int) -> int:
    """Bytes that one block keeps for the backward pass, for each token.

    The base is frozen, so its own layers keep none of their input; each LoRA pair keeps what it was given.

    Args:
        width: bytes of a number in the base; *pair* of one in a LoRA pair; *mask* of one in a dropout mask.
    """
    hidden, inner, queries, keys = shape.hidden, shape.inner, shape.queries, shape.keys
    norms = 4 * (2 * hidden + (queries + keys if shape.normed else 0))  # they compute in fp32
    attention = (2 * queries + 2 * keys) * width  # q, k, v and the sum
    gated = 3 * inner * width  # gate, its activation, up
    given = 5 * hidden + queries + inner  # to q, k, v, gate and up; to o; to down
    if dropout:
        inputs = given * (pair + mask)
    elif pair != width:
        inputs = given * pair
    else:  # what feeds several pairs is kept once, and the sum of attention is kept already
        inputs = (2 * hidden + inner) * width
    return norms + attention + gated + inputs + 7 * rank * pair
