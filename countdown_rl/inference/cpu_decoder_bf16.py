"""The CPU decoder in bf16: weights packed once for oneDNN, and a key-value cache of half the size.

With bf16 weights a token costs mostly two things beside arithmetic: oneDNN packs each weight anew for every product,
and attention reads the whole cache. Here the weights are packed when the decoder is made, the cache is in bf16 (as in
``generate``), and attention reads it in fp32. Measured in ``benchmarks/README.md``.
"""

from dataclasses import replace
from typing import Any

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


def _packed(linear: _Linear) -> _PackedLinear:
    return _PackedLinear(packed_weight(linear.weight, _ROWS), linear.bias, linear.lora)
