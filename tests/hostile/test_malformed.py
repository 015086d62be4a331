"""Malformed files are sentences: values of other types at every position of what each reader reads."""

import json
import random
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from countdown_rl.core.errors import CountdownError
from countdown_rl.core.manifest import Manifest, provenance_chain
from countdown_rl.release.report.page import lineage
from countdown_rl.tasks import jsonl
from countdown_rl.tasks.probe import initial_model

NESTED: list[Any] = []
for _ in range(200):
    NESTED = [NESTED]
OTHERS = (
    None,
    "x",
    "[",
    "1e999",
    "\ud800",
    5,
    -1.5,
    True,
    10**400,
    float("nan"),
    float("inf"),
    NESTED,
    [],
    {},
    [[]],
    [None],
    [{"x": 1}],
    {"x": [1]},
    {"": None},
)

RECORDS = {
    "countdown": {
        "id": "3-7-50=46:at-most-once:+-",
        "nums": [3, 7, 50],
        "target": 46,
        "solutions": 2,
        "needs": "add-sub",
        "rule": "at-most-once",
        "operators": "+-",
        "style": "direct",
        "template": "{{ nums }} {{ target }}",
        "split": "x",
    },
    "gsm8k": {"task": "gsm8k", "question": "1 + 1?", "gold": "2", "style": "model_opens"},
    "verl": {
        "prompt": [{"role": "user", "content": "?"}],
        "reward_model": {"style": "rule", "ground_truth": {"numbers": [3, 7], "target": 10}},
        "extra_info": {"split": "train", "info": '{"nums": [3, 7], "target": 10}'},
    },
}


def exchanged(value: Any, count: int = 400) -> Iterator[Any]:
    """Copies of *value* with another value in place of each part of it, the same *count* of them in each run."""

    def every(value: Any) -> Iterator[Any]:
        yield from OTHERS
        keys: Iterable[Any] = ()
        if isinstance(value, dict | list):
            keys = value if isinstance(value, dict) else range(len(value))
        for key in keys:
            for other in every(value[key]):
                copy = value.copy()
                copy[key] = other
                yield copy

    cases = list(every(value))
    yield from random.Random(0).sample(cases, min(count, len(cases)))


def dump(value: Any) -> bytes:
    return json.dumps(value).encode("utf-8", "surrogatepass")


@pytest.mark.parametrize("kind", RECORDS)
def test_rows(kind, tmp_path):
    file, good = tmp_path / "rows.jsonl", 0
    for record in exchanged(RECORDS[kind]):
        file.write_bytes(dump(record))
        with suppress(CountdownError):
            for row in jsonl.read_rows(file):
                good += bool(row.messages() and row.grade("<answer>1</answer>") and row.id)
    assert good or kind == "verl"


def test_manifests():
    good = 0
    data = Manifest("data", {"n": 1}, files={"rows.jsonl": {"sha256": "0" * 64, "size": 1}})
    base = {"digest": "1", "kind": "hub", "source": "me/base", "revision": "1"}
    inputs = {"data": data.as_input(), "model": base, "exclude": [{"digest": "2", "file": "f"}]}
    manifest = Manifest.of("adapter", {"seed": 42}, inputs, facts={"method": "grpo"})
    for other in exchanged(json.loads(manifest.to_bytes())):
        with suppress(CountdownError):
            read = Manifest.parse(dump(other), "manifest.json")
            chain = provenance_chain(read.as_input())
            good += bool(read.chain("model") and lineage(chain) and initial_model(chain))
    assert good
