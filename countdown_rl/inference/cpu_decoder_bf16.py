"""Decoding in bf16 on a processor: weights laid out once, and a key-value cache of half the size.

Where weights are bf16, a token costs mostly two things beside arithmetic: oneDNN lays each weight out anew
at every product, and attention reads the whole cache, which torch's kernel for a single query does at a
quarter of the speed of memory. Here the weights are laid out when the decoder is made, the cache is kept in
bf16 (as ``generate`` keeps it), and attention goes through it once, in fp32, in loops that Numba compiles.
Measured in ``benchmarks/README.md``.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - what everyone calls it

from countdown_rl.inference.cpu_decoder import Decoder, _Linear

#: Rows of a product that the layout of the weights is chosen for.
_ROWS = 64


def supported() -> bool:
    """Whether this processor has products in bf16 whose weights can be laid out beforehand."""
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


class _Packed(_Linear):
    """The same with a weight that is laid out as oneDNN reads it."""

    def __call__(self, x: Tensor, *, keep: bool = False) -> Tensor:
        out = torch.ops.mkldnn._linear_pointwise(x.bfloat16(), self.weight, self.bias, "none", [], "")
        if self.lora is not None:
            return out.float() + F.linear(F.linear(x.float(), self.lora[0]), self.lora[1])
        return out if keep else out.float()


class Bf16Decoder(Decoder):
    """A decoder of bf16 weights; see :class:`countdown_rl.inference.cpu_decoder.Decoder`."""

    @torch.no_grad()
    def __init__(self, model: Any) -> None:
        super().__init__(model, torch.bfloat16)
        self.layers = [
            replace(layer, **{name: _packed(getattr(layer, name)) for name in ("qkv", "out", "gate_up", "down")})
            for layer in self.layers
        ]
        threads = torch.get_num_threads()
        self._threads = ThreadPoolExecutor(threads) if threads > 1 else None

    def _read(
        self, prompts: Sequence[Sequence[int]], room: int
    ) -> tuple[list[Tensor], list[Tensor], Tensor, Tensor, Tensor]:
        keys, values, *rest = super()._read(prompts, 0)
        return [_roomy(part, room) for part in keys], [_roomy(part, room) for part in values], *rest

    def _step(
        self,
        tokens: Tensor,
        positions: Tensor,
        keys: list[Tensor],
        values: list[Tensor],
        padding: Tensor,
        at: int,
    ) -> Tensor:
        hidden = self.embedding[tokens].float()
        cos, sin = self.rotary(hidden, positions[:, None])  # (B, 1, D)
        hide = F.pad(padding, (0, at + 1 - padding.size(1)))[:, None, None] if padding.any() else None
        for layer, key, value in zip(self.layers, keys, values, strict=True):
            q, k, v = self._qkv(hidden, layer, cos, sin)  # (B, heads, D)
            key[:, :, at], value[:, :, at] = k, v
            grouped = q.view(len(tokens), self.kv_heads, -1, self.width) * self.width**-0.5
            scores = grouped.new_empty((*grouped.shape[:3], at + 1))  # (B, K, G, S)
            self._share(_compare, grouped, key, scores)
            if hide is not None:
                scores.masked_fill_(hide, -torch.inf)
            seen = torch.zeros_like(grouped)
            self._share(_gather, scores.softmax(-1), value, seen)
            hidden = self._rest(hidden, seen.flatten(1), layer)
        return hidden

    def _share(self, kernel: Callable[..., None], left: Tensor, cache: Tensor, out: Tensor) -> None:
        """Run *kernel*, rows spread over the threads that torch has."""
        arrays = (left.numpy(), cache.view(torch.uint16).numpy(), out.numpy())
        if self._threads is None:
            kernel(*arrays)
        else:
            parts = (np.array_split(array, torch.get_num_threads()) for array in arrays)
            list(self._threads.map(kernel, *parts))


def _packed(linear: _Linear) -> _Packed:
    weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight, _ROWS)
    return _Packed(weight, linear.bias, linear.lora)


def _roomy(cache: Tensor, room: int) -> Tensor:
    """*cache* (B, K, P, D) in bf16, with *room* for more columns."""
    rows, heads, columns, width = cache.shape
    whole = torch.empty(rows, heads, columns + room, width, dtype=torch.bfloat16)
    whole[:, :, :columns] = cache
    return whole


# A bf16 number is the upper half of an fp32 one; NumPy has no bf16, so the cache comes as uint16.
@numba.njit(cache=True, nogil=True, fastmath=True, error_model="numpy")
def _compare(queries: Any, keys: Any, scores: Any) -> None:
    """Scores (B, K, G, S) of queries (B, K, G, D) against keys (B, K, S and more, D)."""
    for row in range(queries.shape[0]):
        for head in range(queries.shape[1]):
            query, key, score = queries[row, head], keys[row, head], scores[row, head]
            for at in range(score.shape[1]):
                for one in range(query.shape[0]):
                    total = np.float32(0)
                    for d in range(query.shape[1]):
                        total += query[one, d] * np.uint32(key[at, d] * 65536).view(np.float32)
                    score[one, at] = total


@numba.njit(cache=True, nogil=True, fastmath=True, error_model="numpy")
def _gather(weights: Any, values: Any, out: Any) -> None:
    """Add to *out* (B, K, G, D) the values (B, K, S and more, D), each times its weight (B, K, G, S)."""
    for row in range(weights.shape[0]):
        for head in range(weights.shape[1]):
            weight, value, sums = weights[row, head], values[row, head], out[row, head]
            count = weight.shape[1]
            for at in range(0, count - 1, 2):  # two at a time: half the loads and stores of the sums
                for one in range(weight.shape[0]):
                    first, second, total = weight[one, at], weight[one, at + 1], sums[one]
                    for d in range(total.shape[0]):
                        total[d] += first * np.uint32(value[at, d] * 65536).view(np.float32) + second * np.uint32(
                            value[at + 1, d] * 65536
                        ).view(np.float32)
            if count % 2:
                for one in range(weight.shape[0]):
                    for d in range(sums.shape[1]):
                        sums[one, d] += weight[one, count - 1] * np.uint32(value[count - 1, d] * 65536).view(np.float32)
