"""Data releases: the splits as they are, a card that ``load_dataset`` reads, and their upload."""

import dataclasses
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import DatasetCard

from countdown_rl.core import artifacts
from countdown_rl.core.errors import ArtifactError, HubError, UsageError
from countdown_rl.data import build
from countdown_rl.data.config import DataOptions
from countdown_rl.release import folder as release
from countdown_rl.release.config import PublishOptions
from countdown_rl.tasks import jsonl
from tests.support.hub import push

NAME = "me/puzzles"


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("data")
    build.make(DataOptions(n=40, valid=5, test=5, seed=3), root / "data")
    return root / "data"


@pytest.fixture
def options(data) -> PublishOptions:
    return PublishOptions(data=str(data), license="cc0-1.0")


@pytest.fixture
def folder(options, tmp_path) -> Path:
    release.build(options, tmp_path / "release")
    return tmp_path / "release"


def test_the_release_is_the_splits_and_a_card(data, folder):
    manifest = artifacts.read(folder, "data-release")
    source = artifacts.read(data, "data")
    assert source.files.items() <= manifest.files.items()
    assert manifest.files.keys() - source.files.keys() == {"README.md"}
    assert manifest.inputs["data"]["digest"] == source.digest
    assert manifest.facts["rows"] == {"train": 30, "valid": 5, "test": 5}


def test_the_same_puzzles_give_the_same_bytes(options, folder, tmp_path):
    again = release.build(options, tmp_path / "again")
    assert again == artifacts.read(folder, "data-release")


def test_the_card_has_metadata_fields_and_the_command(folder):
    card = DatasetCard.load(folder / "README.md")
    assert (card.data.license, card.data.task_categories) == ("cc0-1.0", ["text-generation"])
    files = card.data.configs[0]["data_files"]
    assert [(file["split"], (folder / file["path"]).is_file()) for file in files] == [
        ("train", True),
        ("validation", True),
        ("test", True),
    ]
    row = jsonl.read_rows(folder / "test.jsonl")[0]
    for key in row:
        assert re.search(rf"^\| {key} \| \S", card.text, re.MULTILINE)
    assert "countdown-rl gen-data" in card.text
    assert "--n 40" in card.text


def test_load_dataset_returns_the_rows(hub, folder, tmp_path):
    push(folder, NAME)
    code = (
        f"import json, datasets; print(json.dumps({{k: list(v) for k, v in datasets.load_dataset({NAME!r}).items()}}))"
    )
    env = hub.env(tmp_path) | {"HF_DATASETS_CACHE": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    splits = json.loads(done.stdout)
    for ours, theirs in {"train": "train", "valid": "validation", "test": "test"}.items():
        assert splits.pop(theirs) == jsonl.read_rows(folder / f"{ours}.jsonl")
    assert not splits
    assert not hub.leaks


def test_the_upload_is_a_data_set_and_not_a_model(hub, folder):
    upload = push(folder, NAME)
    assert list(hub.repos) == [("dataset", NAME)]
    repo = hub.repos["dataset", NAME]
    assert repo.private
    assert repo.tags == {"v1": upload.commit}
    assert upload.url == f"{hub.url}/datasets/{NAME}"
    assert push(folder, NAME).commit == upload.commit


def test_a_changed_release_takes_the_next_tag(hub, options, folder, tmp_path):
    push(folder, NAME)
    release.build(dataclasses.replace(options, license="mit"), tmp_path / "next")
    assert push(tmp_path / "next", NAME).tag == "v2"


def test_a_data_set_of_another_tool_is_not_overwritten(hub, folder, tmp_path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "train.jsonl").write_text("{}\n")
    before = hub.add_model(NAME, tmp_path / "theirs", private=True, repo_type="dataset")
    with pytest.raises(HubError, match="did not make it"):
        push(folder, NAME)
    assert hub.repos["dataset", NAME].branches == {"main": before}


def test_damaged_data_are_refused(data, tmp_path):
    copy = Path(shutil.copytree(data, tmp_path / "data"))
    (copy / "test.jsonl").write_text("{}\n")
    with pytest.raises(ArtifactError, match="damaged"):
        release.build(PublishOptions(data=str(copy)), tmp_path / "release")
    assert not (tmp_path / "release").exists()


def test_the_command_publishes_data(hub, data, tmp_path, command, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        done = command("publish", "--data", str(data), "--json", "--push", "--repo-id", NAME)
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["upload"]["tag"] == "v1"
    assert Path("artifacts/data-release/train.jsonl").is_file()
    assert ("dataset", NAME) in hub.repos


@pytest.mark.parametrize(("option", "value"), [("evaluation", "eval"), ("model", "merged"), ("with_demo", True)])
def test_options_of_a_model_are_refused_with_data(option, value):
    with pytest.raises(UsageError, match="leave it out with --data"):
        PublishOptions(data="data", **{option: value})
