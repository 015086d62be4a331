"""Benchmark suites: named sets of test puzzles, generated from their options and checked against a
pinned digest.

A released suite never changes. All of its puzzles have numbers of the test split, which no training
split holds.
"""

import atexit
import shutil
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from countdown_rl.core.errors import CountdownError, InputError
from countdown_rl.core.manifest import file_sha256
from countdown_rl.core.types import JsonObject
from countdown_rl.data import build
from countdown_rl.data.config import DataOptions
from countdown_rl.tasks import jsonl

#: For each tier of countdown-bench-1 the options of ``gen-data``, and the values of fields that its
#: rows have.
_TIERS: dict[str, tuple[JsonObject, JsonObject]] = {
    "3": ({"size": ("3",)}, {}),
    "4": ({"size": ("4",)}, {}),
    "5": ({"size": ("5",)}, {}),
    "6": ({"preset": "tv"}, {}),
    "needs-mul": ({"size": ("4",)}, {"needs": "mul-div"}),
    "rare": ({"size": ("5",)}, {"solutions": 1}),
    "impossible": ({"size": ("4",), "impossible": 0.5}, {}),
}
#: The sha256 of the JSON Lines of each suite.
_SHA256 = {"countdown-bench-1": "1f070811b2c59bbee504ed1b26860c1a97f2a16a23df66c3bfcb4e26ee96b015"}
#: Puzzles of a tier, and the seed of the first tier.
_SIZE, _SEED = 250, 20_261_127


@cache
def file(suite: str, tier: str) -> Path:
    """Return the file of *suite*, or of its *tier* if not empty, which lasts as long as this
    process.
    """
    if tier and tier not in _TIERS:
        raise InputError(f"the suite {suite} has no tier {tier}; take one of {', '.join(_TIERS)}.")
    rows = _rows()
    name = suite
    if tier:
        rows = (row for row in jsonl.read_objects(file(suite, "")) if row["tier"] == tier)
        name += f"-{tier}"
    path = Path(tempfile.mkdtemp(), f"{name}.jsonl")
    atexit.register(shutil.rmtree, path.parent, ignore_errors=True)
    jsonl.write_rows(path, rows)
    if not tier and file_sha256(path) != _SHA256[suite]:
        raise CountdownError(
            f"the rows of {suite} are not the released ones; install the released countdown-rl again."
        )
    return path


def _rows() -> Iterator[JsonObject]:
    """The rows of all tiers, each puzzle once."""
    seen: set[str] = set()
    for index, (tier, (options, wanted)) in enumerate(_TIERS.items()):
        test = _SIZE * (19 if wanted else 2)
        plenty = DataOptions(n=test + 1, valid=0, test=test, seed=_SEED + index, **options)
        count = 0
        for row in build.generate(plenty, "test"):
            if row["id"] in seen or not wanted.items() <= row.items():
                continue
            seen.add(row["id"])
            yield row | {"tier": tier}
            count += 1
            if count == _SIZE:
                break
