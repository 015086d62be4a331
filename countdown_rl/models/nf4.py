"""NF4, the 4-bit number format of QLoRA (Dettmers et al. 2023, arXiv:2305.14314), by bitsandbytes.

Blocks of 64 weights share one scale; the scales are quantized to 8 bits in blocks of 256. All
starts from bf16, by bitsandbytes' functions: the same values on every device. No ``Linear4bit`` on
a CPU: with AVX512-BF16 (bitsandbytes 0.50) its first forward pass repacks the weights in place, and
after that gradients and ``dequantize`` are wrong.
"""

import torch

from countdown_rl.models.protocols import CausalLM

BLOCK = 64
#: The ``quantization_config`` of a checkpoint. Its weights are rounded from bf16.
CONFIG = {
    "quant_method": "bitsandbytes",
    "load_in_4bit": True,
    "load_in_8bit": False,
    "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_use_double_quant": True,
    "bnb_4bit_compute_dtype": "bfloat16",
    "bnb_4bit_quant_storage": "uint8",
}


def fake_quantize(weight: torch.Tensor) -> torch.Tensor:
    """Return *weight* rounded to NF4 and back: same shape, bf16."""
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    weight = weight.to(torch.bfloat16).contiguous()
    packed = quantize_4bit(weight, blocksize=BLOCK, quant_type="nf4", compress_statistics=True)
    return dequantize_4bit(*packed)


def is_transposed(module: torch.nn.Module) -> bool:
    """Return True if *module* stores its weight as (in, out), as GPT-2's Conv1D does."""
    from transformers.pytorch_utils import Conv1D

    return isinstance(module, Conv1D)


def linears(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Return the layers of *model* that transformers quantizes to 4 bits.

    They are linear layers except output heads, or those that a 4-bit checkpoint does not leave out.
    """
    from transformers.quantizers.base import HfQuantizer
    from transformers.quantizers.quantizers_utils import should_convert_module

    stored = getattr(model.config, "quantization_config", None) or {}
    if not isinstance(stored, dict):
        stored = stored.to_dict()
    excluded = HfQuantizer.get_modules_to_not_convert(model, stored.get("llm_int8_skip_modules"))
    return {
        name: module
        for name, module in model.named_modules()
        if (type(module) is torch.nn.Linear or is_transposed(module))
        and should_convert_module(name, excluded)
    }


def cast(model: CausalLM, dtype: torch.dtype) -> None:
    """Convert the parameters of *model* to *dtype*, but no packed values and no buffers."""
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)
    for module in model.modules():
        if hasattr(module, "compute_dtype"):
            module.compute_dtype = dtype
