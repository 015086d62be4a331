"""A decoder layer of Llama, Qwen2 and Qwen3 written out: linear layers with the same input are one product.

The CPU decoder and the graph decoder share it. Shapes: H hidden size, D head size, I and O inputs and outputs of a
product, R ranks of its adapters.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its usual name

from countdown_rl.models import lora, torch_internals
from countdown_rl.models.shape import ModelShape


class Copy(NamedTuple):
    """A copy of *source* times *scale* in another place or type."""

    target: Tensor
    source: Tensor
    scale: float = 1.0

    @torch.no_grad()
    def refresh(self) -> None:
        self.target.copy_(self.source if self.scale == 1.0 else self.source.float() * self.scale)


@dataclass(frozen=True)
class Adapters:
    """LoRA of layers with the same input: their *a* (R, I) one below the other, and *b* (O, R), block-diagonal and
    scaled, which are *copies*."""

    a: Tensor
    b: Tensor
    copies: list[Copy]


@dataclass(frozen=True)
class Linear:
    """Linear layers with the same input, joined: weight (O, I) and bias (O,), or *separate* ones, if quantized."""

    weight: Any
    bias: Tensor | None
    adapters: Adapters | None
    separate: Sequence[torch.nn.Module] = ()

    def __call__(self, x: Tensor, dtype: torch.dtype, *, keep_dtype: bool = False) -> Tensor:
        """The output in *dtype*; with *keep_dtype* in the weights' type, if there is no LoRA to add."""
        if self.separate:
            out = torch.cat([layer(x) for layer in self.separate], -1)
        else:
            x = x.to(self.weight.dtype)
            product = torch_internals.packed_linear if self.weight.is_mkldnn else F.linear
            out = product(x, self.weight, self.bias)
        if self.adapters is None:
            return out if keep_dtype else out.to(dtype)
        low = F.linear(x.to(self.adapters.a.dtype), self.adapters.a)
        if out.dtype == low.dtype == dtype:
            return torch.addmm(out, low, self.adapters.b.T)
        return out.to(dtype) + F.linear(low, self.adapters.b).to(dtype)


@dataclass(frozen=True)
class Layer:
    """A layer of a model of *shape*; Qwen3 norms the heads of queries and of keys by the weights *norm_heads*."""

    shape: ModelShape
    eps: float
    norm_in: Tensor
    qkv: Linear
    norm_heads: Sequence[Tensor]
    out: Linear
    norm_mlp: Tensor
    gate_up: Linear
    down: Linear

    @classmethod
    def of(
        cls, block: Any, config: Any, dtype: torch.dtype, joined: Callable[..., Linear]
    ) -> "Layer":
        """The layer of a *block* of transformers for hidden states in *dtype*; *joined* joins its linear layers."""
        attention, mlp = block.self_attn, block.mlp
        norms = [attention.q_norm, attention.k_norm] if hasattr(attention, "q_norm") else []
        return cls(
            ModelShape.of(config),
            config.rms_norm_eps,
            norm_in=block.input_layernorm.weight.to(dtype),
            qkv=joined(attention.q_proj, attention.k_proj, attention.v_proj),
            norm_heads=[norm.weight.to(dtype) for norm in norms],
            out=joined(attention.o_proj),
            norm_mlp=block.post_attention_layernorm.weight.to(dtype),
            gate_up=joined(mlp.gate_proj, mlp.up_proj),
            down=joined(mlp.down_proj),
        )

    def attention_input(
        self, hidden: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (..., heads, D) of *hidden* (..., H), rotated by :func:`rotation`."""
        heads, kv_heads, width = self.shape.num_heads, self.shape.num_kv_heads, self.shape.head_dim
        out = self.qkv(normed(hidden, self.norm_in, self.eps), hidden.dtype)
        qk, v = out.unflatten(-1, (-1, width)).split((heads + kv_heads, kv_heads), dim=-2)
        if self.norm_heads:
            scales = [
                norm.expand(n, -1)
                for norm, n in zip(self.norm_heads, (heads, kv_heads), strict=True)
            ]
            qk = F.rms_norm(qk, (width,), None, self.eps) * torch.cat(scales)
        swapped = torch.cat((qk[..., width // 2 :], qk[..., : width // 2]), dim=-1)
        q, k = (qk * cos + swapped * sin).split((heads, kv_heads), dim=-2)
        return q, k, v

    def output(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """The layer after its attention: output projection and MLP."""
        hidden = hidden + self.out(attended, hidden.dtype)
        gate_up = self.gate_up(
            normed(hidden, self.norm_mlp, self.eps), hidden.dtype, keep_dtype=True
        )
        gate, up = gate_up.chunk(2, dim=-1)
        return hidden + self.down(F.silu(gate) * up, hidden.dtype)


def supports(model: Any, *kinds: str) -> bool:
    """Return True if *model* is one of these *kinds*, plain or under an ordinary LoRA adapter of its blocks."""
    base = base_of(model)
    if getattr(base.config, "model_type", "") not in kinds or base.config.hidden_act != "silu":
        return False
    # An adapter of the embedding or of the output layer, or one trained in their place, wraps them.
    if type(base.get_input_embeddings()) is not torch.nn.Embedding:
        return False
    return type(base.get_output_embeddings()) is torch.nn.Linear and not any(
        map(lora.is_special, base.modules())
    )


def base_of(model: Any) -> Any:
    """The model without the wrapper of an adapter."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def adapters_of(modules: Sequence[Any], dtype: torch.dtype) -> Adapters | None:
    """The active adapters of *modules*, which have the same input, in *dtype*; None if there are none."""
    ranks = [
        [(name, len(module.lora_A[name].weight)) for name in getattr(module, "active_adapters", ())]
        for module in modules
    ]
    total = sum(rank for adapters in ranks for _, rank in adapters)
    if not total:
        return None
    device = modules[0].weight.device
    a = torch.empty(total, modules[0].in_features, dtype=dtype, device=device)
    b = torch.zeros(
        sum(module.out_features for module in modules), total, dtype=dtype, device=device
    )
    copies, row, column = list[Copy](), 0, 0
    for module, adapters in zip(modules, ranks, strict=True):
        rows = slice(row, row := row + module.out_features)
        for name, rank in adapters:
            columns = slice(column, column := column + rank)
            copies.append(Copy(a[columns], module.lora_A[name].weight))
            copies.append(Copy(b[rows, columns], module.lora_B[name].weight, module.scaling[name]))
    for copy in copies:
        copy.refresh()
    return Adapters(a, b, copies)


def normed(hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
    """*hidden* (..., H) after its RMS norm."""
    return F.rms_norm(hidden, hidden.shape[-1:], weight, eps)


def rotation(rotary: Any, hidden: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines (B, T, D) of *positions* (B, T), those of the first half negative: each half of a head is
    rotated by adding the other one times its sine."""
    cos, sin = rotary(hidden, positions)
    half = sin.size(-1) // 2
    return cos, torch.cat((-sin[..., :half], sin[..., half:]), -1)
