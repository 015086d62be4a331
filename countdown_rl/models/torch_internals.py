"""Private operations of torch: products with bf16 weights that oneDNN packs once, and Muon in fp32.

The public ways were considered. ``nn.functional.linear`` packs a bf16 weight anew for every product,
``torch.utils.mkldnn`` converts input and output of each layer, and ``torch.compile`` needs a C++ compiler and minutes.
``torch.optim.Muon`` has no option for its precision: it orthogonalizes in bf16, which takes four fifths of a step on a
CPU that has to emulate that.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

PRIVATE = (
    "torch.ops.mkldnn._is_mkldnn_bf16_supported",
    "torch.ops.mkldnn._reorder_linear_weight",
    "torch.ops.mkldnn._linear_pointwise",
    "torch.optim._muon._zeropower_via_newtonschulz",
)


def has_bf16_products(device: str = "cpu") -> bool:
    """Return True if *device* computes products in bf16: a GPU, or a CPU of which oneDNN does.

    ``torch.cpu.get_capabilities`` names instructions of the processor, not what oneDNN makes of them.
    """
    if device != "cpu":
        return True
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def packed_weight(weight: Tensor, rows: int) -> Any:
    """Return *weight* (O, I), in bf16, in oneDNN's layout for inputs of about so many *rows*."""
    return torch.ops.mkldnn._reorder_linear_weight(weight, rows)


def packed_linear(x: Tensor, weight: Any, bias: Tensor | None) -> Tensor:
    """Return the linear layer of *x* (..., I) and a packed *weight*."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


@contextmanager
def muon_in_fp32(enabled: bool) -> Iterator[None]:
    """Let steps of ``torch.optim.Muon`` orthogonalize in fp32 in this context, if *enabled*."""
    if not enabled:
        yield
        return
    muon = torch.optim._muon
    original, muon._zeropower_via_newtonschulz = muon._zeropower_via_newtonschulz, orthogonalize
    try:
        yield
    finally:
        muon._zeropower_via_newtonschulz = original


def orthogonalize(matrix: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """Return *matrix* (M, N) with all singular values near 1, computed in its own precision.

    That is the Newton-Schulz iteration of Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon).
    """
    a, b, c = coefficients
    tall = matrix.size(0) > matrix.size(1)
    x = matrix.T if tall else matrix
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x
