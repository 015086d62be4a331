"""The kernel compiled by Numba.

Importing this costs about a second; the machine code is kept on disk.
"""

import hashlib
import inspect
from functools import partial
from pathlib import Path

import numba
from numba.extending import register_jitable

from countdown_rl.tasks.countdown import kernel

#: Functions that make arrays; counting references to arrays would slow down the others.
_ALLOCATING = ("draw", "reset", "draw_numbers")
#: Functions that Python calls.
_ENTRIES = (kernel.search, kernel.write, kernel.draw)

for _name, _function in inspect.getmembers(kernel, inspect.isfunction):
    if _function.__module__ == kernel.__name__:
        register_jitable(error_model="numpy", _nrt=_name in _ALLOCATING)(_function)

# Numba names its files after the function, and fails where such a file is of another version and
# names a class that has gone. So each version of the kernel has names of its own.
_VERSION = hashlib.sha256(Path(kernel.__file__).read_bytes()).hexdigest()[:12]
for _entry in _ENTRIES:
    _entry.__qualname__ = f"{_entry.__name__}_{_VERSION}"

_compiler = partial(numba.njit, nogil=True, error_model="numpy")
try:
    search, write, draw = map(_compiler(cache=True), _ENTRIES)
except RuntimeError:  # neither the package's nor the user's cache directory can be written to
    search, write, draw = map(_compiler(), _ENTRIES)
