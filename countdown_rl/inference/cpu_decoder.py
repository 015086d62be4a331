"""A decoder of Llama models on a CPU, limited by matrix products where ``generate`` is by overhead.

An adapter is folded into a copy of fp32 weights, bf16 weights are packed for oneDNN once,
projections of the same input are one product, each distinct prompt is read once, the cache is
written in place, and finished rows are removed. The arithmetic is that of ``LlamaForCausalLM``.
Measured in ``benchmarks/README.md``.

Shapes: B rows, U distinct prompts, P prompt columns, S columns of the cache, H hidden size,
K key-value heads, D head size, V vocabulary, I and O inputs and outputs of a product, R ranks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from countdown_rl.inference.cpu_attention import attend
from countdown_rl.inference.sampling import Decoding, Stop, sample
from countdown_rl.models import lora, torch_internals

if TYPE_CHECKING:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

#: Finished rows are removed once they are this share of the batch; removing them copies the cache.
_COMPACT_SHARE = 0.125
#: Inner activations of a layer over the prompts that are read at once: they fit the CPU's cache.
_CHUNK_VALUES = 1 << 21


def supports(model: nn.Module) -> bool:
    """Return True for a Llama on a CPU: plain, or under an ordinary LoRA adapter of its blocks."""
    base = _base_of(model)
    if base.config.model_type != "llama" or base.device.type != "cpu":
        return False
    if base.config.hidden_act != "silu" or any(map(lora.is_special, base.modules())):
        return False
    # An adapter of the embedding or of the output layer, or one trained in their place, wraps them.
    if type(base.get_input_embeddings()) is not nn.Embedding:
        return False
    layers = [base.get_output_embeddings()]
    for block in base.model.layers:
        modules = (*block.self_attn.children(), *block.mlp.children())
        layers += [getattr(module, "base_layer", module) for module in modules]
    return all(type(layer) is nn.Linear for layer in layers if hasattr(layer, "weight"))


def _base_of(model: nn.Module) -> nn.Module:
    """Return the model under an adapter, or *model* itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


class Linear:
    """Linear layers with the same input, joined; the output is in fp32.

    LoRA is folded into fp32 weights (O, I), which is exact. It stays beside bf16 weights, which
    would round the sum: as one pair of matrices (R, I) and (O, R).
    """

    def __init__(self, dtype: torch.dtype, packed: bool, *modules: nn.Module) -> None:
        self.dtype = dtype
        weights, biases, low, high = [], [], [], []
        for module in modules:
            base = getattr(module, "base_layer", module)
            weight = base.weight.to(dtype)
            high.append(torch.empty(len(weight), 0))
            for name in getattr(module, "active_adapters", ()):
                if dtype == torch.float32:
                    weight = weight + module.get_delta_weight(name).float()
                else:
                    low.append(module.lora_A[name].weight)
                    high[-1] = module.lora_B[name].weight.float() * module.scaling[name]
            weights.append(weight)
            if base.bias is not None:
                biases.append(base.bias)

        self.weight = torch.cat(weights)
        self.bias = torch.cat(biases).to(dtype) if biases else None
        self.product: Callable[..., Tensor] = F.linear
        if packed:
            self.weight = torch_internals.packed_weight(self.weight)
            self.product = torch_internals.packed_linear
        self.lora = [torch.cat(low).to(dtype), torch.block_diag(*high).to(dtype)] if low else []

    def __call__(self, x: Tensor) -> Tensor:
        x = x.to(self.dtype)
        out = self.product(x, self.weight, self.bias).float()
        if self.lora:
            a, b = self.lora
            out = out + F.linear(F.linear(x, a), b).float()
        return out


class Layer:
    """A layer of a model, written out from a *block* of transformers; hidden states are in fp32."""

    def __init__(
        self, block: "LlamaDecoderLayer", config: "LlamaConfig", dtype: torch.dtype, packed: bool
    ) -> None:
        self.heads = config.num_attention_heads
        self.kv_heads = config.num_key_value_heads
        self.head_dim = config.head_dim
        self.eps = block.input_layernorm.variance_epsilon
        self.norm_in = block.input_layernorm.weight.float()
        self.norm_mlp = block.post_attention_layernorm.weight.float()
        attention, mlp = block.self_attn, block.mlp
        self.qkv = Linear(dtype, packed, attention.q_proj, attention.k_proj, attention.v_proj)
        self.out = Linear(dtype, packed, attention.o_proj)
        self.gate_up = Linear(dtype, packed, mlp.gate_proj, mlp.up_proj)
        self.down = Linear(dtype, packed, mlp.down_proj)

    def queries_keys_values(self, hidden: Tensor, cos: Tensor, sin: Tensor) -> Sequence[Tensor]:
        """Queries, keys and values (..., heads, D) of *hidden* (..., H), rotated."""
        normed = F.rms_norm(hidden, hidden.shape[-1:], self.norm_in, self.eps)
        out = self.qkv(normed).unflatten(-1, (-1, self.head_dim))
        qk, v = out.split((self.heads + self.kv_heads, self.kv_heads), -2)
        # Each half of a head is rotated by adding the other one times its sine.
        rotated = qk * cos + qk.roll(self.head_dim // 2, -1) * sin
        return *rotated.split((self.heads, self.kv_heads), -2), v

    def output(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """The layer after its attention: output projection and MLP."""
        hidden = hidden + self.out(attended)
        normed = F.rms_norm(hidden, hidden.shape[-1:], self.norm_mlp, self.eps)
        gate, up = self.gate_up(normed).chunk(2, -1)
        return hidden + self.down(F.silu(gate) * up)


@dataclass
class Batch:
    """The state of the rows of a batch."""

    caches: list[Tensor]  # of each layer keys and values (2, B, K, S, D)
    used: int  # columns that are written
    position: Tensor  # (B,) of the next token
    padding: Tensor  # (B, S)

    def keep(self, rows: list[int]) -> None:
        """Remove all but *rows*."""
        for index, cache in enumerate(self.caches):
            kept = cache.new_empty((2, len(rows), *cache.shape[2:]))
            kept[..., : self.used, :] = cache[:, rows, :, : self.used]
            self.caches[index] = kept
        self.position = self.position[rows]
        self.padding = self.padding[rows]


class Decoder:
    """A snapshot of the weights of *model*, laid out for decoding; they must not change.

    Matrix products are in *dtype*, fp32 or bf16. The cache is in bf16 (as in ``generate``) where
    oneDNN computes in bf16. Everything else is in fp32.
    """

    @torch.no_grad()
    def __init__(self, model: nn.Module, dtype: torch.dtype = torch.float32) -> None:
        base = _base_of(model)
        packed = dtype == torch.bfloat16 and torch_internals.has_bf16_products()
        self.cache_dtype = dtype if packed else torch.float32
        self.inner_size = base.config.intermediate_size
        self.eps = base.config.rms_norm_eps
        self.rotary = base.model.rotary_emb
        self.embedding = base.get_input_embeddings().weight.to(dtype)  # (V, H)
        self.head = base.get_output_embeddings().weight.to(dtype)  # (V, H)
        self.norm = base.model.norm.weight.float()
        self.layers = [Layer(block, base.config, dtype, packed) for block in base.model.layers]

    @torch.inference_mode()
    def decode(
        self,
        prompts: Sequence[Sequence[int]],
        decoding: Decoding,
        stop: Stop,
        generator: torch.Generator | None = None,
        on_step: Callable[[list[int]], None] | None = None,
    ) -> list[list[int]]:
        """Complete each of *prompts* (token ids).

        Args:
            prompts: token ids; equal ones are read once.
            decoding: sampling parameters and the token limit.
            stop: end of a completion.
            generator: random numbers of sampling.
            on_step: called after each step with the token ids so far of one of the longest.

        Returns:
            The token ids of the completions, each with the one that ended it.
        """
        completions: list[list[int]] = [[] for _ in prompts]
        rows = list(completions)  # the completion of each row in the batch
        active = list(range(len(rows)))
        hidden, batch = self._prefill(prompts, decoding.max_new_tokens)
        for step in range(decoding.max_new_tokens):
            last = F.rms_norm(hidden, hidden.shape[-1:], self.norm, self.eps)
            logits = F.linear(last.to(self.head.dtype), self.head).float()  # (B, V)
            tokens = sample(logits, decoding, generator)  # (B,)
            ids = tokens.tolist()
            for row in active:
                rows[row].append(ids[row])
            if on_step is not None:
                on_step(rows[active[-1]])

            active = [row for row in active if not stop(rows[row])]
            if not active or step + 1 == decoding.max_new_tokens:
                break
            if len(active) <= (1 - _COMPACT_SHARE) * len(rows):
                batch.keep(active)
                tokens = tokens[active]
                rows = [rows[row] for row in active]
                active = list(range(len(rows)))
            hidden = self._step(tokens, batch)
        return completions

    def _prefill(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> tuple[Tensor, Batch]:
        """Read *prompts*: the last hidden state (B, H), caches with space for *new_tokens* more."""
        unique: dict[tuple[int, ...], int] = {}
        index = [unique.setdefault(tuple(prompt), len(unique)) for prompt in prompts]  # (B,)
        lengths = torch.tensor([len(prompt) for prompt in unique])
        longest = max(map(len, unique))
        padding = torch.arange(longest) < (longest - lengths)[:, None]  # (U, P)
        ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in unique])

        size = max(1, _CHUNK_VALUES // (self.inner_size * longest))
        chunks = zip(ids.split(size), padding.split(size), strict=True)
        results = [self._read(*chunk) for chunk in chunks]
        by_chunk, last = zip(*results, strict=True)
        caches = []
        for layer in zip(*by_chunk, strict=True):
            keys_values = torch.cat(layer, 1)[:, index]  # (2, B, K, P, D)
            cache = F.pad(keys_values, (0, 0, 0, new_tokens))
            caches.append(cache.to(self.cache_dtype))
        padding = F.pad(padding, (0, new_tokens))[index]
        return torch.cat(last)[index], Batch(caches, longest, lengths[index], padding)

    def _read(self, ids: Tensor, padding: Tensor) -> tuple[list[Tensor], Tensor]:
        """Keys and values (2, U, K, P, D) of each layer, and the last hidden state (U, H).

        *ids* (U, P) are padded on the left.
        """
        columns = torch.arange(ids.size(1))
        cos, sin = self._rotation((columns - padding.sum(1, keepdim=True)).clamp(min=0))
        # A padded position attends to itself, so that no row of the softmax is empty.
        mask = (columns <= columns[:, None]) & ~padding[:, None, :]  # (U, P, P)
        mask |= torch.eye(len(columns), dtype=torch.bool)
        hidden = self.embedding[ids].float()  # (U, P, H)
        keys_values = []
        for layer in self.layers:
            qkv = layer.queries_keys_values(hidden, cos[:, :, None], sin[:, :, None])
            q, k, v = (tensor.transpose(1, 2) for tensor in qkv)
            keys_values.append(torch.stack((k, v)))
            attended = F.scaled_dot_product_attention(q, k, v, mask[:, None], enable_gqa=True)
            hidden = layer.output(hidden, attended.transpose(1, 2).flatten(2))
        return keys_values, hidden[:, -1]

    def _step(self, tokens: Tensor, batch: Batch) -> Tensor:
        """Read one token a row, ids (B,), into *batch*; returns hidden (B, H)."""
        hidden = self.embedding[tokens].float()
        cos, sin = self._rotation(batch.position[:, None])  # (B, 1, D)
        column = batch.used
        batch.used += 1
        batch.position = batch.position + 1
        mask = None
        if batch.padding.any():
            mask = ~batch.padding[:, None, None, : batch.used]
        for layer, (keys, values) in zip(self.layers, batch.caches, strict=True):
            q, k, v = layer.queries_keys_values(hidden, cos, sin)  # (B, heads, D)
            keys[:, :, column] = k
            values[:, :, column] = v
            # The query heads of one key head take the place of a sequence of queries.
            queries = q.unflatten(1, (k.size(1), -1))
            attended = attend(queries, keys, values, batch.used, mask)
            hidden = layer.output(hidden, attended.flatten(1))
        return hidden

    def _rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines (B, T, D) of *positions* (B, T), sines of the first half negative."""
        cos, sin = self.rotary(self.norm, positions)
        half = sin.size(-1) // 2
        sin[..., :half] *= -1
        return cos, sin
