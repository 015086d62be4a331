"""Malformed files are sentences: values of other types at every position of what each reader reads."""

import csv
import io
import json
import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from countdown_rl.core.errors import CountdownError
from countdown_rl.core.formatting import duration
from countdown_rl.core.manifest import Manifest, initial_model, lineage, provenance_chain
from countdown_rl.evaluation import training_log
from countdown_rl.evaluation.completions import Reader
from countdown_rl.tasks import jsonl, records
from countdown_rl.tasks.registry import parse_row
from countdown_rl.training.sft import demonstrations
from tests.evaluation.test_completions import LINES, ROWS, TEXTS
from tests.support import release_chain

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
)
OTHERS += ([], {}, [[]], [None], [{"x": 1}], {"x": [1]}, {"": None})
EVALUATION = Path(__file__).parents[1] / "evaluation" / "data"

ROW = {
    "id": "3-7-50=46:at-most-once:+-",
    "nums": [3, 7, 50],
    "target": 46,
    "solutions": 2,
    "needs": "add-sub",
}
ROW |= {"rule": "at-most-once", "operators": "+-", "style": "direct"}
ROW |= {"template": "{{ nums }} {{ target }}", "split": "x"}
RECORDS = {
    "countdown": ROW,
    "gsm8k": {
        "task": "gsm8k",
        "question": "1 + 1?",
        "gold": "2",
        "solution": "2",
        "style": "model_opens",
    },
    "verl": {
        "prompt": [{"role": "user", "content": "?"}],
        "reward_model": {"style": "rule", "ground_truth": {"numbers": [3, 7], "target": 10}},
        "extra_info": {"split": "train", "info": '{"nums": [3, 7], "target": 10}'},
    },
}
INSPECT = {
    "eval": {
        "task": "t",
        "task_id": "t",
        "created": "2026-01-01T00:00:00+00:00",
        "model": "m",
        "dataset": {},
    },
    "samples": [
        {"id": "a", "epoch": 1, "input": "?", "target": "7", "metadata": ROWS[0], "messages": []}
    ],
}
INSPECT["eval"] |= {"config": {}}
INSPECT["samples"][0]["output"] = {
    "model": "m",
    "choices": [{"message": {"role": "assistant", "content": "x"}}],
}
REPLY = {"role": "assistant", "content": [{"type": "text", "text": "a"}], "reasoning_content": "b"}
DEMONSTRATIONS = {
    "chat": {
        "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}, REPLY]
    },
    "alpaca": {"instruction": "i", "input": "x", "output": "y", "system": "s", "history": []},
    "sharegpt": {
        "conversations": [{"from": "human", "value": "v"}, {"from": "gpt", "value": "a"}],
        "tools": "",
    },
    "row": {**ROW, "completion": "x", "thinking": "y"},
}


def exchanged(value: Any, count: int = 400) -> Iterator[Any]:
    """Copies of *value* with another value in place of each part of it, the same *count* of them in each run."""

    def every(value: Any) -> Iterator[Any]:
        yield from OTHERS
        parts = (
            value.items()
            if isinstance(value, dict)
            else enumerate(value)
            if isinstance(value, list)
            else ()
        )
        for key, inner in parts:
            for other in every(inner):
                copy = value.copy()
                copy[key] = other
                yield copy

    cases = list(every(value))
    yield from random.Random(0).sample(cases, min(count, len(cases)))


def dump(value: Any) -> bytes:
    return json.dumps(value).encode("utf-8", "surrogatepass")


@pytest.mark.parametrize("kind", RECORDS)
@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_rows(kind, suffix, tmp_path):
    file, good = tmp_path / f"rows.{suffix}", 0
    for record in exchanged(RECORDS[kind]):
        if suffix == "jsonl":
            file.write_bytes(dump(record))
        else:
            try:
                pyarrow.parquet.write_table(pyarrow.Table.from_pylist([record]), file)
            except (pyarrow.ArrowException, AttributeError, OverflowError, TypeError, UnicodeError):
                continue  # a table cannot hold it
        with suppress(CountdownError):
            good += len(
                [
                    (row.messages(), row.grade("<answer>1</answer>"), row.id)
                    for row in jsonl.read_rows(file)
                ]
            )
    assert good or kind == "verl"


@pytest.mark.parametrize("kind", [*LINES, "verifiers-0.1.9", "verifiers-0.4.0", "inspect"])
@pytest.mark.parametrize("known", [True, False])
def test_completions(kind, known):
    file, good = EVALUATION / f"{kind}.jsonl", 0
    record = json.loads(file.read_text().splitlines()[0]) if file.exists() else INSPECT
    record = LINES[kind](ROWS[0], TEXTS[0])[0] if kind in LINES else record
    rows = list(map(parse_row, ROWS)) if known else []
    for other in exchanged(record):
        with suppress(CountdownError):
            for row, completions, *_ in Reader(rows).read(io.BytesIO(dump(other)), "made.json"):
                good += len([row.grade(completion.text) for completion in completions])
    assert good or (kind in ("by-id", "openai-batch") and not known) or (file.exists() and known)


@pytest.mark.parametrize("kind", DEMONSTRATIONS)
def test_demonstrations(kind):
    good = 0
    for record in exchanged(DEMONSTRATIONS[kind]):
        with suppress(CountdownError):
            if isinstance(record, dict):
                layout = {"task": "countdown", "style": "direct"}
                good += len([*demonstrations.parse(records.Reader(), record, "row 1", layout)])
    assert good


def test_manifests():
    good = 0
    data = Manifest("data", {"n": 1}, files={"rows.jsonl": {"sha256": "0" * 64, "size": 1}})
    base = {"digest": "1", "kind": "hub", "source": "me/base", "revision": "1"}
    inputs = {"data": data.as_input(), "model": base, "exclude": [{"digest": "2", "file": "f"}]}
    manifest = Manifest.of("adapter", {"seed": 42}, inputs, facts={"method": "grpo"})
    for other in exchanged(json.loads(manifest.to_bytes())):
        with suppress(CountdownError):
            read = Manifest.parse(dump(other), "manifest.json")
            chain = provenance_chain(read.as_input(), read.entry("model"))
            good += bool(lineage(chain) and initial_model(chain) and read.digest)
    assert good


def test_logs(tmp_path):
    log = release_chain.log_of(tmp_path)
    lines, good = list(csv.DictReader(log.open())), 0
    for other in exchanged(lines[0]):
        with (tmp_path / "log.csv").open("w", errors="surrogatepass") as stream:
            writer = csv.writer(stream)
            writer.writerows(
                [list(other), list(other.values())] if isinstance(other, dict) else [[other]]
            )
        with suppress(CountdownError):
            rows = training_log.read(tmp_path / "log.csv")
            good += bool(training_log.digest(rows) and duration(sum(row.seconds for row in rows)))
    assert good
