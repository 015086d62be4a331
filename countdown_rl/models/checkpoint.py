"""Checkpoints a tensor at a time: safetensors in, safetensors out, never a whole model in memory.

The format (https://huggingface.co/docs/safetensors) is a header of names, types, shapes and places,
then the values back to back. As types and shapes are known before any value is, the header is written
first and each tensor straight to its place.
"""

import json
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from safetensors import safe_open

from countdown_rl.errors import ModelError

TYPES = {
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
_CODES = {dtype: code for code, dtype in TYPES.items()}

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"

#: Largest shard written, in bytes: what the Hub advises.
SHARD = 5_000_000_000


@dataclass(frozen=True)
class Slot:
    """The type and shape of a tensor, without its values."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes."""
        return prod(self.shape) * self.dtype.itemsize


class Checkpoint:
    """The safetensors files of a directory as one mapping from name to tensor, each read when asked for."""

    def __init__(self, directory: Path) -> None:
        """Read the headers.

        Raises:
            ModelError: a file is damaged, missing, or holds a type that is not understood.
        """
        self.slots: dict[str, Slot] = {}
        self._places: dict[str, tuple[Path, int, Slot]] = {}
        for path in _shards(Path(directory)):
            try:
                with safe_open(path, framework="pt"):  # checks that the header is sound and the file as long as it says
                    pass
                with path.open("rb") as file:
                    length = int.from_bytes(file.read(8), "little")
                    header = json.loads(file.read(length))
            except Exception as error:  # safetensors raises its own type, and OSError
                raise ModelError(f"{path} is missing or damaged; fetch or make it again.") from error
            header.pop("__metadata__", None)
            for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
                if entry["dtype"] not in TYPES:
                    raise ModelError(f"{path} holds {name} as {entry['dtype']}, which cannot be worked with here.")
                self.slots[name] = Slot(TYPES[entry["dtype"]], tuple(entry["shape"]))
                self._places[name] = (path, 8 + length + entry["data_offsets"][0], self.slots[name])

    def read(self, name: str) -> torch.Tensor:
        """The values of *name*, in memory of their own.

        Read rather than mapped: pages of a mapped file stay with the process until it is closed.
        """
        path, offset, slot = self._places[name]
        values = np.fromfile(path, dtype=np.uint8, count=slot.size, offset=offset)
        return torch.from_numpy(values).view(slot.dtype).reshape(slot.shape)


def write(
    directory: Path,
    slots: Mapping[str, Slot],
    tensors: Iterable[tuple[str, torch.Tensor]],
    *,
    shard: int = SHARD,
) -> None:
    """Write the checkpoint that *slots* lay out, taking each tensor from *tensors* as it comes.

    One file up to *shard* bytes, else numbered shards with an index, as transformers names them.

    Raises:
        ValueError: *tensors* does not fill *slots* exactly, each once.
    """
    plan = _plan(slots, shard)
    place = {name: number for number, names in enumerate(plan) for name in names}
    files: dict[int, tuple[IO[bytes], dict[str, int]]] = {}
    waiting = [len(names) for names in plan]
    # A shard goes to the disk while the next one is made.
    disk, finished = ThreadPoolExecutor(1), list[Future[None]]()
    try:
        for name, tensor in tensors:
            if Slot(tensor.dtype, tuple(tensor.shape)) != slots[name]:
                raise ValueError(f"{name} is {tensor.dtype} {tuple(tensor.shape)}, not {slots[name]}")
            number = place.pop(name)
            if number not in files:
                files[number] = _begin(directory / _name(number, len(plan)), {n: slots[n] for n in plan[number]})
            stream, offsets = files[number]
            stream.seek(offsets[name])
            stream.write(memoryview(tensor.contiguous().reshape(-1).view(torch.uint8).numpy()))
            del tensor  # before the next one is made
            waiting[number] -= 1
            if not waiting[number]:
                finished.append(disk.submit(_finish, stream))
        for one in finished:
            one.result()
    finally:
        disk.shutdown()
        for stream, _ in files.values():
            stream.close()
    if place:
        raise ValueError(f"{len(place)} tensors were never written, {next(iter(place))} among them")
    if len(plan) > 1:
        index = {
            "metadata": {"total_size": sum(slot.size for slot in slots.values())},
            "weight_map": {name: _name(number, len(plan)) for number, names in enumerate(plan) for name in names},
        }
        (directory / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")


def _shards(directory: Path) -> list[Path]:
    index = directory / INDEX
    if not index.is_file():
        return [directory / WEIGHTS] if (directory / WEIGHTS).is_file() else sorted(directory.glob("*.safetensors"))
    try:
        return [directory / name for name in sorted(set(json.loads(index.read_bytes())["weight_map"].values()))]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{index} is damaged; fetch or make it again.") from error


def _plan(slots: Mapping[str, Slot], shard: int) -> list[list[str]]:
    plan: list[list[str]] = [[]]
    filled = 0
    for name, slot in slots.items():
        if plan[-1] and filled + slot.size > shard:
            plan.append([])
            filled = 0
        plan[-1].append(name)
        filled += slot.size
    return plan


def _name(number: int, count: int) -> str:
    return WEIGHTS if count == 1 else f"model-{number + 1:05}-of-{count:05}.safetensors"


def _finish(stream: IO[bytes]) -> None:
    stream.flush()
    os.fsync(stream.fileno())
    stream.close()


def _begin(path: Path, slots: Mapping[str, Slot]) -> tuple[IO[bytes], dict[str, int]]:
    # Wide types first, as safetensors itself writes them: every tensor is then aligned in a mapped file.
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offsets, end = {}, 0
    for name, slot in sorted(slots.items(), key=lambda item: -item[1].dtype.itemsize):
        offsets[name], end = end, end + slot.size
        header[name] = {
            "dtype": _CODES[slot.dtype],
            "shape": list(slot.shape),
            "data_offsets": [offsets[name], end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    stream = path.open("wb")
    stream.write(len(text).to_bytes(8, "little") + text)
    return stream, {name: 8 + len(text) + offset for name, offset in offsets.items()}
