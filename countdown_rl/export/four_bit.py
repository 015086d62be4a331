"""Safetensors to safetensors, with the linear layers in 4 bits and the rest in bf16, a tensor at a time."""

import json
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from countdown_rl import artifacts
from countdown_rl.errors import ModelError
from countdown_rl.models import checkpoint, nf4, w4a16
from countdown_rl.models.checkpoint import Checkpoint, Slot

#: What config.json says of NF4: how a loader builds its layers. bf16 is what the weights were rounded from.
NF4_RECIPE = {
    "quant_method": "bitsandbytes",
    "load_in_4bit": True,
    "load_in_8bit": False,
    "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_use_double_quant": True,
    "bnb_4bit_compute_dtype": "bfloat16",
    "bnb_4bit_quant_storage": "uint8",
}

#: Rewritten here, or about the source alone.
_OWN = {artifacts.MANIFEST, "config.json", checkpoint.INDEX}


@dataclass(frozen=True)
class Packing:
    """A format: what its ``layout`` of a weight is, how to ``pack`` one, and what config.json says of it.

    ``names`` are the weights that are packed, ``turned`` those of them that are stored (in, out).
    """

    layout: Callable[[str, tuple[int, ...]], dict[str, Slot]]
    pack: Callable[[str, torch.Tensor], dict[str, torch.Tensor]]
    recipe: Mapping[str, Any]
    names: Collection[str]
    turned: Collection[str] = ()


def as_nf4(source: Checkpoint, directory: Path) -> Packing:
    """NF4, for the checkpoint *source* in *directory*."""
    packed = _linears(source, nf4.skeleton(directory))
    turned = {name for name, module in packed.items() if nf4.is_turned(module)}
    return Packing(nf4.layout, nf4.pack, NF4_RECIPE, packed.keys(), turned)


def as_w4a16(source: Checkpoint, directory: Path) -> tuple[Packing, dict[str, Any]]:
    """W4A16, for the checkpoint *source* in *directory*, and what its manifest says of it.

    Raises:
        ModelError: the model has no layers that the format can hold.
    """
    model = nf4.skeleton(directory)
    layers = _linears(source, model)
    if any(nf4.is_turned(module) for module in layers.values()):
        raise ModelError("W4A16 holds plain linear layers, and this model has others; give --format nf4.")
    group = w4a16.group_of({source.slots[name].shape[1] for name in layers})
    names = {name for name in layers if source.slots[name].shape[1] % group == 0}
    left = sorted(name.removesuffix(".weight") for name in layers.keys() - names)
    packing = Packing(
        lambda name, shape: w4a16.layout(name, shape, group),
        lambda name, weight: w4a16.pack(name, weight, group),
        w4a16.recipe(group, [*left, *_heads(model)]),
        names,
    )
    return packing, {"group_size": group, "left_in_16_bits": left}


def write(source: Checkpoint, directory: Path, out: Path, packing: Packing) -> dict[str, Any]:
    """Write *source*, the checkpoint in *directory*, to *out* in the format *packing*.

    Returns:
        How many parameters there are, how many of them in 4 bits, and how many bytes that takes.
    """
    slots: dict[str, Slot] = {}
    for name, slot in source.slots.items():
        if name in packing.names:
            slots |= packing.layout(name, slot.shape)
        else:
            slots[name] = Slot(torch.bfloat16 if slot.dtype.is_floating_point else slot.dtype, slot.shape)
    checkpoint.write(out, slots, _tensors(source, slots, packing))
    config = json.loads((directory / "config.json").read_bytes())
    config.pop("torch_dtype", None)
    config |= {"dtype": "bfloat16", "quantization_config": dict(packing.recipe)}
    (out / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    for file in sorted(directory.iterdir()):
        if file.is_file() and file.suffix in (".json", ".jinja", ".model", ".txt") and file.name not in _OWN:
            shutil.copyfile(file, out / file.name)
    counts = {name: slot.size // slot.dtype.itemsize for name, slot in source.slots.items()}
    return {
        "parameters": sum(counts.values()),
        "parameters_in_4_bits": sum(count for name, count in counts.items() if name in packing.names),
        "bytes": sum(slot.size for slot in slots.values()),
    }


def _linears(source: Checkpoint, model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    layers = {f"{name}.weight": module for name, module in nf4.linears(model).items()}
    return {name: module for name, module in layers.items() if name in source.slots}


def _heads(model: torch.nn.Module) -> list[str]:
    """The linear layers that no 4-bit format of transformers touches: output heads, most of all."""
    kept = nf4.linears(model).keys()
    return [name for name, module in model.named_modules() if type(module) is torch.nn.Linear and name not in kept]


def _tensors(source: Checkpoint, slots: Mapping[str, Slot], packing: Packing) -> Iterator[tuple[str, torch.Tensor]]:
    for name in source.slots:
        # No name holds a tensor while the next one is read.
        if name not in packing.names:
            yield name, source.read(name).to(slots[name].dtype)
        elif name in packing.turned:
            yield from packing.pack(name, source.read(name).T).items()
        else:
            yield from packing.pack(name, source.read(name)).items()
