"""NF4, the 4-bit number format of QLoRA (Dettmers et al. 2023, arXiv:2305.14314), by bitsandbytes.

Blocks of 64 weights share one scale; the scales are quantized to 8 bits in blocks of 256 (double
quantization). Everything goes through bitsandbytes' functional interface and starts from bf16, as on a
GPU: the values are the same wherever they are computed, and no ``Linear4bit`` runs on the CPU, where
(bitsandbytes 0.50, AVX512-BF16) its first forward repacks the weights in place, after which gradients and
``dequantize`` are wrong.
"""

from typing import Any

import torch

BLOCK = 64


def quantize(weight: torch.Tensor) -> tuple[torch.Tensor, Any]:
    """Packed 4-bit values (uint8, (n/2, 1)) and bitsandbytes' ``QuantState`` of a weight of n values."""
    from bitsandbytes.functional import quantize_4bit

    return quantize_4bit(
        weight.to(torch.bfloat16).contiguous(), blocksize=BLOCK, compress_statistics=True, quant_type="nf4"
    )


def rounded(weight: torch.Tensor) -> torch.Tensor:
    """*weight* as NF4 holds it: same shape, bf16."""
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(*quantize(weight))


def linears(model: Any) -> dict[str, torch.nn.Module]:
    """The layers of *model* that transformers puts into 4 bits, by name: linear, and no output head."""
    from transformers.pytorch_utils import Conv1D
    from transformers.quantizers.base import HfQuantizer
    from transformers.quantizers.quantizers_utils import should_convert_module

    keep = HfQuantizer.get_modules_to_not_convert(model, None, model._keep_in_fp32_modules)
    return {
        name: module
        for name, module in model.named_modules()
        if (type(module) is torch.nn.Linear or isinstance(module, Conv1D)) and should_convert_module(name, keep)
    }


def round_in_place(model: Any) -> None:
    """Give every layer of :func:`linears` the values that NF4 would hold, in the type it has."""
    from transformers.pytorch_utils import Conv1D

    with torch.no_grad():
        for module in linears(model).values():
            weight = module.weight
            turned = isinstance(module, Conv1D)  # (in, out), where bitsandbytes quantizes (out, in)
            value = rounded(weight.T if turned else weight)
            weight.copy_(value.T if turned else value)


def to_bitsandbytes(model: Any, device: torch.device) -> None:
    """Put the layers of :func:`linears` into bitsandbytes' own 4-bit ones, and all onto *device* (CUDA)."""
    from bitsandbytes.nn import Linear4bit, Params4bit

    for name, module in linears(model).items():
        weight = module.weight.data.to(torch.bfloat16)
        layer = Linear4bit(
            weight.shape[1],
            weight.shape[0],
            bias=module.bias is not None,
            compute_dtype=torch.bfloat16,
            quant_type="nf4",
        )
        layer.weight = Params4bit(weight, requires_grad=False, quant_type="nf4", module=layer)
        layer.bias = module.bias
        model.set_submodule(name, layer.to(device))
    model.to(device)
    model.is_loaded_in_4bit = True


def to_plain(model: Any, dtype: torch.dtype) -> None:
    """Turn the 4-bit layers of a loaded checkpoint into plain ones that hold the same values in *dtype*."""
    from bitsandbytes.functional import dequantize_4bit
    from bitsandbytes.nn import Linear4bit

    layers = [(name, module) for name, module in model.named_modules() if isinstance(module, Linear4bit)]
    for name, module in layers:
        module.support_avx512bf16_for_cpu = False
        with torch.device("meta"):
            plain = torch.nn.Linear(module.in_features, module.out_features, bias=module.bias is not None)
        value = dequantize_4bit(module.weight.data, module.weight.quant_state)
        plain.weight = torch.nn.Parameter(value.to(dtype), requires_grad=False)
        if module.bias is not None:
            plain.bias = torch.nn.Parameter(module.bias.data.to(dtype), requires_grad=False)
        model.set_submodule(name, plain)
    # From here on it is an ordinary model; PEFT, the trainer and save_pretrained look at these.
    model.is_loaded_in_4bit = model.is_quantized = False
    for owner, name in (
        (model, "hf_quantizer"),
        (model, "quantization_method"),
        (model.config, "quantization_config"),
    ):
        if hasattr(owner, name):
            delattr(owner, name)
    model.to(dtype)
