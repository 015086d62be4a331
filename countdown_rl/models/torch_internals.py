"""Private operations of torch: products with packed bf16 weights, settings of the GPU's allocator.

The public ways were considered. ``nn.functional.linear`` packs a bf16 weight for every product,
``torch.utils.mkldnn`` converts input and output of each layer, ``torch.compile`` needs a C++
compiler and minutes. The environment sets the allocator only before CUDA starts, when it is not
known yet whether vLLM shares the process.
"""

import os

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

    ``torch.cpu.get_capabilities`` names instructions of the processor, whatever oneDNN uses.
    """
    if device != "cpu":
        return True
    mkldnn = torch.ops.mkldnn
    return torch.backends.mkldnn.is_available() and bool(mkldnn._is_mkldnn_bf16_supported())


def expand_segments() -> None:
    """Let the GPU's allocator extend its segments: batches of many lengths leave no holes.

    Not if the environment sets it; vLLM's sleep mode allows none.
    """
    # Newer than torch 2.7.
    set_allocator = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    if set_allocator and not {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"} & os.environ.keys():
        set_allocator("expandable_segments:True")


def packed_weight(weight: Tensor) -> Tensor:
    """Return *weight* (O, I), in bf16, in oneDNN's layout for inputs of about 64 rows."""
    return torch.ops.mkldnn._reorder_linear_weight(weight, 64)


def packed_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return the linear layer of *x* (..., I), with a packed *weight*."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
