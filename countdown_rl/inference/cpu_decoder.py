"""A decoder of Llama models on a CPU, limited by matrix products where ``generate`` of transformers is by overhead.

An adapter is folded into a copy of fp32 weights, bf16 weights are packed for oneDNN once,
projections of the same input are one product, each distinct prompt is read once, the cache is
written in place, and finished rows are removed. The arithmetic is that of ``LlamaForCausalLM``.
Measured in ``benchmarks/README.md``.

Shapes: B rows, U distinct prompts, P prompt columns, S columns of the cache, H hidden size,
K key-value heads, D head size, V vocabulary, I and O inputs and outputs of a product, R ranks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its usual name

from countdown_rl.inference.cpu_attention import attend
from countdown_rl.inference.sampling import Decoding, Stop, distribution
from countdown_rl.models import lora, torch_internals
from countdown_rl.models.shape import ModelShape

#: Finished rows are removed once they are this share of the batch; removing them copies the cache.
_COMPACT_SHARE = 0.125
#: Shortest common prefix of all prompts in a batch that is read once, separately.
_MIN_SHARED_PREFIX = 32
#: In a vocabulary of this size a block of tokens is sampled first: a cumulative sum of all costs more than the head.
_LARGE_VOCABULARY, _BLOCK = 1 << 14, 128
#: Rows from which the compiled attention is faster than torch's.
_COMPILED_ROWS = 32
#: Values of a layer's inner activations over the prompts that are read at once: those fit the processor's cache.
_CHUNK_VALUES = 1 << 21
#: Rows of a product for which the packed layout is chosen.
_PACKED_ROWS = 64


def supports(model: Any) -> bool:
    """Return True if :class:`Decoder` supports *model*: plain, or under an ordinary LoRA adapter of its blocks."""
    base = _base_of(model)
    config = base.config
    if getattr(config, "model_type", "") != "llama" or config.hidden_act != "silu":
        return False
    if base.device.type != "cpu" or "dynamic" in config.rope_parameters.get("rope_type", "default"):
        return False
    # An adapter of the embedding or of the output layer, or one trained in their place, wraps them.
    if type(base.get_input_embeddings()) is not torch.nn.Embedding:
        return False
    if type(base.get_output_embeddings()) is not torch.nn.Linear:
        return False
    if any(map(lora.is_special, base.modules())):
        return False
    parts = (part for block in base.model.layers for part in (block.self_attn, block.mlp))
    weights = (module for part in parts for module in part.children() if hasattr(module, "weight"))
    return all(type(getattr(module, "base_layer", module)) is torch.nn.Linear for module in weights)


def _base_of(model: Any) -> Any:
    """The model without the wrapper of an adapter."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


@dataclass(frozen=True)
class Linear:
    """Linear layers with the same input, joined: weight (O, I), bias (O,), and LoRA's *a* (R, I) and *b* (O, R)."""

    weight: Any
    bias: Tensor | None
    a: Tensor | None = None
    b: Tensor | None = None

    @classmethod
    def joined(cls, dtype: torch.dtype, packed: bool, *modules: Any) -> "Linear":
        """Join *modules*; LoRA is folded in if *dtype* is fp32, which is exact."""
        bases = [getattr(module, "base_layer", module) for module in modules]
        weights = [base.weight.to(dtype) for base in bases]
        bias = None
        if bases[0].bias is not None:
            bias = torch.cat([base.bias for base in bases]).to(dtype)
        if dtype == torch.float32:
            for index, module in enumerate(modules):
                for name in _adapters(module):
                    weights[index] = weights[index] + module.get_delta_weight(name).float()
            return cls(torch.cat(weights), bias)
        weight = torch.cat(weights)
        if packed:
            weight = torch_internals.packed_weight(weight, _PACKED_ROWS)
        low, high = [], []
        for module in modules:
            pairs = [(module.lora_A[name], module.lora_B[name]) for name in _adapters(module)]
            scales = [module.scaling[name] for name in _adapters(module)]
            low += [a.weight for a, _ in pairs]
            scaled = [b.weight.float() * scale for (_, b), scale in zip(pairs, scales, strict=True)]
            high.append(torch.cat([torch.empty(module.out_features, 0), *scaled], 1))
        if not low:
            return cls(weight, bias)
        return cls(weight, bias, torch.cat(low).to(dtype), torch.block_diag(*high).to(dtype))

    def __call__(self, x: Tensor, *, keep_dtype: bool = False) -> Tensor:
        """The output in fp32; with *keep_dtype* in the weights' type, if there is no LoRA to add."""
        x = x.to(self.weight.dtype)
        product = torch_internals.packed_linear if self.weight.is_mkldnn else F.linear
        out = product(x, self.weight, self.bias)
        if self.a is None or self.b is None:
            return out if keep_dtype else out.float()
        return out.float() + F.linear(F.linear(x, self.a), self.b).float()


def _adapters(module: Any) -> Sequence[str]:
    return getattr(module, "active_adapters", ())


class Layer:
    """A layer of a model of *shape*, written out from a *block* of transformers; hidden states are in fp32."""

    def __init__(self, block: Any, config: Any, dtype: torch.dtype, packed: bool) -> None:
        self.shape, self.eps = ModelShape.of(config), config.rms_norm_eps
        attention, mlp = block.self_attn, block.mlp
        self.norm_in = block.input_layernorm.weight.float()
        self.norm_mlp = block.post_attention_layernorm.weight.float()
        projections = attention.q_proj, attention.k_proj, attention.v_proj
        self.qkv = Linear.joined(dtype, packed, *projections)
        self.out = Linear.joined(dtype, packed, attention.o_proj)
        self.gate_up = Linear.joined(dtype, packed, mlp.gate_proj, mlp.up_proj)
        self.down = Linear.joined(dtype, packed, mlp.down_proj)

    def attention_input(
        self, hidden: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (..., heads, D) of *hidden* (..., H), rotated by :func:`_rotation`."""
        heads, kv_heads, width = self.shape.num_heads, self.shape.num_kv_heads, self.shape.head_dim
        out = self.qkv(_normed(hidden, self.norm_in, self.eps)).unflatten(-1, (-1, width))
        qk, v = out.split((heads + kv_heads, kv_heads), dim=-2)
        swapped = torch.cat((qk[..., width // 2 :], qk[..., : width // 2]), dim=-1)
        q, k = (qk * cos + swapped * sin).split((heads, kv_heads), dim=-2)
        return q, k, v

    def output(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """The layer after its attention: output projection and MLP."""
        hidden = hidden + self.out(attended)
        gate_up = self.gate_up(_normed(hidden, self.norm_mlp, self.eps), keep_dtype=True)
        gate, up = gate_up.chunk(2, dim=-1)
        return hidden + self.down(F.silu(gate) * up)


@dataclass
class Prefill:
    """A batch after its prompts: each layer's *keys* and *values* (B, K, P + new tokens, D), the last *hidden* state
    (B, H), *lengths* (B,) of the prompts, and which of their columns are *padding* (B, P)."""

    keys: list[Tensor]
    values: list[Tensor]
    hidden: Tensor
    lengths: Tensor
    padding: Tensor

    def keep(self, active: Tensor, used: int) -> None:
        """Remove the rows that are not *active*; only *used* columns are copied, as later ones are not written yet."""
        for caches in (self.keys, self.values):
            for index, cache in enumerate(caches):
                compact = cache.new_empty((int(active.sum()), *cache.shape[1:]))
                compact[:, :, :used] = cache[active, :, :used]
                caches[index] = compact
        self.lengths, self.padding = self.lengths[active], self.padding[active]


class Decoder:
    """A snapshot of the weights of *model*, laid out for decoding. Make a new one when the weights change.

    Matrix products are in *dtype*, fp32 or bf16. In bf16 LoRA's two products stay beside the weights', because bf16
    would round the sum of the matrices. The cache is in bf16 (as in ``generate``) where oneDNN computes in bf16.
    Everything else is in fp32.
    """

    @torch.no_grad()
    def __init__(self, model: Any, dtype: torch.dtype = torch.float32) -> None:
        base = _base_of(model)
        packed = dtype == torch.bfloat16 and torch_internals.has_bf16_products()
        self.cache_dtype = dtype if packed else torch.float32
        self.shape = ModelShape.of(base.config)
        self.eps: float = base.config.rms_norm_eps
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
            on_step: called after each step with the token ids so far of a completion that had not ended before.

        Returns:
            The token ids of the completions, each with the one that ended it.
        """
        batch = self._prefill(prompts, decoding.max_new_tokens)
        completions: list[list[int]] = [[] for _ in prompts]
        rows = torch.arange(len(prompts))  # the prompt of each row in the batch
        active = torch.ones(len(prompts), dtype=torch.bool)
        start = batch.padding.size(1)
        hidden = batch.hidden
        for step in range(decoding.max_new_tokens):
            last = _normed(hidden, self.norm, self.eps)
            logits = F.linear(last.to(self.head.dtype), self.head).float()  # (B, V)
            tokens = _sample(logits, decoding, generator)  # (B,)
            candidates = stop.may_end[tokens] & active
            for row, token in zip(rows[active].tolist(), tokens[active].tolist(), strict=True):
                completions[row].append(token)
            if on_step is not None:
                on_step(completions[row])
            for index in candidates.nonzero()[:, 0].tolist():
                active[index] = not stop(completions[int(rows[index])])

            count = int(active.sum())
            if count == 0 or step + 1 == decoding.max_new_tokens:
                break
            if count <= (1 - _COMPACT_SHARE) * len(active):
                batch.keep(active, start + step)
                rows, tokens = rows[active], tokens[active]
                active = torch.ones(count, dtype=torch.bool)
            hidden = self._step(tokens, batch, step)
        return completions

    def _prefill(self, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> Prefill:
        """Read *prompts*, with space for *max_new_tokens* more in the caches."""
        unique = list(dict.fromkeys(map(tuple, prompts)))
        indices = {prompt: index for index, prompt in enumerate(unique)}
        of = torch.tensor([indices[tuple(prompt)] for prompt in prompts])  # (B,) into unique
        shared = _shared_prefix(unique)
        prefix: list[tuple[Tensor, Tensor]] = []
        if shared:
            ids = torch.tensor([unique[0][:shared]])
            prefix, _ = self._forward(ids, torch.zeros(1, shared, dtype=torch.bool), [])

        # The shared prefix comes first, then padding, then the rest of each prompt; (U, P - shared)
        longest = max(map(len, unique))
        lengths = torch.tensor([len(prompt) for prompt in unique])
        padding = torch.arange(shared, longest) < (longest - lengths + shared)[:, None]
        padded = [[0] * (longest - len(prompt)) + list(prompt[shared:]) for prompt in unique]
        size = max(1, _CHUNK_VALUES // (self.shape.intermediate_size * (longest - shared)))
        chunks = zip(torch.tensor(padded).split(size), padding.split(size), strict=True)
        parts = [self._forward(ids, some_padding, prefix) for ids, some_padding in chunks]

        columns = longest + max_new_tokens
        sizes = len(prompts), self.shape.num_kv_heads, columns, self.shape.head_dim
        caches: tuple[list[Tensor], list[Tensor]] = ([], [])
        for layer in range(len(self.layers)):
            for kind in (0, 1):
                cache = torch.empty(sizes, dtype=self.cache_dtype)
                if shared:
                    cache[:, :, :shared] = prefix[layer][kind]
                rest = torch.cat([computed[layer][kind] for computed, _ in parts])
                cache[:, :, shared:longest] = rest[of]
                caches[kind].append(cache)
        hidden = torch.cat([last for _, last in parts])
        return Prefill(*caches, hidden[of], lengths[of], F.pad(padding, (shared, 0))[of])

    def _forward(
        self, ids: Tensor, padding: Tensor, prefix: Sequence[tuple[Tensor, Tensor]]
    ) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
        """Read *ids* (U, P), padded on the left, after a *prefix* of keys and values (1, K, S, D) of each layer.

        Returns:
            Keys and values (U, K, P, D) of each layer, and the last hidden state (U, H).
        """
        rows, columns = ids.shape
        start = prefix[0][0].size(2) if prefix else 0
        positions = (start + torch.arange(columns) - padding.sum(1, keepdim=True)).clamp(min=0)
        causal = torch.ones(columns, columns, dtype=torch.bool).tril()
        # A padded position attends to itself, so that no row of the softmax is empty; nothing attends to it.
        mask = (causal & ~padding[:, None, :]) | torch.eye(columns, dtype=torch.bool)  # (U, P, P)
        mask = F.pad(mask, (start, 0), value=True)
        hidden = self.embedding[ids].float()  # (U, P, H)
        cos, sin = _rotation(self.rotary, hidden, positions)
        repeats = self.shape.num_heads // self.shape.num_kv_heads
        computed = []
        for index, layer in enumerate(self.layers):
            parts = layer.attention_input(hidden, cos[:, :, None], sin[:, :, None])
            q, k, v = (part.transpose(1, 2) for part in parts)
            computed.append((k, v))  # (U, K, P, D)
            if prefix:
                earlier_k, earlier_v = prefix[index]
                k = torch.cat((earlier_k.expand(rows, -1, -1, -1), k), 2)
                v = torch.cat((earlier_v.expand(rows, -1, -1, -1), v), 2)
            k = k.repeat_interleave(repeats, dim=1)
            v = v.repeat_interleave(repeats, dim=1)
            attended = F.scaled_dot_product_attention(q, k, v, mask[:, None])
            hidden = layer.output(hidden, attended.transpose(1, 2).flatten(2))
        return computed, hidden[:, -1]

    def _step(self, tokens: Tensor, batch: Prefill, step: int) -> Tensor:
        """Read one token a row, ids (B,), *step* columns after the prompts of *batch*; returns hidden (B, H)."""
        padding, column = batch.padding, batch.padding.size(1) + step
        hidden = self.embedding[tokens].float()
        positions = (batch.lengths + step)[:, None]
        cos, sin = _rotation(self.rotary, hidden, positions)  # (B, 1, D)
        mask = None
        if padding.any():
            hidden_columns = F.pad(padding, (0, column + 1 - padding.size(1)))
            mask = hidden_columns.logical_not()[:, None, None]  # (B, 1, 1, S)
        for layer, key, value in zip(self.layers, batch.keys, batch.values, strict=True):
            q, k, v = layer.attention_input(hidden, cos, sin)  # (B, heads, D)
            key[:, :, column] = k
            value[:, :, column] = v
            # The query heads of one key head take the place of a sequence of queries: keys need no repeating.
            queries = q.view(len(tokens), self.shape.num_kv_heads, -1, self.shape.head_dim)
            if len(queries) < _COMPILED_ROWS and self.cache_dtype == torch.float32:
                keys, values = key[:, :, : column + 1], value[:, :, : column + 1]
                attended = F.scaled_dot_product_attention(queries, keys, values, mask)
            else:
                attended = attend(queries, key, value, column + 1, mask)
            hidden = layer.output(hidden, attended.flatten(1))
        return hidden


def _shared_prefix(prompts: Sequence[Sequence[int]]) -> int:
    """The tokens of the common prefix of distinct *prompts* that is worth reading separately, or 0."""
    if len(prompts) == 1:
        return 0
    columns = zip(*(prompt[:-1] for prompt in prompts), strict=False)  # the last is never shared
    shared = sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))
    return shared if shared >= _MIN_SHARED_PREFIX else 0


def _normed(hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
    """*hidden* (..., H) after its RMS norm."""
    return F.rms_norm(hidden, hidden.shape[-1:], weight, eps)


def _rotation(rotary: Any, hidden: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines (B, T, D) of *positions* (B, T), those of the first half negative: each half of a head is
    rotated by adding the other one times its sine."""
    cos, sin = rotary(hidden, positions)
    half = sin.size(-1) // 2
    return cos, torch.cat((-sin[..., :half], sin[..., half:]), -1)


def _sample(logits: Tensor, decoding: Decoding, generator: torch.Generator | None) -> Tensor:
    """A token for each row of *logits* (B, V)."""
    if decoding.temperature == 0:
        return logits.argmax(-1)
    probabilities = distribution(logits, decoding)
    if probabilities.size(-1) < _LARGE_VOCABULARY or probabilities.size(-1) % _BLOCK:
        return _columns(probabilities, generator)
    blocks = probabilities.unflatten(-1, (-1, _BLOCK))
    block = _columns(blocks.sum(-1), generator)
    return block * _BLOCK + _columns(blocks[torch.arange(len(blocks)), block], generator)


def _columns(weights: Tensor, generator: torch.Generator | None) -> Tensor:
    """Sample a column for each row of *weights* (B, N), in proportion."""
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    uniform = torch.rand(len(weights), 1, dtype=torch.float64, generator=generator)
    return torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True)[:, 0]
