"""W4A16: weights as 4-bit integers with a scale for each group of them, activations in 16 bits.

The layout is ``pack-quantized`` of compressed-tensors, which vLLM reads directly. That library computes the scales,
rounds to nearest and packs; quantization is symmetric, without zero points.
"""

from collections.abc import Collection
from importlib.util import find_spec
from typing import Any

import torch

from countdown_rl.core import packages
from countdown_rl.core.errors import ModelError

#: Group sizes that vLLM's kernels support, in order of preference.
GROUP_SIZES = (128, 64, 32)


def group_size(widths: Collection[int]) -> int:
    """Return the largest group size that divides all of these row *widths*, except those that none divides."""
    widths = [width for width in widths if width % GROUP_SIZES[-1] == 0]
    if not widths:
        raise ModelError(
            f"no layer has rows of a multiple of {GROUP_SIZES[-1]} weights, as W4A16 requires; give --format nf4."
        )
    return next(size for size in GROUP_SIZES if all(width % size == 0 for width in widths))


def check_installed() -> None:
    """Raise ModelError if compressed-tensors is not installed."""
    if find_spec("compressed_tensors") is None:
        raise ModelError(f"W4A16 weights need compressed-tensors: {packages.pip_install('compressed-tensors')}.")


def pack(name: str, weight: torch.Tensor, group: int) -> dict[str, torch.Tensor]:
    """Return the tensors that compressed-tensors stores for the *weight* called *name*."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization.utils import calculate_qparams

    scheme = _scheme(group)
    weight = weight.float()  # quotients in bf16 would round to the wrong neighbour now and then
    groups = weight.unflatten(1, (-1, group))  # (out, in / group, group)
    scale, _ = calculate_qparams(groups.amin(2), groups.amax(2), scheme.weights)
    scale = scale.to(torch.bfloat16)
    state = {"weight": weight, "weight_scale": scale.float()}
    stored = BaseCompressor.get_value_from_registry("pack-quantized").compress(state, scheme)
    tensors = stored | {"weight_scale": scale}
    return {f"{name}_{part}": tensors[f"weight_{part}"] for part in ("packed", "scale", "shape")}


def quantization_config(group: int, ignored: Collection[str]) -> dict[str, Any]:
    """Return the ``quantization_config`` for config.json; the linear layers *ignored* are not quantized."""
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
