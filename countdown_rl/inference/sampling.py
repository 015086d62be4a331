"""Sampling parameters, and the distribution of the next token, as transformers forms it."""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

#: The sampling parameters that every engine applies, and no others, in the order of transformers.
SAMPLERS = ("temperature", "top_k", "top_p", "min_p")


@dataclass(frozen=True)
class Decoding:
    """Sampling parameters; temperature 0 is greedy decoding. Completions have their beginnings of *shorter_limits*."""

    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    shorter_limits: tuple[int, ...] = ()

    @classmethod
    def of(cls, options: Any) -> "Decoding":
        """The fields of these names in *options*."""
        names = [field.name for field in fields(cls) if hasattr(options, field.name)]
        return cls(**{name: getattr(options, name) for name in names})

    @property
    def sampler(self) -> "Decoding":
        """The sampling parameters alone."""
        return Decoding(1, **self.samplers())

    def samplers(self) -> dict[str, Any]:
        """The sampling parameters by name."""
        return {name: getattr(self, name) for name in SAMPLERS}


def distribution(logits: "Tensor", decoding: Decoding) -> "Tensor":
    """The probabilities (B, V) of *logits* at a temperature above 0, then top-k, top-p and min-p, as in transformers.

    No value is read by the host, so that a CUDA graph can follow.
    """
    import torch

    if decoding.top_k:
        least = logits.topk(min(decoding.top_k, logits.size(-1))).values[:, -1:]
        logits = logits.masked_fill(logits < least, float("-inf"))
    probabilities = (logits / decoding.temperature).softmax(-1)
    if decoding.top_p < 1:
        ordered, order = probabilities.sort(-1, descending=True)
        ordered = ordered.masked_fill(ordered.cumsum(-1) - ordered >= decoding.top_p, 0)
        probabilities = torch.zeros_like(ordered).scatter_(-1, order, ordered)
    if decoding.min_p:
        least = decoding.min_p * probabilities.amax(-1, keepdim=True)
        probabilities = probabilities.masked_fill(probabilities < least, 0)
    return probabilities
