"""Import of published data sets, from files and from a local Hub server."""

import json

import pyarrow.parquet
import pytest

from countdown_rl.core import artifacts
from countdown_rl.core.errors import InputError
from countdown_rl.data import build
from countdown_rl.data.config import DataOptions
from countdown_rl.tasks import jsonl
from countdown_rl.tasks.splits import held_out
from tests.support.command import python

COUNTDOWN = "Jiayi-Pan/Countdown-Tasks-3to4"
PUZZLES = [{"nums": [3, 7, 50 + k], "target": 46 + k} for k in range(40)]


def test_puzzles_come_from_the_hub_at_a_pinned_revision(hub, tmp_path, run_command):
    file = tmp_path / "published" / "data" / "train-00000-of-00001.parquet"
    file.parent.mkdir(parents=True)
    commits = []
    for rows in (PUZZLES, PUZZLES[:1]):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
        commits.append(hub.add_model(COUNTDOWN, tmp_path / "published", repo_type="dataset"))
    # Without a revision the newest commit is taken and recorded.
    sources = {f"{COUNTDOWN}@{commits[0]}": 40, COUNTDOWN: 1}
    for (source, count), commit in zip(sources.items(), commits, strict=True):
        out = tmp_path / commit
        printed = run_command("gen-data", "--json", "--out", out, "--from-hub", source).out
        facts = json.loads(printed)
        assert (facts["read"], facts["dropped"]) == (count, {})
        inputs = artifacts.read(out, "data").inputs
        assert inputs["from"] == {"hub": COUNTDOWN, "revision": commit}


def publish(hub, folder, splits, card=""):
    """Put a data set on the *hub*, with *splits* as rows by file name, and return its commit."""
    for name, rows in splits.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        jsonl.write_rows(folder / name, rows)
    (folder / "README.md").write_text(card)
    return hub.add_model("me/rows", folder, repo_type="dataset")


CONFIGURATIONS = """---
configs:
- {config_name: a, data_files: a/*.jsonl}
- {config_name: b, data_files: b/*.jsonl, default: true}
---
"""


@pytest.mark.parametrize(("name", "rows"), [("me/rows", 2), ("me/rows:a", 1)])
def test_the_configuration_is_the_default_one_or_the_one_asked_for(hub, tmp_path, name, rows):
    files = {"a/train.jsonl": PUZZLES[:1], "b/train.jsonl": PUZZLES[:2]}
    publish(hub, tmp_path / "published", files, CONFIGURATIONS)
    facts = build.make(DataOptions(from_hub=name), tmp_path / "data")
    assert facts["read"] == rows


def ids(folder):
    """The ids of the rows of each split of a data artifact."""
    files = folder.glob("*.jsonl")
    return {file.stem: {row["id"] for row in jsonl.read_objects(file)} for file in files}


@pytest.mark.parametrize(("split", "kept_in"), [("test_hard", "test"), ("validation", "valid")])
def test_published_splits_keep_their_meaning(hub, tmp_path, split, kept_in):
    held = [*PUZZLES[:3], {"nums": [2, 9], "target": 11}, {"nums": [14, 1, 2], "target": 17}]
    listed = f"[{{split: train, path: a.jsonl}}, {{split: {split}, path: b.jsonl}}]"
    card = f"---\nconfigs:\n- {{config_name: default, data_files: {listed}}}\n---\n"
    publish(hub, tmp_path, {"a.jsonl": [*PUZZLES, *held[4:]], "b.jsonl": held}, card)
    facts = build.make(DataOptions(from_hub="me/rows"), tmp_path / "data")
    rows = ids(tmp_path / "data")
    assert {"2-9=11", "3-7-50=46", "3-7-51=47"} <= rows[kept_in]
    assert len(rows["train"]) > 25
    assert facts["dropped"] == {"held-out": 4}


def test_a_test_row_of_a_file_keeps_its_split_wherever_it_stands(tmp_path):
    rows = [*PUZZLES, PUZZLES[5] | {"split": "test"}, PUZZLES[6] | {"split": "dev"}]
    jsonl.write_rows(tmp_path / "rows.jsonl", rows)
    build.make(DataOptions(from_=str(tmp_path / "rows.jsonl"), n=len(rows)), tmp_path / "data")
    splits = ids(tmp_path / "data")
    assert "3-7-55=51" in splits["test"] - splits["train"]
    assert "3-7-56=52" in splits["valid"] - splits["train"]


def test_rows_of_a_full_split_are_counted_by_the_split(hub, tmp_path):
    publish(hub, tmp_path, {"train.jsonl": PUZZLES[10:], "test.jsonl": PUZZLES[:10]})
    facts = build.make(DataOptions(from_hub="me/rows", test=4), tmp_path / "data")
    assert facts["dropped"]["test-full"] == 6
    assert "of the split test" in facts["reasons"]["test-full"]
    with pytest.raises(InputError, match="none for training"):
        build.make(DataOptions(from_hub="me/rows", n=10), tmp_path / "more")


@pytest.mark.parametrize(
    ("meaning", "names"),
    [
        (None, "train training latest contest devices train_sft value all"),
        ("test", "test test_hard eval testA holdout testmini"),
        ("valid", "validation val dev dev2 validation.clean"),
    ],
)
def test_names_of_splits_have_a_meaning(meaning, names):
    assert {held_out(name) for name in names.split()} == {meaning}


@pytest.mark.parametrize(
    "setting", [{"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}], ids=str
)
@pytest.mark.parametrize(
    "first",
    [
        "from huggingface_hub import snapshot_download as d; d('me/rows', repo_type='dataset')",
        "from datasets import load_dataset; load_dataset('me/rows')",
    ],
)
def test_a_cached_data_set_is_read_where_the_hub_cannot_be_reached(hub, tmp_path, first, setting):
    pinned = publish(hub, tmp_path / "published", {"train.jsonl": PUZZLES})
    python(first, hub.env(tmp_path))
    command = f"gen-data --from-hub me/rows --out {tmp_path / 'data'}"
    again = f"from countdown_rl.cli.main import app; app({command.split()})"
    hub.log.clear()
    python(again, hub.env(tmp_path) | setting)
    assert artifacts.read(tmp_path / "data", "data").inputs["from"]["revision"] == pinned
    assert not hub.log
