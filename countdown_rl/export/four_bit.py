"""Safetensors checkpoints with linear layers in 4 bits and everything else in bf16."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import torch

from countdown_rl.errors import ModelError
from countdown_rl.models import checkpoint, model_files, nf4, shape, w4a16
from countdown_rl.models.checkpoint import Checkpoint


def write(source: Checkpoint, directory: Path, out: Path, format: str) -> dict[str, Any]:
    """Write *source*, the checkpoint in *directory*, to *out* as nf4 or w4a16, and return facts for the manifest."""
    model = shape.skeleton(shape.read_config(directory))
    layers = nf4.linears(model)
    names = {f"{name}.weight" for name in layers} & source.specs.keys()
    if any(nf4.is_transposed(module) for module in layers.values()):
        raise ModelError("4-bit weights are written of plain linear layers, and this model has others.")
    pack, quantization_config, facts = nf4.pack, nf4.CONFIG, {}
    if format == "w4a16":
        group = w4a16.group_size({source.specs[name].shape[1] for name in names})
        skipped = sorted(name.removesuffix(".weight") for name in names if source.specs[name].shape[1] % group)
        names -= {f"{name}.weight" for name in skipped}
        # Layers that no 4-bit format of transformers includes: above all the output head.
        others = {name for name, module in model.named_modules() if type(module) is torch.nn.Linear} - layers.keys()
        pack = partial(w4a16.pack, group=group)
        quantization_config = w4a16.quantization_config(group, [*skipped, *others])
        facts = {"group_size": group, "left_in_16_bits": skipped}

    def packed(name: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        if name in names:
            checkpoint.check_finite(name, weight)
            return pack(name, weight)
        return {name: weight.to(torch.bfloat16) if weight.is_floating_point() else weight}

    size = checkpoint.write(source, out, packed)
    config = model_files.config(directory)
    config.pop("torch_dtype", None)
    config |= {"dtype": "bfloat16", "quantization_config": quantization_config}
    (out / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    model_files.copy(directory, out, [*model_files.TOKENIZER, model_files.GENERATION])
    return facts | {
        "parameters": sum(spec.numel() for spec in source.specs.values()),
        "parameters_in_4_bits": sum(source.specs[name].numel() for name in names),
        "bytes": size,
    }
