"""The CPU decoder in bf16: weights packed once for oneDNN, and a key-value cache of half the size.

With bf16 weights a token costs mostly two things beside arithmetic: oneDNN packs each weight anew for every product,
and attention reads the whole cache, which torch's kernel for a single query does at a quarter of the speed of memory.
Here the weights are packed when the decoder is made, the cache is in bf16 (as in ``generate``), and attention reads it
once, in fp32, in loops compiled by Numba. Measured in ``benchmarks/README.md``.
"""

from dataclasses import replace
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from countdown_rl.inference.cpu_decoder import Decoder, _Linear
from countdown_rl.models.torch_internals import packed_linear, packed_weight

#: Rows of a product for which the packed layout is chosen.
_ROWS = 64


class _PackedLinear(_Linear):
    """A linear layer whose weight is packed for oneDNN."""

    def _product(self, x: Tensor) -> Tensor:
        return packed_linear(x, self.weight, self.bias)


class Bf16Decoder(Decoder):
    """A decoder of bf16 weights; see :class:`countdown_rl.inference.cpu_decoder.Decoder`."""

    cache_dtype = torch.bfloat16

    @torch.no_grad()
    def __init__(self, model: Any) -> None:
        super().__init__(model, torch.bfloat16)
        self.layers = [
            replace(layer, **{name: _packed(getattr(layer, name)) for name in ("qkv", "out", "gate_up", "down")})
            for layer in self.layers
        ]

    def _attend(self, queries: Tensor, key: Tensor, value: Tensor, length: int, mask: Tensor | None) -> Tensor:
        queries = queries * self.shape.head_dim**-0.5
        scores = queries.new_empty((*queries.shape[:3], length))  # (B, K, G, S)
        numba.set_num_threads(min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS))
        _scores(queries.numpy(), _bits(key), scores.numpy())
        if mask is not None:
            scores.masked_fill_(~mask, -torch.inf)
        attended = torch.zeros_like(queries)
        _weighted_sum(scores.softmax(-1).numpy(), _bits(value), attended.numpy())
        return attended


def _packed(linear: _Linear) -> _PackedLinear:
    return _PackedLinear(packed_weight(linear.weight, _ROWS), linear.bias, linear.lora)


def _bits(cache: Tensor) -> Any:
    """*cache*, in bf16, as uint16 for NumPy, which has no bf16: it is the upper half of an fp32 number."""
    return cache.view(torch.uint16).numpy()


@numba.njit(cache=True, parallel=True, fastmath=True, error_model="numpy")
def _scores(queries: Any, keys: Any, scores: Any) -> None:
    """Write to *scores* (B, K, G, S) the products of queries (B, K, G, D) and keys (B, K, S or more, D)."""
    for row in numba.prange(queries.shape[0]):
        for head in range(queries.shape[1]):
            query, key, score = queries[row, head], keys[row, head], scores[row, head]
            for s in range(score.shape[1]):
                for g in range(query.shape[0]):
                    total = np.float32(0)
                    for d in range(query.shape[1]):
                        total += query[g, d] * np.uint32(key[s, d] * 65536).view(np.float32)
                    score[g, s] = total


@numba.njit(cache=True, parallel=True, fastmath=True, error_model="numpy")
def _weighted_sum(weights: Any, values: Any, out: Any) -> None:
    """Add to *out* (B, K, G, D) the values (B, K, S or more, D), each times its weight (B, K, G, S)."""
    for row in numba.prange(weights.shape[0]):
        for head in range(weights.shape[1]):
            weight, value, sums = weights[row, head], values[row, head], out[row, head]
            count = weight.shape[1]
            for s in range(0, count - 1, 2):  # two columns at a time: half the loads and stores of the sums
                for g in range(weight.shape[0]):
                    first, second, total = weight[g, s], weight[g, s + 1], sums[g]
                    for d in range(total.shape[0]):
                        total[d] += first * np.uint32(value[s, d] * 65536).view(np.float32) + second * np.uint32(
                            value[s + 1, d] * 65536
                        ).view(np.float32)
            if count % 2:
                for g in range(weight.shape[0]):
                    for d in range(sums.shape[1]):
                        sums[g, d] += weight[g, count - 1] * np.uint32(value[count - 1, d] * 65536).view(np.float32)
