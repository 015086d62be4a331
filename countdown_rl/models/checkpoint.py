"""Safetensors checkpoints: their headers, and their tensors one at a time."""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open

from countdown_rl.core import artifacts
from countdown_rl.core.errors import ModelError
from countdown_rl.models.model_files import failures_of_libraries, shards


class Checkpoint:
    """The tensors of a safetensors file, or of all those of a directory, read on demand.

    ``specs`` has each as a tensor without values, on the meta device, and ``files`` its file.
    Raises ModelError if a file is damaged or missing.
    """

    def __init__(self, location: Path) -> None:
        self.specs: dict[str, torch.Tensor] = {}
        self.files: dict[str, Path] = {}
        for path in [location] if location.is_file() else shards(location):
            artifacts.check_no_pointer(path, ModelError)
            # This checks the header and the length of the file, and maps it: no values are read.
            with (
                failures_of_libraries(f"{path} is missing or damaged"),
                safe_open(path, framework="pt") as file,
            ):
                for name in file.offset_keys():
                    self.specs[name] = file.get_tensor(name).to("meta")
                    self.files[name] = path

    def drop_tied(self, tied: Mapping[str, str]) -> bool:
        """Leave out each tensor of *tied* that equals the one to which it is tied.

        Returns True if the values of such a pair differ, so that the model is not tied.
        """
        differ = False
        for name, original in tied.items():
            if name not in self.specs or original not in self.specs:
                continue
            if torch.equal(self.read(name), self.read(original)):
                del self.specs[name], self.files[name]
            else:
                differ = True
        return differ

    def read(self, name: str) -> torch.Tensor:
        """Return the values of *name*."""
        # The file is mapped for this tensor alone: with one mapping for all, every page read would
        # stay in memory.
        with safe_open(self.files[name], framework="pt") as file:
            return file.get_tensor(name)


def check_finite(name: str, tensor: torch.Tensor) -> None:
    """Raise ModelError if *tensor*, called *name*, holds values that are not finite."""
    if not tensor.is_floating_point() or not tensor.numel() or tensor.is_meta:
        return
    if not torch.stack(tensor.detach().aminmax()).isfinite().all():
        raise ModelError(f"{name} holds values that are not finite; train or download it again.")
