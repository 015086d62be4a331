"""Safetensors checkpoints read and written one tensor at a time, so that no model has to fit in memory.

Reading is ``safe_open``. Writing is done here: ``save_file`` takes all tensors of a shard at once, and the merge of a
model of 2.4 GB then peaks at 2.9 GB instead of 0.7, and takes a third more time. In the format
(https://huggingface.co/docs/safetensors) a header of names, types, shapes and offsets comes first; all of these are
known before any value is.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import safe_open

from countdown_rl.errors import ModelError
from countdown_rl.models.model_files import INDEX, shards

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
_CODES = {dtype: code for code, dtype in DTYPES.items()}

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


def write(
    directory: Path,
    specs: Mapping[str, TensorSpec],
    tensors: Iterable[tuple[str, torch.Tensor]],
    *,
    max_shard_size: int = MAX_SHARD_SIZE,
) -> None:
    """Write the checkpoint described by *specs*, consuming *tensors* (in the same order) one at a time.

    One file up to *max_shard_size* bytes, else numbered shards with an index, as transformers names them.
    """
    from huggingface_hub import split_state_dict_into_shards_factory

    split = split_state_dict_into_shards_factory(
        dict(specs),
        get_storage_size=lambda spec: spec.nbytes,
        filename_pattern="model{suffix}.safetensors",
        # A tensor that is larger would be moved out of the order.
        max_shard_size=max([max_shard_size, *(spec.nbytes for spec in specs.values())]),
    )
    remaining = iter(tensors)
    for shard, names in split.filename_to_tensors.items():
        with (directory / shard).open("wb") as file:
            offsets = _write_header(file, {name: specs[name] for name in names})
            for expected in names:
                name, tensor = next(remaining, (None, None))
                if tensor is None or name != expected or TensorSpec(tensor.dtype, tuple(tensor.shape)) != specs[name]:
                    raise ValueError(f"expected {expected} as {specs[expected]}, got {name}")
                file.seek(offsets[name])
                check_finite(name, tensor)
                file.write(memoryview(tensor.contiguous().reshape(-1).view(torch.uint8).numpy()))
                del tensor  # before the next one is computed
    if (extra := next(remaining, None)) is not None:
        raise ValueError(f"{extra[0]} is one tensor too many")
    if split.is_sharded:
        contents = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        (directory / INDEX).write_text(json.dumps(contents, indent=2, sort_keys=True) + "\n")


def check_finite(name: str, tensor: torch.Tensor) -> None:
    """Check that all values of a tensor that is about to be written are finite."""
    if tensor.is_floating_point() and tensor.numel() and not torch.stack(tensor.aminmax()).isfinite().all():
        raise ModelError(f"{name} holds values that are not finite, so nothing was written; train it again.")


def _write_header(file: IO[bytes], specs: Mapping[str, TensorSpec]) -> dict[str, int]:
    """Write the header and return the offset of each tensor in the file."""
    # Wide types first, as safetensors itself writes them: every tensor is then aligned in a mapped file.
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offsets, end = {}, 0
    for name, spec in sorted(specs.items(), key=lambda item: -item[1].dtype.itemsize):
        offsets[name], end = end, end + spec.nbytes
        header[name] = {"dtype": _CODES[spec.dtype], "shape": list(spec.shape), "data_offsets": [offsets[name], end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    return {name: 8 + len(text) + offset for name, offset in offsets.items()}
