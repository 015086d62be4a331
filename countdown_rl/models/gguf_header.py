"""Reader of the header of a GGUF file that takes no more time and memory than the file's size allows.

https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import mmap
import struct
from pathlib import Path
from typing import Any

from countdown_rl.core.errors import ModelError

#: Elements of all lists in a header; a vocabulary of 262,144 tokens takes 1.3 million.
MAX_ELEMENTS = 1 << 22

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _LIST = 8, 9


def read(file: Path) -> dict[str, Any]:
    """Return the fields in the header of the GGUF *file*: numbers, texts, lists of numbers; None for other lists."""
    with file.open("rb") as stream:
        if stream.read(4) != b"GGUF":
            raise ModelError(f"{file} is not a GGUF file; give a directory, a .gguf file or a Hub id.")
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _fields(_Cursor(data))
            except ValueError as error:
                raise ModelError(f"{file} is damaged ({error}); make or download it again.") from error


def _fields(cursor: "_Cursor") -> dict[str, Any]:
    (version,) = cursor.numbers("I")
    if version not in (2, 3):
        raise ValueError(f"version {version} of GGUF")
    _, count = cursor.numbers("Q", 2)
    return {cursor.text(): cursor.value(*cursor.numbers("I")) for _ in range(count)}


class _Cursor:
    """A position in *data*, behind the first four bytes."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._offset = 4
        self._elements = 0

    def numbers(self, code: str, count: int = 1) -> tuple[Any, ...]:
        start = self._skip(struct.calcsize(f"<{code}") * count)
        return struct.unpack_from(f"<{count}{code}", self._data, start)

    def text(self) -> str:
        start = self._skip(*self.numbers("Q"))
        return self._data[start : self._offset].decode()

    def value(self, kind: int) -> Any:
        if kind == _TEXT:
            return self.text()
        if kind in _NUMBERS:
            return self.numbers(_NUMBERS[kind])[0]
        if kind != _LIST:
            raise ValueError(f"a field of type {kind}")
        (kind,), (count,) = self.numbers("I"), self.numbers("Q")
        self._elements += count
        if self._elements > MAX_ELEMENTS:
            raise ValueError(f"lists of over {MAX_ELEMENTS:,} elements")
        if kind in _NUMBERS:
            return self.numbers(_NUMBERS[kind], count)
        if kind != _TEXT:
            raise ValueError(f"a list of type {kind}")
        for _ in range(count):
            self._skip(*self.numbers("Q"))
        return None

    def _skip(self, size: int) -> int:
        """Move on by *size* bytes, and return the position before."""
        start = self._offset
        self._offset += size
        if self._offset > len(self._data):
            raise ValueError("it ends within its header")
        return start
