"""Private operations of torch: products with bf16 weights that oneDNN packs once, and settings of the GPU's allocator.

The public ways were considered. ``nn.functional.linear`` packs a bf16 weight anew for every product,
``torch.utils.mkldnn`` converts input and output of each layer, and ``torch.compile`` needs a C++ compiler and minutes.
The environment sets the allocator only before CUDA starts, when it is not known yet whether vLLM shares the process.
"""

import os
from typing import Any

import torch
from torch import Tensor

PRIVATE = (
    "torch.ops.mkldnn._is_mkldnn_bf16_supported",
    "torch.ops.mkldnn._reorder_linear_weight",
    "torch.ops.mkldnn._linear_pointwise",
    "torch._C._accelerator_setAllocatorSettings",
)


def has_bf16_products(device: str = "cpu") -> bool:
    """Return True if *device* computes products in bf16: a GPU, or a CPU on which oneDNN does.
    ``torch.cpu.get_capabilities`` names instructions of the processor, not whether oneDNN uses them."""
    if device != "cpu":
        return True
    return torch.backends.mkldnn.is_available() and bool(
        torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )


def expand_segments() -> None:
    """Let the GPU's allocator extend its segments, so that batches of many lengths leave no holes, unless the
    environment sets it; vLLM's sleep mode allows none."""
    set_allocator = getattr(
        torch._C, "_accelerator_setAllocatorSettings", None
    )  # newer than torch 2.7
    if set_allocator and not {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"} & os.environ.keys():
        set_allocator("expandable_segments:True")


def packed_weight(weight: Tensor) -> Any:
    """Return *weight* (O, I), in bf16, in oneDNN's layout for inputs of about 64 rows."""
    return torch.ops.mkldnn._reorder_linear_weight(weight, 64)


def packed_linear(x: Tensor, weight: Any, bias: Tensor | None) -> Tensor:
    """Return the linear layer of *x* (..., I) and a packed *weight*."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
