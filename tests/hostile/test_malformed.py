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
import yaml

from countdown_rl.core.errors import CountdownError
from countdown_rl.core.formatting import duration
from countdown_rl.core.manifest import MANIFEST, file_entry
from countdown_rl.evaluation import compare, diagnose, results, training_log
from countdown_rl.evaluation.caveats import caveats
from countdown_rl.evaluation.completions import Reader
from countdown_rl.models import load, reference
from countdown_rl.release import folder, verify
from countdown_rl.release.config import PublishOptions
from countdown_rl.release.report import page
from countdown_rl.tasks import conversations, jsonl
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
    "pairs": {"prompt": "u", "chosen": [REPLY], "rejected": [REPLY]},
    "batch": {
        "custom_id": "3-7=10",
        "response": {"body": {"choices": [{"message": REPLY, "finish_reason": "stop"}]}},
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
            for fields in conversations.split(record) if isinstance(record, dict) else ():
                good += bool(
                    demonstrations.parse(fields, "row 1", {"task": "countdown", "style": "direct"})
                )
    assert good


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = release_chain.chain(tmp_path_factory.mktemp("chain"))
    release_chain.log_of(root)
    for name in ("base", "merged"):  # fewer samples are faster
        samples = root / "eval" / name / "samples.jsonl"
        replace_file(
            samples.parent,
            samples.name,
            b"".join(samples.read_bytes().splitlines(keepends=True)[:2]),
        )
        details = json.loads((samples.parent / "details.json").read_text())
        replace_file(samples.parent, "details.json", dump(details | {"n": 2, "correct": 1}))
    return root


def replace_file(directory: Path, name: str, content: bytes) -> None:
    """Write a file of an artifact and its digest into the manifest."""
    (directory / name).write_bytes(content)
    if name != MANIFEST:
        manifest = json.loads((directory / MANIFEST).read_text())
        manifest["files"][name] = file_entry(directory / name)
        (directory / MANIFEST).write_text(json.dumps(manifest))


def use(root: Path) -> bool:
    result, other = (results.read(root / "eval" / name) for name in ("merged", "base"))
    compare.scores({"a": result, "b": other})
    diagnose.diagnose(result)
    caveats({"a": result})
    page.view({"a": [result.path], "b": [other.path]}, {}, 1)
    return True


def publish(root: Path) -> bool:
    folder.build(PublishOptions(model="merged", license="mit"), root / "release")
    return True


def load_model(directory: Path) -> bool:
    load.load_model(reference.find_model(str(directory)), device="cpu")
    return True


#: What reads each file: the figures of an evaluation, the loader of weights, and a release made of them.
@pytest.mark.parametrize(
    ("file", "count"),
    [
        *(
            (f"publish/{name}", 25)
            for name in ("merged/manifest.json", "adapter/manifest.json", "merged/config.json")
        ),
        *(
            (f"publish/eval/merged/{name}", 25)
            for name in ("details.json", "samples.jsonl", MANIFEST)
        ),
        *(
            (f"eval/merged/{name}", 80)
            for name in ("details.json", "metrics.json", "samples.jsonl", MANIFEST)
        ),
        ("adapter/manifest.json", 30),
        ("adapter/adapter_config.json", 40),
        *(
            (f"base/{name}", 40)
            for name in ("config.json", "generation_config.json", "tokenizer_config.json")
        ),
    ],
)
def test_artifacts(file, count, chain, monkeypatch):
    monkeypatch.chdir(chain)
    path, good = Path(file.removeprefix("publish/")), 0
    content, manifest = path.read_bytes(), path.with_name(MANIFEST).read_bytes()
    first, *rest = content.splitlines(keepends=True) if path.suffix == ".jsonl" else [content]
    for value in exchanged(json.loads(first), count):
        try:
            replace_file(path.parent, path.name, b"".join((dump(value), b"\n", *rest)))
            with suppress(CountdownError):
                read = {"eval": use, "publish": publish}.get(Path(file).parts[0])
                good += read(chain) if read else load_model(path.parent)
        finally:
            path.write_bytes(content)
            path.with_name(MANIFEST).write_bytes(manifest)
    assert use(chain)
    assert publish(chain)
    assert good or path.name == MANIFEST or file.startswith("publish")


@pytest.mark.parametrize(
    "name", [MANIFEST, "config.json", "details.json", "samples.jsonl", "README.md"]
)
def test_releases(name, chain, monkeypatch):
    monkeypatch.chdir(chain)
    publish(chain)
    path = next(Path("release").rglob(name))
    content, manifest = path.read_bytes(), Path("release", MANIFEST).read_bytes()
    header, _, rest = (
        content.decode().partition("\n---\n") if path.suffix == ".md" else ("", "", "")
    )
    first, *lines = content.splitlines(keepends=True) if path.suffix == ".jsonl" else [content]
    for value in exchanged(
        yaml.safe_load(header.removeprefix("---\n")) if header else json.loads(first), 40
    ):
        changed = (
            f"---\n{json.dumps(value)}\n---\n{rest}".encode()
            if header
            else b"".join((dump(value), b"\n", *lines))
        )
        try:
            path.write_bytes(changed)
            entry = json.loads(manifest)
            if name != MANIFEST:
                entry["files"][str(path.relative_to("release"))] = file_entry(path)
                Path("release", MANIFEST).write_text(json.dumps(entry))
            with suppress(CountdownError):
                verify.verify("release", fresh=1, limit=1, seed=1)
        finally:
            path.write_bytes(content)
            Path("release", MANIFEST).write_bytes(manifest)


def test_logs(chain, tmp_path):
    lines, good = list(csv.DictReader((chain / "train" / "log.csv").open())), 0
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
