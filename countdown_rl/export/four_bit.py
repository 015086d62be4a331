"""Safetensors checkpoints with linear layers in 4 bits and everything else in bf16, written one tensor at a time."""

import json
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from countdown_rl import artifacts
from countdown_rl.errors import ModelError
from countdown_rl.models import checkpoint, model_files, nf4, shape, w4a16
from countdown_rl.models.checkpoint import Checkpoint, TensorSpec

#: The ``quantization_config`` of NF4. Weights are rounded from bf16, so that is the type to compute in.
NF4_CONFIG = {
    "quant_method": "bitsandbytes",
    "load_in_4bit": True,
    "load_in_8bit": False,
    "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_use_double_quant": True,
    "bnb_4bit_compute_dtype": "bfloat16",
    "bnb_4bit_quant_storage": "uint8",
}

#: Files that are not copied from the source: rewritten here, or about the source alone.
_NOT_COPIED = {artifacts.MANIFEST, "config.json", checkpoint.INDEX}


@dataclass(frozen=True)
class Packing:
    """Packing of one model's weights in 4 bits.

    ``layout`` gives the specs of the tensors that a weight of a name and shape is stored as, ``pack`` those tensors.
    ``names`` are the weights to pack, ``transposed`` those of them that are stored as (in, out).
    """

    layout: Callable[[str, tuple[int, ...]], dict[str, TensorSpec]]
    pack: Callable[[str, torch.Tensor], dict[str, torch.Tensor]]
    quantization_config: Mapping[str, Any]
    names: Collection[str]
    transposed: Collection[str] = ()


def nf4_packing(source: Checkpoint, directory: Path) -> tuple[Packing, dict[str, Any]]:
    """NF4 for the checkpoint *source* in *directory*, and facts about it for the manifest."""
    layers = _linears(source, shape.skeleton(shape.read_config(directory)))
    transposed = {name for name, module in layers.items() if nf4.is_transposed(module)}
    return Packing(nf4.layout, nf4.pack, NF4_CONFIG, layers.keys(), transposed), {}


def w4a16_packing(source: Checkpoint, directory: Path) -> tuple[Packing, dict[str, Any]]:
    """W4A16 for the checkpoint *source* in *directory*, and facts about it for the manifest."""
    model = shape.skeleton(shape.read_config(directory))
    layers = _linears(source, model)
    if any(nf4.is_transposed(module) for module in layers.values()):
        raise ModelError("W4A16 supports plain linear layers, and this model has others; give --format nf4.")
    group = w4a16.group_size({source.specs[name].shape[1] for name in layers})
    names = {name for name in layers if source.specs[name].shape[1] % group == 0}
    skipped = sorted(name.removesuffix(".weight") for name in layers.keys() - names)
    # Layers that no 4-bit format of transformers includes: above all the output head.
    packable = nf4.linears(model).keys()
    linears = {name for name, module in model.named_modules() if type(module) is torch.nn.Linear}
    packing = Packing(
        lambda name, shape: w4a16.layout(name, shape, group),
        lambda name, weight: w4a16.pack(name, weight, group),
        w4a16.quantization_config(group, [*skipped, *(linears - packable)]),
        names,
    )
    return packing, {"group_size": group, "left_in_16_bits": skipped}


def write(source: Checkpoint, directory: Path, out: Path, packing: Packing) -> dict[str, Any]:
    """Write *source*, the checkpoint in *directory*, to *out*, and return its numbers of parameters and bytes."""
    specs: dict[str, TensorSpec] = {}
    for name, spec in source.specs.items():
        if name in packing.names:
            specs |= packing.layout(name, spec.shape)
        else:
            specs[name] = TensorSpec(torch.bfloat16 if spec.dtype.is_floating_point else spec.dtype, spec.shape)
    checkpoint.write(out, specs, _tensors(source, specs, packing))
    config = model_files.config(directory)
    config.pop("torch_dtype", None)
    config |= {"dtype": "bfloat16", "quantization_config": dict(packing.quantization_config)}
    (out / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    for file in sorted(directory.iterdir()):
        if file.is_file() and file.suffix in (".json", ".jinja", ".model", ".txt") and file.name not in _NOT_COPIED:
            shutil.copyfile(file, out / file.name)
    return {
        "parameters": sum(spec.numel for spec in source.specs.values()),
        "parameters_in_4_bits": sum(source.specs[name].numel for name in packing.names),
        "bytes": sum(spec.nbytes for spec in specs.values()),
    }


def _linears(source: Checkpoint, model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    layers = {f"{name}.weight": module for name, module in nf4.linears(model).items()}
    return {name: module for name, module in layers.items() if name in source.specs}


def _tensors(
    source: Checkpoint, specs: Mapping[str, TensorSpec], packing: Packing
) -> Iterator[tuple[str, torch.Tensor]]:
    # No variable holds a tensor, so that each is freed before the next one is read.
    for name in source.specs:
        if name not in packing.names:
            yield name, source.read(name).to(specs[name].dtype)
        elif name in packing.transposed:
            yield from packing.pack(name, source.read(name).T).items()
        else:
            yield from packing.pack(name, source.read(name)).items()
