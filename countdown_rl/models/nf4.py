"""NF4, the 4-bit number format of QLoRA (Dettmers et al. 2023, arXiv:2305.14314), by bitsandbytes.

Blocks of 64 weights share one scale; the scales are quantized to 8 bits in blocks of 256 (double
quantization). Everything goes through bitsandbytes' functional interface and starts from bf16, as on a
GPU: the values are the same wherever they are computed, and no ``Linear4bit`` runs on the CPU, where
(bitsandbytes 0.50, AVX512-BF16) its first forward repacks the weights in place, after which gradients and
``dequantize`` are wrong.
"""

import json
from math import ceil, prod
from pathlib import Path
from typing import Any

import torch

from countdown_rl.models.checkpoint import Checkpoint, Slot

BLOCK = 64
#: Values quantized at once on a CPU, where bitsandbytes takes some twelve bytes for each; whole blocks.
_PIECE = 1 << 22
#: What bitsandbytes calls the tensor that tells, as JSON, how a weight was packed. Spaces, which JSON
#: does not mind, fill it up to a length that is known beforehand.
STATE = "quant_state.bitsandbytes__nf4"
STATE_ROOM = 256


def quantize(weight: torch.Tensor) -> tuple[torch.Tensor, Any]:
    """Packed 4-bit values (uint8, (n/2, 1)) and bitsandbytes' ``QuantState`` of a weight of n values."""
    from bitsandbytes.functional import QuantState, quantize_4bit, quantize_blockwise

    how: dict[str, Any] = {"blocksize": BLOCK, "quant_type": "nf4"}
    weight = weight.to(torch.bfloat16).contiguous()
    if weight.numel() <= _PIECE or weight.device.type != "cpu":
        return quantize_4bit(weight, compress_statistics=True, **how)
    # A block's values are its own; only the scales of all blocks are quantized together, as quantize_4bit does.
    parts = [quantize_4bit(piece, **how) for piece in weight.view(-1).split(_PIECE)]
    scales = torch.cat([state.absmax for _, state in parts])
    offset = scales.mean()
    absmax, second = quantize_blockwise(scales - offset, blocksize=256)
    about = {"dtype": weight.dtype, "code": parts[0][1].code, "offset": offset, "state2": second}
    state = QuantState(absmax=absmax, shape=weight.shape, **about, **how)
    return torch.cat([values for values, _ in parts]), state


def rounded(weight: torch.Tensor) -> torch.Tensor:
    """*weight* as NF4 holds it: same shape, bf16."""
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(*quantize(weight))


def pack(name: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """The tensors that bitsandbytes stores for the *weight* called *name*, laid out as in :func:`layout`."""
    values, state = quantize(weight)
    parts = {name: values} | {f"{name}.{part}": tensor for part, tensor in state.as_dict(packed=True).items()}
    about = bytes(parts[f"{name}.{STATE}"].tolist()).ljust(STATE_ROOM)
    return parts | {f"{name}.{STATE}": torch.tensor(list(about), dtype=torch.uint8)}


def layout(name: str, shape: tuple[int, ...]) -> dict[str, Slot]:
    """Types and shapes of what :func:`pack` gives for a weight of *shape*, known before its values are."""
    count = prod(shape)
    blocks = ceil(count / BLOCK)
    return {
        name: Slot(torch.uint8, (ceil(count / 2), 1)),
        f"{name}.absmax": Slot(torch.uint8, (blocks,)),
        f"{name}.quant_map": Slot(torch.float32, (16,)),
        f"{name}.nested_absmax": Slot(torch.float32, (ceil(blocks / 256),)),
        f"{name}.nested_quant_map": Slot(torch.float32, (256,)),
        f"{name}.{STATE}": Slot(torch.uint8, (STATE_ROOM,)),
    }


def is_turned(module: torch.nn.Module) -> bool:
    """Whether *module* stores its weight (in, out), as GPT-2's Conv1D does; 4-bit ones are (out, in)."""
    from transformers.pytorch_utils import Conv1D

    return isinstance(module, Conv1D)


def skeleton(path: Path) -> Any:
    """The model that the config at *path* describes, with shapes and no values."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(path, local_files_only=True)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def linears(model: Any) -> dict[str, torch.nn.Module]:
    """The layers of *model* that transformers puts into 4 bits, by name: linear, and no output head."""
    from transformers.quantizers.base import HfQuantizer
    from transformers.quantizers.quantizers_utils import should_convert_module

    keep = HfQuantizer.get_modules_to_not_convert(model, None, model._keep_in_fp32_modules)
    return {
        name: module
        for name, module in model.named_modules()
        if (type(module) is torch.nn.Linear or is_turned(module)) and should_convert_module(name, keep)
    }


def round_in_place(model: Any) -> None:
    """Give every layer of :func:`linears` the values that NF4 would hold, in the type it has."""
    with torch.no_grad():
        for module in linears(model).values():
            weight = module.weight
            turned = is_turned(module)
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


def cast(model: Any, dtype: torch.dtype) -> None:
    """Put the parameters of *model* into *dtype*, and leave its buffers: rotary frequencies must stay fp32."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)


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
    cast(model, dtype)


class Packed(Checkpoint):
    """A bitsandbytes 4-bit checkpoint read as the ordinary one whose values it holds."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._parts: dict[str, dict[str, str]] = {}
        for name in [name for name in self.slots if name.endswith(STATE)]:
            weight = name.removesuffix(f".{STATE}")
            parts = [part for part in self.slots if part.startswith(f"{weight}.")]
            about = json.loads(bytes(super().read(name).tolist()))
            self._parts[weight] = {part.removeprefix(f"{weight}."): part for part in parts}
            self.slots = {key: slot for key, slot in self.slots.items() if key not in parts}
            self.slots[weight] = Slot(getattr(torch, about["dtype"]), tuple(about["shape"]))

    def read(self, name: str) -> torch.Tensor:
        from bitsandbytes.functional import QuantState, dequantize_4bit

        if name not in self._parts:
            return super().read(name)
        stored = {part: super(Packed, self).read(key) for part, key in self._parts[name].items()}
        state = QuantState.from_dict(stored, device=torch.device("cpu"))
        return dequantize_4bit(super().read(name), state)
