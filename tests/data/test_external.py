"""Import of published data sets, from files and from a local Hub server."""

import bz2
import gzip
import json
import lzma
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub.errors import HTTPError, OfflineModeIsEnabled

from countdown_rl import artifacts
from countdown_rl.data import external, files, jsonl
from countdown_rl.data.config import DataOptions
from countdown_rl.data.countdown import CountdownSource
from countdown_rl.data.source import RowSource
from countdown_rl.errors import InputError
from countdown_rl.tasks.registry import task

ROOT = Path(__file__).parents[2]
COUNTDOWN = "Jiayi-Pan/Countdown-Tasks-3to4"
PUZZLES = [{"nums": [3, 7, 50 + k], "target": 46 + k} for k in range(40)]
CARD = """---
configs:
- config_name: main
  data_files:
  - {split: train, path: main/train-*}
  - {split: test, path: main/test-*}
- config_name: socratic
  data_files:
  - {split: train, path: socratic/train-*}
---
"""


def gen_data(hub, home, *arguments):
    """Exit status, JSON object and stderr in one line of a process that uses *hub*."""
    done = subprocess.run(
        [sys.executable, "-m", "countdown_rl", "gen-data", "--json", *map(str, arguments)],
        check=False, capture_output=True, text=True, cwd=ROOT, env=hub.env(home),
    )  # fmt: skip
    return done.returncode, json.loads(done.stdout or "{}"), " ".join(done.stderr.split())


def parquet(path, rows):
    import pyarrow
    import pyarrow.parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def problems(first, last):
    return [{"question": f"What are {k} and {k}?", "answer": f"{k} + {k}\n#### {2 * k:,}"} for k in range(first, last)]


@pytest.mark.parametrize("error", [OfflineModeIsEnabled("offline"), HTTPError("[Errno -2] no name")])
def test_a_hub_that_cannot_be_reached_is_one_sentence(monkeypatch, error):
    def refuse(*arguments, **more):
        raise error

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", refuse)
    with pytest.raises(InputError, match=r"^a/b cannot be read, as the Hub cannot be reached; [^\[]*--from\.$"):
        external.from_hub("a/b", None)


@pytest.mark.slow
def test_puzzles_come_from_the_hub_at_a_pinned_revision(hub, tmp_path):
    published = tmp_path / "published"
    parquet(published / "data" / "train-00000-of-00001.parquet", PUZZLES)
    pinned = hub.add_model(COUNTDOWN, published, repo_type="dataset")
    parquet(published / "data" / "train-00000-of-00001.parquet", PUZZLES[:1])
    hub.add_model(COUNTDOWN, published, repo_type="dataset")
    arguments = ["--from-hub", COUNTDOWN, "--revision", pinned, "--out", tmp_path / "data"]
    status, facts, err = gen_data(hub, tmp_path, *arguments)
    assert status == 0, err
    assert (facts["read"], facts["dropped"]) == (40, {})
    assert sum(split["rows"] for split in facts["splits"].values()) == 40
    assert jsonl.read_rows(tmp_path / "data" / "train.jsonl")[0]["solution"] == "50 + 3 - 7"
    manifest = artifacts.read(tmp_path / "data", "data")
    assert manifest.inputs["from"] == {"hub": COUNTDOWN, "revision": pinned}
    # Without a revision the newest commit is taken and recorded.
    status, facts, err = gen_data(hub, tmp_path, "--from-hub", COUNTDOWN, "--out", tmp_path / "newest")
    assert (status, facts["read"]) == (0, 1), err
    newest = artifacts.read(tmp_path / "newest", "data").inputs["from"]["revision"]
    assert newest == hub.repos["dataset", COUNTDOWN].find("main") != pinned


def test_gsm8k_comes_from_the_hub_and_keeps_its_test_split(hub, tmp_path):
    published = tmp_path / "published"
    parquet(published / "main" / "train-00000-of-00001.parquet", problems(0, 40))
    parquet(published / "main" / "test-00000-of-00001.parquet", problems(600, 607))
    parquet(published / "socratic" / "train-00000-of-00001.parquet", problems(90, 99))
    (published / "README.md").write_text(CARD)
    hub.add_model("openai/gsm8k", published, repo_type="dataset")
    status, facts, err = gen_data(
        hub, tmp_path, "--task", "gsm8k", "--from-hub", "openai/gsm8k", "--out", tmp_path / "data"
    )
    assert status == 0, err
    assert (facts["read"], facts["splits"]["test"]["rows"]) == (47, 7)
    rows = jsonl.read_rows(tmp_path / "data" / "test.jsonl")
    assert [row["gold"] for row in rows] == [str(2 * k) for k in range(600, 607)]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--from-hub", "me/none"], "me/none"),
        (["--from-hub", COUNTDOWN, "--revision", "v9"], COUNTDOWN),
    ],
)
def test_a_missing_data_set_or_revision_is_reported_in_one_sentence(hub, tmp_path, arguments, complaint):
    (tmp_path / "published").mkdir()
    (tmp_path / "published" / "train.jsonl").write_text(json.dumps(PUZZLES[0]) + "\n")
    hub.add_model(COUNTDOWN, tmp_path / "published", repo_type="dataset")
    status, facts, err = gen_data(hub, tmp_path, *arguments, "--out", tmp_path / "data")
    assert (status, facts) == (1, {}), err
    assert err.startswith("error: ")
    assert complaint in err
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("content", [b"no table", b"PK\x03\x04", b"\x89PNG\r\n\x1a\n", b"\xff\xfe"])
@pytest.mark.parametrize("name", ["rows.parquet.gz", "rows.txt", "rows"])
def test_unknown_formats_are_refused(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=rf"^{tmp_path / name} (cannot be read|is)"):
        list(external.from_file(tmp_path / name))


@pytest.mark.parametrize(("ending", "pack"), [("gz", gzip), ("bz2", bz2), ("xz", lzma)])
@pytest.mark.parametrize("kind", ["csv", "json", "jsonl"])
def test_compressed_files_of_every_kind_are_read(tmp_path, kind, ending, pack):
    text = {
        "csv": 'nums,target\n"[3, 7, 50]",46\n',
        "json": json.dumps(PUZZLES[:1]),
        "jsonl": json.dumps(PUZZLES[0]) + "\n",
    }[kind]
    path = tmp_path / f"rows.{kind}.{ending}"
    path.write_bytes(pack.compress(text.encode()))
    source = CountdownSource(task("countdown"), DataOptions())
    imported = external.import_rows(external.from_file(path), 1, source.candidate, limits={})
    assert [row["id"] for rows in imported.splits.values() for row in rows] == ["3-7-50=46"]


def test_a_file_that_expands_too_far_is_refused_before_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_BYTES", 10**6)
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(PUZZLES[0] | {"more": "x" * 10**7}).encode()))
    with pytest.raises(InputError, match="expands to more than 100 times"):
        next(external.from_file(path))


@pytest.mark.parametrize("key", ["nums", "numbers"])
def test_columns_that_are_neither_kept_nor_read_are_named(tmp_path, key):
    rows = [{key: row["nums"], "target": row["target"], "completion": "?", "note": 1} for row in PUZZLES]
    source = CountdownSource(task("countdown"), DataOptions())
    imported = external.import_rows((("", row) for row in rows), 9, source.candidate, {})
    assert imported.unused == ["completion", "note"]


def test_columns_that_a_task_reads_are_not_named():
    rows = [("", {"question": "One and one?", "answer": "2 #### 2", "level": 1})]
    source = RowSource(task("gsm8k"), DataOptions(task="gsm8k"))
    assert external.import_rows(rows, 1, source.candidate, {}).unused == ["level"]
