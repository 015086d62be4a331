"""A decoder of Llama models on a CPU, limited by matrix products where ``generate`` of transformers is by overhead.

An adapter is folded into a copy of fp32 weights once a round, bf16 weights are packed for oneDNN once, projections of
the same input are one product, each distinct prompt is read once, the cache is written in place, and finished rows are
removed. The arithmetic is that of ``LlamaForCausalLM``. Measured in ``benchmarks/README.md``.

Shapes: B rows, U distinct prompts, P prompt columns, S columns of the cache, H hidden size, K key-value heads,
D head size, V vocabulary.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its usual name

from countdown_rl.inference import layers
from countdown_rl.inference.cpu_attention import attend
from countdown_rl.inference.layers import Layer, Linear, normed, rotation
from countdown_rl.inference.sampling import Decoding, Stop, distribution
from countdown_rl.models import torch_internals
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
    base = layers.base_of(model)
    if not layers.supports(model, "llama") or base.device.type != "cpu":
        return False
    parts = (part for block in base.model.layers for part in (block.self_attn, block.mlp))
    weights = (module for part in parts for module in part.children() if hasattr(module, "weight"))
    plain = all(
        type(getattr(module, "base_layer", module)) is torch.nn.Linear for module in weights
    )
    return plain and "dynamic" not in base.config.rope_parameters.get("rope_type", "default")


class Decoder:
    """A snapshot of the weights of *model*, laid out for decoding. Make a new one when the weights change.

    Matrix products are in *dtype*, fp32 or bf16. In bf16 LoRA's two products stay beside the weights', because bf16
    would round the sum of the matrices. The cache is in bf16 (as in ``generate``) where oneDNN computes in bf16.
    Everything else is in fp32.
    """

    @torch.no_grad()
    def __init__(self, model: Any, dtype: torch.dtype = torch.float32) -> None:
        base = layers.base_of(model)
        packed = dtype == torch.bfloat16 and torch_internals.has_bf16_products()
        self.cache_dtype = dtype if packed else torch.float32
        self.shape = ModelShape.of(base.config)
        self.eps: float = base.config.rms_norm_eps
        self.rotary = base.model.rotary_emb
        self.embedding = base.get_input_embeddings().weight.to(dtype)  # (V, H)
        self.head = base.get_output_embeddings().weight.to(dtype)  # (V, H)
        self.norm = base.model.norm.weight.float()
        joined = partial(_joined, dtype, packed)
        self.layers = [
            Layer.of(block, base.config, torch.float32, joined) for block in base.model.layers
        ]

    @torch.inference_mode()
    def decode(
        self,
        prompts: Sequence[Sequence[int]],
        decoding: Decoding,
        stop: Stop,
        generator: torch.Generator | None = None,
        on_step: Callable[[list[int]], None] | None = None,
    ) -> list[list[int]]:
        """The token ids of a completion of each of *prompts*, including the one that ended it; *on_step* is called
        after each step with the token ids so far of a completion that had not ended before."""
        keys, values, hidden, lengths, padding = self._prefill(prompts, decoding.max_new_tokens)
        completions: list[list[int]] = [[] for _ in prompts]
        rows = torch.arange(len(prompts))  # the prompt of each row in the batch
        active = torch.ones(len(prompts), dtype=torch.bool)
        start = padding.size(1)
        for step in range(decoding.max_new_tokens):
            last = normed(hidden, self.norm, self.eps)
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
                keys, values = (
                    [_compact(part, active, start + step) for part in cache]
                    for cache in (keys, values)
                )
                rows, tokens, lengths, padding = (
                    rows[active],
                    tokens[active],
                    lengths[active],
                    padding[active],
                )
                active = torch.ones(count, dtype=torch.bool)
            hidden = self._step(tokens, lengths + step, keys, values, padding, start + step)
        return completions

    def _prefill(
        self, prompts: Sequence[Sequence[int]], max_new_tokens: int
    ) -> tuple[list[Tensor], list[Tensor], Tensor, Tensor, Tensor]:
        """Keys and values (B, K, P + max_new_tokens, D) of each layer, the last hidden state (B, H), the prompts'
        lengths (B,), and which of their columns are padding (B, P)."""
        unique = list(dict.fromkeys(map(tuple, prompts)))
        indices = {prompt: index for index, prompt in enumerate(unique)}
        of = torch.tensor(
            [indices[tuple(prompt)] for prompt in prompts]
        )  # (B,) indices into unique
        shared, prefix = 0, list[tuple[Tensor, Tensor]]()
        if len(unique) > 1:
            columns = zip(
                *(prompt[:-1] for prompt in unique), strict=False
            )  # the last token is never shared
            shared = sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))
            shared = shared if shared >= _MIN_SHARED_PREFIX else 0
        if shared:
            prefix, _ = self._forward(
                torch.tensor([unique[0][:shared]]), torch.zeros(1, shared, dtype=torch.bool), []
            )
        longest = max(map(len, unique))
        lengths = torch.tensor([len(prompt) for prompt in unique])
        # The shared prefix comes first, then padding, then the rest of each prompt; (U, P - shared)
        padding = torch.arange(shared, longest) < (longest - lengths + shared)[:, None]
        ids = torch.tensor(
            [[0] * (longest - len(prompt)) + list(prompt[shared:]) for prompt in unique]
        )
        size = max(1, _CHUNK_VALUES // (self.shape.intermediate_size * (longest - shared)))
        chunks = zip(ids.split(size), padding.split(size), strict=True)
        parts = [self._forward(some_ids, some_padding, prefix) for some_ids, some_padding in chunks]
        cache_shape = (
            len(prompts),
            self.shape.num_kv_heads,
            longest + max_new_tokens,
            self.shape.head_dim,
        )

        def cached(layer: int, kind: int) -> Tensor:
            cache = torch.empty(cache_shape, dtype=self.cache_dtype)
            if shared:
                cache[:, :, :shared] = prefix[layer][kind]
            cache[:, :, shared:longest] = torch.cat(
                [computed[layer][kind] for computed, _ in parts]
            )[of]
            return cache

        keys, values = (
            [cached(layer, kind) for layer in range(len(self.layers))] for kind in (0, 1)
        )
        hidden = torch.cat([last for _, last in parts])
        return keys, values, hidden[of], lengths[of], F.pad(padding, (shared, 0))[of]

    def _forward(
        self, ids: Tensor, padding: Tensor, prefix: Sequence[tuple[Tensor, Tensor]]
    ) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
        """Keys and values (U, K, P, D) of each layer, and the last hidden state (U, H), of *ids* (U, P), padded on the
        left, after a *prefix* of keys and values (1, K, S, D) of each layer."""
        rows, columns = ids.shape
        start = prefix[0][0].size(2) if prefix else 0
        positions = (start + torch.arange(columns) - padding.sum(1, keepdim=True)).clamp(min=0)
        causal = torch.ones(columns, columns, dtype=torch.bool).tril()
        # A padded position attends to itself, so that no row of the softmax is empty; nothing attends to it.
        mask = (causal & ~padding[:, None, :]) | torch.eye(columns, dtype=torch.bool)  # (U, P, P)
        mask = F.pad(mask, (start, 0), value=True)
        hidden = self.embedding[ids].float()  # (U, P, H)
        cos, sin = rotation(self.rotary, hidden, positions)
        repeats = self.shape.num_heads // self.shape.num_kv_heads
        computed = []
        for index, layer in enumerate(self.layers):
            q, k, v = (
                part.transpose(1, 2)
                for part in layer.attention_input(hidden, cos[:, :, None], sin[:, :, None])
            )
            computed.append((k, v))  # (U, K, P, D)
            if prefix:
                k, v = (
                    torch.cat((prefix[index][i].expand(rows, -1, -1, -1), new), 2)
                    for i, new in enumerate((k, v))
                )
            k, v = k.repeat_interleave(repeats, dim=1), v.repeat_interleave(repeats, dim=1)
            attended = F.scaled_dot_product_attention(q, k, v, mask[:, None])
            hidden = layer.output(hidden, attended.transpose(1, 2).flatten(2))
        return computed, hidden[:, -1]

    def _step(
        self,
        tokens: Tensor,
        positions: Tensor,
        keys: list[Tensor],
        values: list[Tensor],
        padding: Tensor,
        column: int,
    ) -> Tensor:
        """Read one token a row, ids (B,) at *positions* (B,), into *column* of the caches; returns hidden (B, H)."""
        hidden = self.embedding[tokens].float()
        cos, sin = rotation(self.rotary, hidden, positions[:, None])  # (B, 1, D)
        mask = None
        if padding.any():
            mask = F.pad(padding, (0, column + 1 - padding.size(1))).logical_not()[
                :, None, None
            ]  # (B, 1, 1, S)
        for layer, key, value in zip(self.layers, keys, values, strict=True):
            q, k, v = layer.attention_input(hidden, cos, sin)  # (B, heads, D)
            key[:, :, column], value[:, :, column] = k, v
            # The query heads of one key head take the place of a sequence of queries: keys need no repeating.
            queries = q.view(len(tokens), self.shape.num_kv_heads, -1, self.shape.head_dim)
            if len(queries) < _COMPILED_ROWS and self.cache_dtype == torch.float32:
                columns = slice(column + 1)
                attended = F.scaled_dot_product_attention(
                    queries, key[:, :, columns], value[:, :, columns], mask
                )
            else:
                attended = attend(queries, key, value, column + 1, mask)
            hidden = layer.output(hidden, attended.flatten(1))
        return hidden


def _joined(dtype: torch.dtype, packed: bool, *modules: Any) -> Linear:
    """Join layers with the same input; LoRA is folded in if *dtype* is fp32, which is exact."""
    bases = [getattr(module, "base_layer", module) for module in modules]
    weights = [base.weight.to(dtype) for base in bases]
    if fold := dtype == torch.float32:
        for index, module in enumerate(modules):
            for adapter in getattr(module, "active_adapters", ()):
                weights[index] = weights[index] + module.get_delta_weight(adapter).float()
    weight = torch.cat(weights)
    return Linear(
        torch_internals.packed_weight(weight, _PACKED_ROWS) if packed else weight,
        torch.cat([base.bias for base in bases]).to(dtype) if bases[0].bias is not None else None,
        None if fold else layers.adapters_of(modules, dtype),
    )


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
    points = (
        torch.rand(len(weights), 1, dtype=torch.float64, generator=generator) * cumulative[:, -1:]
    )
    return torch.searchsorted(cumulative, points, right=True)[:, 0]


def _compact(cache: Tensor, active: Tensor, used: int) -> Tensor:
    """The rows *active* of *cache* (B, K, S, D); only *used* columns are copied, as later ones are not written yet."""
    compact = cache.new_empty((int(active.sum()), *cache.shape[1:]))
    compact[:, :, :used] = cache[active, :, :used]
    return compact
