"""Safetensors checkpoints with linear layers in 4 bits and everything else in bf16."""

from functools import partial
from pathlib import Path
from typing import Any

import torch

from countdown_rl.core.errors import ModelError
from countdown_rl.models import checkpoint, model_files, nf4, w4a16
from countdown_rl.models.checkpoint import Checkpoint

#: Largest share of the weights beside embeddings and output head that may stay in 16 bits.
_MAX_LEFT = 0.25


def write(source: Checkpoint, model: Any, directory: Path, out: Path, format: str) -> dict[str, Any]:
    """Write *source*, the checkpoint in *directory*, to *out* as nf4 or w4a16, and return facts for the manifest.

    *model* is its skeleton.

    Raises:
        ModelError: too few weights are those of plain linear layers, as in a mixture of experts.
    """
    untied = source.drop_tied(model)
    layers = {f"{name}.weight": part for name, part in nf4.linears(model).items() if not nf4.is_transposed(part)}
    if absent := sorted(layers.keys() - source.specs.keys()):
        raise ModelError(
            f"{directory} has no {absent[0]}, as its tensors have other names than the layers of the model, so they "
            "cannot be written in 4 bits; publish the 16-bit weights."
        )
    names, pack, quantization_config, facts = {*layers}, nf4.pack, nf4.CONFIG, {}
    if format == "w4a16":
        group = w4a16.group_size({source.specs[name].shape[1] for name in names})
        skipped = {name for name in names if source.specs[name].shape[1] % group}
        names -= skipped
        # Layers that no 4-bit format of transformers includes: above all the output head.
        linear = {f"{name}.weight" for name, part in model.named_modules() if type(part) is torch.nn.Linear}
        ignored = {name.removesuffix(".weight") for name in skipped | (linear - layers.keys())}
        pack, quantization_config = partial(w4a16.pack, group=group), w4a16.quantization_config(group, ignored)
        facts = {"group_size": group, "left_in_16_bits": sorted(name.removesuffix(".weight") for name in skipped)}
    _check_share(model, names)

    def packed(name: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        if name in names:
            checkpoint.check_finite(name, weight)
            return pack(name, weight)
        return {name: weight.to(torch.bfloat16) if weight.is_floating_point() else weight}

    size = checkpoint.write(source, out, packed)
    config = {"tie_word_embeddings": False} if untied else {}
    model_files.write_config(directory, out, dtype="bfloat16", quantization_config=quantization_config, **config)
    return facts | {
        "parameters": sum(spec.numel() for spec in source.specs.values()),
        "parameters_in_4_bits": sum(source.specs[name].numel() for name in names),
        "bytes": size,
    }


def _check_share(model: Any, names: set[str]) -> None:
    """Check that the parameters *names* of *model* are most of its weights beside embeddings and output head."""
    outside = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    outside.add(id(getattr(model.get_output_embeddings(), "weight", None)))
    sizes = {name: value.numel() for name, value in model.named_parameters() if id(value) not in outside}
    left = {name: size for name, size in sizes.items() if name not in names}
    if sum(left.values()) > _MAX_LEFT * sum(sizes.values()):
        raise ModelError(
            f"{sum(left.values()) / sum(sizes.values()):.0%} of the weights would stay in 16 bits, such as "
            f"{max(left, key=left.__getitem__)}: only plain linear layers are written in 4 bits, not the experts of a "
            "mixture; publish the 16-bit weights."
        )
