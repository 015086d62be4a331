"""Muon in fp32 on CPUs.

``torch.optim.Muon`` has no option for its precision: it orthogonalizes in bf16, which takes four
fifths of a step on a CPU that has to emulate that.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


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


def orthogonalize(
    matrix: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float
) -> Tensor:
    """Return *matrix* (M, N) with all singular values near 1, computed in its own precision.

    That is the Newton-Schulz iteration of Muon (Jordan et al. 2024,
    https://kellerjordan.github.io/posts/muon).
    """
    a, b, c = coefficients
    tall = matrix.size(0) > matrix.size(1)
    x = matrix.T if tall else matrix
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x
