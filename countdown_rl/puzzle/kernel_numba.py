"""The kernel compiled by Numba. Importing this costs about a second; the machine code is kept on disk."""

from collections.abc import Callable
from typing import Any

import numba
from numba.extending import register_jitable

from countdown_rl.puzzle import kernel

for _helper in (
    kernel.mix,
    kernel.split_part,
    kernel.term_hash,
    kernel.factor_hash,
    kernel.factor_sign,
    kernel.join_signs,
    kernel.classify,
    kernel.value,
    kernel.hashes,
    kernel.is_new,
    kernel.record,
    kernel.search,
    kernel.write,
    kernel.kind_of,
):
    register_jitable(error_model="numpy")(_helper)


def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    try:
        return numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:  # neither the package's nor the user's cache directory can be written to
        return numba.njit(nogil=True, error_model="numpy")(function)


search = _compile(kernel.search)
write = _compile(kernel.write)
draw = _compile(kernel.draw)
census = _compile(kernel.census)
