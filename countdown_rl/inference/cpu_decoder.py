"""Sampling from a Llama-shaped model on a CPU, at the speed of its matrix products.

``generate`` of transformers is bound by its overhead for small models: a Python layer stack, a key-value
cache that is copied at every token, LoRA's extra products, and rows that wait for the longest one. Here the
adapter is folded into a copy of fp32 weights once a round, projections of the same input are one product,
each prompt is read once however many completions it gets, the cache is written in place, and rows leave
when they are done. The arithmetic is that of ``LlamaForCausalLM`` (a test compares the logits).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - what everyone calls it

#: Rows that are done leave once they are this share of the batch; compacting copies the cache.
_SLACK = 0.125

#: Tokens that all prompts of a batch must begin with for them to be read once, apart.
_WORTH_SHARING = 32

#: Numbers that a layer's inner width comes to, over the prompts that are read at once.
_AT_ONCE = 1 << 21


@dataclass(frozen=True)
class _Linear:
    """Layers that read the same input, as one: weight (O, I), bias (O,), and LoRA's (R, I) and (O, R)."""

    weight: Tensor
    bias: Tensor | None
    lora: tuple[Tensor, Tensor] | None

    def __call__(self, x: Tensor, *, keep: bool = False) -> Tensor:
        """The product in fp32; with *keep* in the type of the weights, where there is no LoRA to add."""
        out = F.linear(x.to(self.weight.dtype), self.weight, self.bias)
        if self.lora is not None:
            return out.float() + F.linear(F.linear(x.float(), self.lora[0]), self.lora[1])
        return out if keep else out.float()


@dataclass(frozen=True)
class _Layer:
    norm_in: Tensor
    qkv: _Linear
    out: _Linear
    norm_mlp: Tensor
    gate_up: _Linear
    down: _Linear


class Stop:
    """Where a completion is over: at an end token of the model or the tokenizer, or when it says *text*.

    *model* is None where another engine holds it: then the tokenizer alone knows.
    """

    def __init__(self, tokenizer: Any, model: Any, text: str) -> None:
        end = None if model is None else model.generation_config.eos_token_id
        as_one = tokenizer.encode(text, add_special_tokens=False)
        self.text = text
        #: Single tokens that end a completion.
        self.ids = {
            tokenizer.eos_token_id,
            tokenizer.pad_token_id,
            *(end if isinstance(end, list) else [end]),
        }
        self.ids |= set(as_one) if len(as_one) == 1 else set()
        # Some checkpoints name an end that is not in their vocabulary: they cannot write it.
        size = len(tokenizer) if model is None else model.get_input_embeddings().num_embeddings
        self.ids = {index for index in self.ids if index is not None and index < size}
        self._tokenizer = tokenizer
        #: (V,) whether a token can be the last one; only then is a completion looked at.
        self.may_end = torch.zeros(size, dtype=torch.bool)
        last = [index for token, index in tokenizer.get_vocab().items() if text[-1] in token]
        self.may_end[[*self.ids, *(index for index in last if index < size)]] = True

    def __call__(self, ids: Sequence[int]) -> bool:
        """Whether a completion is over with its last token."""
        # The text cannot be longer in tokens than in characters, and one more may hold its end.
        return ids[-1] in self.ids or self.text in self._tokenizer.decode(ids[-len(self.text) - 1 :])

    def cut(self, ids: list[int]) -> list[int]:
        """*ids* up to the token with which they are over."""
        ends = (at + 1 for at, token in enumerate(ids) if self.may(token) and self(ids[: at + 1]))
        return ids[: next(ends, len(ids))]

    def may(self, token: int) -> bool:
        """Whether *token* can be the last one; another engine may know tokens that the tokenizer does not."""
        return token < len(self.may_end) and bool(self.may_end[token])


def supports(model: Any) -> bool:
    """Whether *model* (plain, or under a LoRA adapter) is one that :class:`Decoder` can stand in for."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    config = base.config
    if getattr(config, "model_type", "") != "llama" or base.device.type != "cpu" or config.hidden_act != "silu":
        return False
    if "dynamic" in config.rope_parameters.get("rope_type", "default"):
        return False
    linears = [block.self_attn.q_proj for block in base.model.layers]
    plain = all(type(getattr(linear, "base_layer", linear)) is torch.nn.Linear for linear in linears)
    return plain and not any(getattr(linear, "use_dora", {}).get("default") for linear in linears)


class Decoder:
    """The weights of *model* as they are now, laid out for decoding. Make a new one when they change.

    Matrix products are in fp32, or with *dtype* bf16 in that, for which LoRA stays beside the weights,
    in fp32: bf16 would round it away. Everything else is in fp32.
    """

    @torch.no_grad()
    def __init__(self, model: Any, dtype: torch.dtype = torch.float32) -> None:
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        config = base.config
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = config.num_key_value_heads
        self.width: int = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.inner: int = config.intermediate_size
        self.eps: float = config.rms_norm_eps
        self.rotary = base.model.rotary_emb
        self.embedding = base.get_input_embeddings().weight.to(dtype)  # (V, H)
        self.head = base.get_output_embeddings().weight.to(dtype)  # (V, H)
        self.norm = base.model.norm.weight.float()
        self.layers = [
            _Layer(
                norm_in=block.input_layernorm.weight.float(),
                qkv=_joined(dtype, block.self_attn.q_proj, block.self_attn.k_proj, block.self_attn.v_proj),
                out=_joined(dtype, block.self_attn.o_proj),
                norm_mlp=block.post_attention_layernorm.weight.float(),
                gate_up=_joined(dtype, block.mlp.gate_proj, block.mlp.up_proj),
                down=_joined(dtype, block.mlp.down_proj),
            )
            for block in base.model.layers
        ]

    @torch.inference_mode()
    def decode(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        stop: Stop,
        temperature: float = 0.0,
        top_p: float = 1.0,
        generator: torch.Generator | None = None,
        on_token: Callable[[int], None] | None = None,
    ) -> list[list[int]]:
        """Continue each of *prompts* (token ids); equal ones are read once.

        Args:
            stop: when a completion is over before *max_new_tokens*.
            temperature: 0 takes the likeliest token.
            generator: None takes torch's own.
            on_token: called with each token as it comes, in the order of the rows.

        Returns:
            The token ids of each completion, the token that ended it included.
        """
        keys, values, hidden, lengths, padding = self._read(prompts, max_new_tokens)
        rows = torch.arange(len(prompts))  # which prompt each row of the batch belongs to
        done: list[list[int]] = [[] for _ in prompts]
        alive = torch.ones(len(prompts), dtype=torch.bool)
        start = padding.size(1)
        for step in range(max_new_tokens):
            normed = F.rms_norm(hidden, hidden.shape[-1:], self.norm, self.eps)
            logits = F.linear(normed.to(self.head.dtype), self.head).float()  # (B, V)
            tokens = _pick(logits, temperature, top_p, generator)  # (B,)
            finished = stop.may_end[tokens] & alive
            for row, token in zip(rows[alive].tolist(), tokens[alive].tolist(), strict=True):
                done[row].append(token)
                if on_token is not None:
                    on_token(token)
            for index in finished.nonzero()[:, 0].tolist():
                alive[index] = not stop(done[int(rows[index])])
            count = int(alive.sum())
            if count == 0 or step + 1 == max_new_tokens:
                break
            if count <= (1 - _SLACK) * len(alive):
                # Only what was written so far is copied; the room behind it comes with the new tensors.
                used = start + step
                keys, values = ([_compact(part, alive, used) for part in cache] for cache in (keys, values))
                rows, tokens, lengths, padding = rows[alive], tokens[alive], lengths[alive], padding[alive]
                alive = torch.ones(count, dtype=torch.bool)
            hidden = self._step(tokens, lengths + step, keys, values, padding, start + step)
        return done

    def _read(
        self, prompts: Sequence[Sequence[int]], room: int
    ) -> tuple[list[Tensor], list[Tensor], Tensor, Tensor, Tensor]:
        """Read the prompts.

        Returns:
            Keys and values (B, K, P + room, D) a layer, the last hidden state (B, H), the prompts'
            lengths (B,), and which of their columns are padding (B, P).
        """
        unique = list(dict.fromkeys(map(tuple, prompts)))
        index = {prompt: at for at, prompt in enumerate(unique)}
        of = torch.tensor([index[tuple(prompt)] for prompt in prompts])
        columns = zip(*(prompt[:-1] for prompt in unique), strict=False)  # the last token of each is its own
        shared = sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns)) if len(unique) > 1 else 0
        prefix: list[tuple[Tensor, Tensor]] = []
        if shared >= _WORTH_SHARING:
            prefix = self._pass(torch.tensor([unique[0][:shared]]), torch.zeros(1, shared, dtype=torch.bool), [])[0]
        else:
            shared = 0
        longest = max(map(len, unique))
        lengths = torch.tensor([len(prompt) for prompt in unique])
        # What is shared stands first, then padding, then each prompt's own; (U, P - shared)
        padding = torch.arange(shared, longest) < (longest - lengths + shared)[:, None]
        ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt[shared:]) for prompt in unique])
        # A chunk of prompts at a time: what is between their layers stays near the processor.
        size = max(1, _AT_ONCE // (self.inner * (longest - shared)))
        parts = [self._pass(some, pad, prefix) for some, pad in zip(ids.split(size), padding.split(size), strict=True)]
        caches: tuple[list[Tensor], list[Tensor]] = ([], [])
        for at in range(len(self.layers)):
            for which, cache in enumerate(caches):
                whole = torch.empty(len(prompts), self.kv_heads, longest + room, self.width)
                if shared:
                    whole[:, :, :shared] = prefix[at][which]
                whole[:, :, shared:longest] = torch.cat([kept[at][which] for kept, _ in parts])[of]
                cache.append(whole)
        hidden = torch.cat([last for _, last in parts])
        padding = F.pad(padding, (shared, 0))
        return *caches, hidden[of], lengths[of], padding[of]

    def _pass(
        self, ids: Tensor, padding: Tensor, prefix: Sequence[tuple[Tensor, Tensor]]
    ) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
        """Read *ids* (U, P), padded on their left, after what *prefix* holds (1, K, S, D) of each layer.

        Returns:
            Their keys and values (U, K, P, D) a layer, and the last hidden state (U, H).
        """
        rows, columns = ids.shape
        before = prefix[0][0].size(2) if prefix else 0
        positions = (before + torch.arange(columns) - padding.sum(1, keepdim=True)).clamp(min=0)
        causal = torch.ones(columns, columns, dtype=torch.bool).tril()
        # A padded position sees itself, so that no row of the softmax is empty; nothing looks at it.
        mask = (causal & ~padding[:, None, :]) | torch.eye(columns, dtype=torch.bool)  # (U, P, P)
        mask = F.pad(mask, (before, 0), value=True)
        hidden = self.embedding[ids].float()  # (U, P, H)
        cos, sin = self.rotary(hidden, positions)
        kept = []
        for at, layer in enumerate(self.layers):
            q, k, v = self._qkv(hidden, layer, cos[:, :, None], sin[:, :, None])
            q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)  # (U, heads, P, D)
            kept.append((k, v))
            if prefix:
                k, v = (torch.cat((prefix[at][i].expand(rows, -1, -1, -1), new), 2) for i, new in enumerate((k, v)))
            seen = F.scaled_dot_product_attention(q, self._repeat(k), self._repeat(v), mask[:, None])
            hidden = self._rest(hidden, seen.transpose(1, 2).flatten(2), layer)
        return kept, hidden[:, -1]

    def _step(
        self,
        tokens: Tensor,
        positions: Tensor,
        keys: list[Tensor],
        values: list[Tensor],
        padding: Tensor,
        at: int,
    ) -> Tensor:
        """One token a row, ids (B,) at positions (B,), written to column *at* of the caches: hidden (B, H)."""
        hidden = self.embedding[tokens].float()
        cos, sin = self.rotary(hidden, positions[:, None])  # (B, 1, D)
        mask = None
        if padding.any():
            mask = F.pad(padding, (0, at + 1 - padding.size(1))).logical_not()[:, None, None]  # (B, 1, 1, S)
        for layer, key, value in zip(self.layers, keys, values, strict=True):
            q, k, v = self._qkv(hidden, layer, cos, sin)  # (B, heads, D)
            key[:, :, at], value[:, :, at] = k, v
            # The query heads of one key head stand in for a sequence of queries: no repeated keys.
            grouped = q.view(len(tokens), self.kv_heads, -1, self.width)
            seen = F.scaled_dot_product_attention(grouped, key[:, :, : at + 1], value[:, :, : at + 1], mask)
            hidden = self._rest(hidden, seen.flatten(1), layer)
        return hidden

    def _qkv(self, hidden: Tensor, layer: _Layer, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        normed = F.rms_norm(hidden, hidden.shape[-1:], layer.norm_in, self.eps)
        joined = layer.qkv(normed).unflatten(-1, (-1, self.width))
        turning, v = joined.split((self.heads + self.kv_heads, self.kv_heads), dim=-2)
        half = self.width // 2
        turned = torch.cat((-turning[..., half:], turning[..., :half]), dim=-1)
        q, k = (turning * cos + turned * sin).split((self.heads, self.kv_heads), dim=-2)
        return q, k, v

    def _rest(self, hidden: Tensor, seen: Tensor, layer: _Layer) -> Tensor:
        hidden = hidden + layer.out(seen)
        normed = F.rms_norm(hidden, hidden.shape[-1:], layer.norm_mlp, self.eps)
        gate, up = layer.gate_up(normed, keep=True).chunk(2, dim=-1)
        return hidden + layer.down(F.silu(gate) * up)

    def _repeat(self, heads: Tensor) -> Tensor:
        return heads.repeat_interleave(self.heads // self.kv_heads, dim=1)


def _joined(dtype: torch.dtype, *linears: Any) -> _Linear:
    """The weights (and biases) of layers that read the same input, as one, LoRA folded in where that is exact."""
    weights, biases = [], []
    downs: list[Tensor] = []
    ups: list[Tensor] = []  # each of its own rows and columns
    for linear in linears:
        layer = getattr(linear, "base_layer", linear)
        weight = layer.weight.to(dtype)
        up = weight.new_zeros((len(weight), 0), dtype=torch.float32)
        for adapter in getattr(linear, "active_adapters", ()):
            if dtype == torch.float32:
                weight = weight + linear.get_delta_weight(adapter).float()
            else:
                downs.append(linear.lora_A[adapter].weight.float())
                up = torch.cat((up, linear.lora_B[adapter].weight.float() * linear.scaling[adapter]), dim=1)
        weights.append(weight)
        biases.append(layer.bias)
        ups.append(up)
    bias = torch.cat(biases).to(dtype) if biases[0] is not None else None
    lora = (torch.cat(downs), torch.block_diag(*ups)) if downs else None
    return _Linear(torch.cat(weights), bias, lora)


def _pick(logits: Tensor, temperature: float, top_p: float, generator: torch.Generator | None) -> Tensor:
    if temperature == 0:
        return logits.argmax(-1)
    probabilities = (logits / temperature).softmax(-1)
    if top_p < 1:
        ordered, order = probabilities.sort(-1, descending=True)
        ordered[ordered.cumsum(-1) - ordered >= top_p] = 0
        probabilities = torch.zeros_like(ordered).scatter_(-1, order, ordered)
    # The exponential race: the smallest of Exp(p) clocks rings at i with probability p_i.
    clocks = torch.empty_like(probabilities).exponential_(generator=generator)
    return (probabilities / clocks).argmax(-1)


def _compact(cache: Tensor, keep: Tensor, used: int) -> Tensor:
    kept = cache.new_empty((int(keep.sum()), *cache.shape[1:]))
    kept[:, :, :used] = cache[keep, :, :used]
    return kept
