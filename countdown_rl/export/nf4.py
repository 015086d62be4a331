"""Export to NF4, the 4-bit weights of bitsandbytes, as a safetensors checkpoint."""

from pathlib import Path
from typing import Any

import torch

from countdown_rl.core.errors import ModelError
from countdown_rl.export.quantize import Source
from countdown_rl.models import checkpoint, model_files, nf4

#: Largest share of the weights beside embeddings and output head that may stay in 16 bits.
_MAX_LEFT = 0.25


def write(source: Source, out: Path, options: Any) -> dict[str, Any]:
    """Write *source* to *out* with plain linear layers in NF4 and the rest in bf16; return facts for the manifest.

    Raises ModelError if most weights would stay in 16 bits, as in a mixture of experts, or an adapter was merged into
    them that NF4 would round away.
    """
    ref, directory, weights, _, model = source
    if ref.manifest is not None and ref.manifest.facts.get("base") == "dequantized":
        raise ModelError(
            f"{ref.source} was merged into de-quantized weights, and NF4 would round the adapter away again; "
            "run `countdown-rl merge --base original` and quantize that."
        )
    untied = weights.drop_tied(model)
    names = {f"{name}.weight" for name, part in nf4.linears(model).items() if not nf4.is_transposed(part)}
    if absent := sorted(names - weights.specs.keys()):
        raise ModelError(
            f"{directory} has no {absent[0]}, as its tensors have other names than the layers of the model, so they "
            "cannot be written in 4 bits; publish the 16-bit weights."
        )
    _check_share(model, names)

    def packed(name: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        if name in names:
            checkpoint.check_finite(name, weight)
            return nf4.pack(name, weight)
        return {name: weight.to(torch.bfloat16) if weight.is_floating_point() else weight}

    size = checkpoint.write(weights, out, packed)
    config = {"tie_word_embeddings": False} if untied else {}
    model_files.write_config(directory, out, dtype="bfloat16", quantization_config=nf4.CONFIG, **config)
    return {"parameters_in_4_bits": sum(weights.specs[name].numel() for name in names), "bytes": size}


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
