"""Safetensors checkpoints: their headers, their tensors one at a time, and copies with changed values."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from countdown_rl.core import artifacts
from countdown_rl.core.errors import ModelError
from countdown_rl.models.model_files import INDEX, failures_of_libraries, shards

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "BOOL": torch.bool,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
}  # fmt: skip


class Checkpoint:
    """The tensors of a safetensors file, or of all those of a directory; their values are read on demand.

    ``specs`` has each as a tensor without values, on the meta device, and ``files`` its file. Raises ModelError if a
    file is damaged, missing, or holds an unsupported type.
    """

    def __init__(self, location: Path) -> None:
        self.specs: dict[str, torch.Tensor] = {}
        self.files: dict[str, Path] = {}
        for path in [location] if location.is_file() else shards(location):
            artifacts.check_no_pointer(path, ModelError)
            # safe_open checks the header and the length of the file.
            with (
                failures_of_libraries(f"{path} is missing or damaged"),
                safe_open(path, framework="pt") as file,
            ):
                for name in file.offset_keys():
                    spec = file.get_slice(name)
                    if (dtype := DTYPES.get(spec.get_dtype())) is None:
                        raise ModelError(
                            f"{path} holds {name} as {spec.get_dtype()}, which is not supported here."
                        )
                    if name in self.files:
                        raise ModelError(
                            f"{path} and {self.files[name]} both hold {name}; remove the stale file."
                        )
                    self.specs[name] = torch.empty(
                        tuple(spec.get_shape()), dtype=dtype, device="meta"
                    )
                    self.files[name] = path

    def drop_tied(self, model: Any) -> bool:
        """Leave out each tensor that equals the one to which the configuration of *model* ties it. Returns True if the
        values of such a pair differ, so that the model is not tied."""
        differ = False
        for name, original in model.all_tied_weights_keys.items():
            if name in self.specs and original in self.specs:
                if torch.equal(self.read(name), self.read(original)):
                    del self.specs[name], self.files[name]
                else:
                    differ = True
        return differ

    def read(self, name: str) -> torch.Tensor:
        """Return the values of *name*."""
        # The file is mapped for this tensor alone: with one mapping for all, every page read would stay in memory.
        with safe_open(self.files[name], framework="pt") as file:
            return file.get_tensor(name)


def write(
    source: Checkpoint, out: Path, change: Callable[[str, torch.Tensor], dict[str, torch.Tensor]]
) -> int:
    """Write *source* to *out* in the same shards, and return the bytes of all tensors. *change* takes the name and
    values of a tensor and returns the tensors to store in its place. Only one shard is in memory at a time."""
    weight_map: dict[str, str] = {}
    total = 0
    paths = sorted(set(source.files.values()))
    for path in paths:
        tensors: dict[str, torch.Tensor] = {}
        for name in (name for name, file in source.files.items() if file == path):
            tensors |= change(name, source.read(name))
        for name, tensor in tensors.items():
            check_finite(name, tensor)
        save_file(
            {name: tensor.contiguous() for name, tensor in tensors.items()},
            out / path.name,
            {"format": "pt"},
        )
        weight_map |= dict.fromkeys(tensors, path.name)
        total += sum(tensor.nbytes for tensor in tensors.values())
    if len(paths) > 1:
        contents = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (out / INDEX).write_text(json.dumps(contents, indent=2, sort_keys=True) + "\n")
    return total


def check_finite(name: str, tensor: torch.Tensor) -> None:
    """Check that all values of a tensor that is about to be written are finite."""
    if (
        tensor.is_floating_point()
        and tensor.numel()
        and not torch.stack(tensor.aminmax()).isfinite().all()
    ):
        raise ModelError(
            f"{name} holds values that are not finite, so nothing was written; train it again."
        )
