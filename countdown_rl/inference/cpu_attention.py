"""Attention of one token a row over a key-value cache, in loops compiled by Numba.

They read the cache at the speed of memory; torch's kernel reaches half of that for a single query
in fp32, and a quarter in bf16. Measured in ``benchmarks/README.md``.
"""

from collections.abc import Callable

import numba
import numpy as np
import torch
from numba.extending import overload
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its usual name

#: Rows from which the compiled loops are faster than torch's kernel in fp32.
COMPILED_ROWS = 32

_compiled = numba.njit(cache=True, parallel=True, fastmath=True, error_model="numpy")


def attend(queries: Tensor, key: Tensor, value: Tensor, length: int, mask: Tensor | None) -> Tensor:
    """Attention (B, K, G, D) of *queries* in fp32 to the first *length* columns of a cache.

    *key* and *value* (B, K, S, D) are in fp32 or bf16; *mask* (B, 1, 1, S) is false at padding.
    """
    if len(queries) < COMPILED_ROWS and key.dtype == torch.float32:
        key, value = key[:, :, :length], value[:, :, :length]
        return F.scaled_dot_product_attention(queries, key, value, mask)
    queries = queries * queries.size(-1) ** -0.5
    scores = queries.new_empty((*queries.shape[:3], length))  # (B, K, G, S)
    numba.set_num_threads(min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS))
    if key.dtype == torch.bfloat16:
        # NumPy has no bf16: as uint16, it is the upper half of an fp32 number.
        key, value = key.view(torch.uint16), value.view(torch.uint16)
    _scores(queries.numpy(), key.numpy(), scores.numpy())
    if mask is not None:
        scores.masked_fill_(~mask, -torch.inf)
    attended = torch.zeros_like(queries)
    _weighted_sum(scores.softmax(-1).numpy(), value.numpy(), attended.numpy())
    return attended


def _fp32(number: np.number) -> np.number:
    """A number of a cache in fp32; only for compiled code."""
    raise NotImplementedError


@overload(_fp32, inline="always")
def _fp32_of_type(number: np.number) -> Callable[[np.number], np.number]:
    # Numba compares the parameters with their annotations: they are the same in all four.
    def converted(number: np.number) -> np.number:
        return np.uint32(number * 65536).view(np.float32)

    def same(number: np.number) -> np.number:
        return number

    return converted if isinstance(number, numba.types.Integer) else same


@_compiled
def _scores(queries: np.ndarray, keys: np.ndarray, scores: np.ndarray) -> None:
    """Write to *scores* (B, K, G, S) products of queries (B, K, G, D) and keys (B, K, S.., D)."""
    for row in numba.prange(queries.shape[0]):
        for head in range(queries.shape[1]):
            query, key, score = queries[row, head], keys[row, head], scores[row, head]
            for s in range(score.shape[1]):
                for g in range(query.shape[0]):
                    total = np.float32(0)
                    for d in range(query.shape[1]):
                        total += query[g, d] * _fp32(key[s, d])
                    score[g, s] = total


@_compiled
def _weighted_sum(weights: np.ndarray, values: np.ndarray, out: np.ndarray) -> None:
    """Add to *out* (B, K, G, D) values (B, K, S.., D) times their weights (B, K, G, S)."""
    for row in numba.prange(weights.shape[0]):
        for head in range(weights.shape[1]):
            weight, value, sums = weights[row, head], values[row, head], out[row, head]
            count = weight.shape[1]
            # Two columns at a time: half the loads and stores of the sums.
            for s in range(0, count - 1, 2):
                for g in range(weight.shape[0]):
                    first, second, total = weight[g, s], weight[g, s + 1], sums[g]
                    for d in range(total.shape[0]):
                        total[d] += first * _fp32(value[s, d]) + second * _fp32(value[s + 1, d])
            if count % 2:
                for g in range(weight.shape[0]):
                    for d in range(sums.shape[1]):
                        sums[g, d] += weight[g, count - 1] * _fp32(value[count - 1, d])
