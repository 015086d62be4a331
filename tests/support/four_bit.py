"""Models whose layers are bitsandbytes' on a CPU, as they are on a GPU, and what transformers saves of one."""

from pathlib import Path
from typing import Any

import torch
from bitsandbytes.nn import Linear4bit, Params4bit
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from countdown_rl.models import nf4


def quantize_layers(model: Any, device: torch.device) -> None:
    """Replace the layers of :func:`nf4.linears` by bitsandbytes 4-bit layers."""
    for name, module in nf4.linears(model).items():
        weight = module.weight.data.to(torch.bfloat16)
        settings = {"compute_dtype": torch.bfloat16, "quant_type": "nf4"}
        layer = Linear4bit(
            weight.shape[1], weight.shape[0], bias=module.bias is not None, **settings
        )
        layer.weight = Params4bit(weight, requires_grad=False, quant_type="nf4", module=layer)
        layer.bias = module.bias
        model.set_submodule(name, layer.to(device))
    model.to(device)
    model.is_loaded_in_4bit = True


def save_by_transformers(source: str, out: str | Path) -> None:
    """Quantize the checkpoint *source* to NF4 with transformers, and save it at *out* without a tokenizer."""
    config = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True
    )
    settings = {"quantization_config": config, "dtype": torch.bfloat16, "device_map": {"": "cpu"}}
    AutoModelForCausalLM.from_pretrained(source, **settings).save_pretrained(out)
