"""W4A16: weights as whole numbers of 4 bits with a scale a group, what computes stays in 16 bits.

The layout is compressed-tensors' ``pack-quantized``, which vLLM reads as it is. That library makes the
scales, rounds to nearest and packs; symmetric, so there are no zero points.
"""

import json
from collections.abc import Collection
from math import ceil
from pathlib import Path
from typing import Any

import torch

from countdown_rl.errors import ModelError
from countdown_rl.models.checkpoint import Slot

#: Weights that share a scale, the first that fits every layer: what vLLM's kernels know.
GROUPS = (128, 64, 32)


def group_of(widths: Collection[int]) -> int:
    """The largest group that rows of all these *widths* are multiples of; a width that none fits is passed over.

    Raises:
        ModelError: no width fits any.
    """
    widths = [width for width in widths if width % GROUPS[-1] == 0]
    if not widths:
        raise ModelError(
            f"no layer has rows of a multiple of {GROUPS[-1]} weights, which W4A16 wants; give --format nf4."
        )
    return next(group for group in GROUPS if all(width % group == 0 for width in widths))


def is_held_in(directory: Path) -> bool:
    """Whether the checkpoint in *directory* is one of whole numbers that compressed-tensors packed."""
    config = json.loads((directory / "config.json").read_bytes())
    recipe = config.get("quantization_config") or {}
    return recipe.get("quant_method") == "compressed-tensors" and recipe.get("format") == "pack-quantized"


def check_installed() -> None:
    """Refuse where compressed-tensors is not installed.

    Raises:
        ModelError: it is not.
    """
    from importlib.util import find_spec

    if find_spec("compressed_tensors") is None:
        raise ModelError("W4A16 weights need compressed-tensors: `pip install 'countdown-rl[w4a16]'`.")


def pack(name: str, weight: torch.Tensor, group: int) -> dict[str, torch.Tensor]:
    """The tensors that compressed-tensors stores for the *weight* called *name*, laid out as in :func:`layout`."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization.utils import calculate_qparams

    scheme = _scheme(group)
    weight = weight.float()  # a quotient in bf16 would go to the wrong neighbour now and then
    groups = weight.unflatten(1, (-1, group))  # (out, in / group, group)
    scale, _ = calculate_qparams(groups.amin(2), groups.amax(2), scheme.weights)
    scale = scale.to(torch.bfloat16)
    state = {"weight": weight, "weight_scale": scale.float()}
    stored = BaseCompressor.get_value_from_registry("pack-quantized").compress(state, scheme)
    stem = name.removesuffix(".weight")
    return {
        f"{stem}.weight_packed": stored["weight_packed"],
        f"{stem}.weight_scale": scale,
        f"{stem}.weight_shape": stored["weight_shape"],
    }


def layout(name: str, shape: tuple[int, ...], group: int) -> dict[str, Slot]:
    """Types and shapes of what :func:`pack` gives for a weight of *shape*, known before its values are."""
    out, width = shape
    stem = name.removesuffix(".weight")
    return {
        f"{stem}.weight_packed": Slot(torch.int32, (out, ceil(width / 8))),
        f"{stem}.weight_scale": Slot(torch.bfloat16, (out, width // group)),
        f"{stem}.weight_shape": Slot(torch.int64, (2,)),
    }


def recipe(group: int, ignored: Collection[str]) -> dict[str, Any]:
    """What config.json says, from which a loader builds its layers; *ignored* linear layers stay as they are."""
    from compressed_tensors.quantization import QuantizationConfig

    config = QuantizationConfig(
        config_groups={"group_0": _scheme(group)},
        format="pack-quantized",
        quantization_status="compressed",
        ignore=sorted(ignored),
    )
    return dict(config.model_dump(mode="json"))


def _scheme(group: int) -> Any:
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    args = QuantizationArgs(num_bits=4, type="int", symmetric=True, strategy="group", group_size=group)
    return QuantizationScheme(targets=["Linear"], weights=args)
