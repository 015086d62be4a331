"""Safetensors checkpoints read one tensor at a time and written one shard at a time: no model has to fit in memory."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from countdown_rl.errors import ModelError
from countdown_rl.models.files import INDEX, WEIGHTS, shards

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
#: Largest shard written, in bytes, as the Hub recommends.
MAX_SHARD_SIZE = 5_000_000_000


@dataclass(frozen=True)
class TensorSpec:
    """Type and shape of a tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.itemsize


class Checkpoint:
    """The tensors of all safetensors files of a directory; ``specs`` maps their names, values are read on demand."""

    def __init__(self, directory: Path) -> None:
        """Read the headers. Raises ModelError if a file is damaged, missing, or holds an unsupported type."""
        self.specs: dict[str, TensorSpec] = {}
        self._files: dict[str, Path] = {}
        for path in shards(Path(directory)):
            try:
                with safe_open(path, framework="pt") as file:  # checks the header and the length of the file
                    slices = {name: file.get_slice(name) for name in file.offset_keys()}
                    header = {name: (part.get_dtype(), tuple(part.get_shape())) for name, part in slices.items()}
            except Exception as error:  # safetensors has its own exception type beside OSError
                raise ModelError(f"{path} is missing or damaged; download or write it again.") from error
            for name, (code, shape) in header.items():
                if code not in DTYPES:
                    raise ModelError(f"{path} holds {name} as {code}, a type that is not supported here.")
                self.specs[name] = TensorSpec(DTYPES[code], shape)
                self._files[name] = path

    def read(self, name: str) -> torch.Tensor:
        """Return the values of *name*.

        The file is mapped for this tensor alone: with one mapping for all, every page read would stay in memory.
        """
        with safe_open(self._files[name], framework="pt") as file:
            return file.get_tensor(name)


def write(directory: Path, tensors: Iterable[tuple[str, torch.Tensor]], *, max_shard_size: int = MAX_SHARD_SIZE) -> int:
    """Write a checkpoint of *tensors*, holding at most one shard in memory, and return their bytes.

    One file up to *max_shard_size* bytes, else numbered shards with an index, as transformers names them.

    Raises:
        ModelError: a value is not finite.
    """
    written: list[list[str]] = []
    shard: dict[str, torch.Tensor] = {}
    size = total = 0

    def save() -> None:
        save_file(shard, directory / f"shard-{len(written)}", metadata={"format": "pt"})
        written.append(list(shard))
        shard.clear()

    for name, tensor in tensors:
        check_finite(name, tensor)
        if shard and size + tensor.nbytes > max_shard_size:
            save()
            size = 0
        shard[name] = tensor.contiguous()
        size += tensor.nbytes
        total += tensor.nbytes
    save()
    weight_map: dict[str, str] = {}
    for index, names in enumerate(written):
        file = WEIGHTS if len(written) == 1 else f"model-{index + 1:05}-of-{len(written):05}.safetensors"
        (directory / f"shard-{index}").rename(directory / file)
        weight_map |= dict.fromkeys(names, file)
    if len(written) > 1:
        contents = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (directory / INDEX).write_text(json.dumps(contents, indent=2, sort_keys=True) + "\n")
    return total


def check_finite(name: str, tensor: torch.Tensor) -> None:
    """Check a tensor that is about to be written.

    Raises:
        ModelError: a value is NaN or infinite.
    """
    if tensor.is_floating_point() and tensor.numel() and not torch.stack(tensor.aminmax()).isfinite().all():
        raise ModelError(f"{name} holds values that are not finite, so nothing was written; train it again.")
