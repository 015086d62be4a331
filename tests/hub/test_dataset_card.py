"""The puzzles go up as a data set that others can load, and come back as they were."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import DatasetCard

from countdown_rl import artifacts
from countdown_rl.data import build, jsonl
from countdown_rl.data.config import DataOptions
from countdown_rl.errors import ArtifactError, HubError
from countdown_rl.hub import dataset_card
from countdown_rl.hub import upload as uploading
from countdown_rl.hub.config import PublishOptions

ROOT = Path(__file__).parents[2]
NAME = "me/puzzles"
NONE = PublishOptions()


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("data")
    build.make(DataOptions(n=40, valid=5, test=5, seed=3), root / "data")
    return root / "data"


@pytest.fixture
def release(made, tmp_path) -> Path:
    dataset_card.build(made, tmp_path / "release", PublishOptions(license="cc0-1.0"))
    return tmp_path / "release"


def test_the_release_is_the_splits_and_a_card(made, release):
    manifest = artifacts.read(release, "data-release")
    source = artifacts.read(made, "data")
    assert source.files.items() <= manifest.files.items()
    assert manifest.files.keys() - source.files.keys() == {"README.md"}
    assert manifest.inputs["data"]["digest"] == source.digest
    assert manifest.facts["rows"] == {"train": 30, "valid": 5, "test": 5}


def test_the_same_puzzles_give_the_same_bytes(made, release, tmp_path):
    again = dataset_card.build(made, tmp_path / "again", PublishOptions(license="cc0-1.0"))
    assert again == artifacts.read(release, "data-release")


def test_the_card_says_what_the_hub_and_a_person_need(made, release):
    card = DatasetCard.load(release / "README.md")
    assert (card.data.license, card.data.task_categories, card.data.size_categories) == (
        "cc0-1.0",
        ["text-generation"],
        ["n<1K"],
    )
    files = card.data.configs[0]["data_files"]
    assert [(file["split"], (release / file["path"]).is_file()) for file in files] == [
        ("train", True),
        ("validation", True),
        ("test", True),
    ]
    row = jsonl.read_rows(release / "test.jsonl")[0]
    for key in row:
        assert re.search(rf"^\| {key} \| \S", card.text, re.MULTILINE)
    for entry in artifacts.read(made, "data").files.values():
        assert entry["sha256"] in card.text
    assert "countdown-rl gen-data" in card.text
    assert "--n 40" in card.text


def test_load_dataset_gives_back_what_was_sent(hub, release, tmp_path):
    uploading.push(release, NAME)
    code = (
        f"import json, datasets; print(json.dumps({{k: list(v) for k, v in datasets.load_dataset({NAME!r}).items()}}))"
    )
    env = hub.env(tmp_path) | {"HF_DATASETS_CACHE": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    splits = json.loads(done.stdout)
    for ours, theirs in {"train": "train", "valid": "validation", "test": "test"}.items():
        assert splits.pop(theirs) == jsonl.read_rows(release / f"{ours}.jsonl")
    assert not splits
    assert not hub.leaks


def test_it_goes_to_a_data_set_and_not_to_a_model_of_that_name(hub, release):
    upload = uploading.push(release, NAME)
    assert list(hub.repos) == [("dataset", NAME)]
    repo = hub.repos["dataset", NAME]
    assert repo.private
    assert repo.tags == {"v1": upload.commit}
    assert upload.url == f"{hub.url}/datasets/{NAME}"
    assert uploading.push(release, NAME).uploaded == []


def test_only_what_changed_is_sent_and_named(hub, made, release, tmp_path):
    uploading.push(release, NAME)
    dataset_card.build(made, tmp_path / "next", PublishOptions(license="mit"))
    told: list[str] = []
    upload = uploading.push(tmp_path / "next", NAME, tell=told.append)
    assert upload.uploaded == ["README.md", "manifest.json"]
    assert upload.tag == "v2"
    assert told == [next(line for line in told if line.endswith("README.md, manifest.json"))]


@pytest.mark.parametrize(
    "fault",
    [
        {"match": "POST .*/datasets/.*/commit/", "cut": "after"},
        {"match": "POST .*/preupload/", "status": 429, "headers": {"Retry-After": "1"}},
        {"match": "GET .*/datasets/.*/tree/", "cut": "body"},
        {"match": "POST .*/tag/", "status": 503},
    ],
    ids=lambda fault: " ".join(map(str, fault.values())),
)
def test_a_fault_that_passes_loses_nothing(hub, release, fault):
    hub.fail(**fault)
    upload = uploading.push(release, NAME)
    repo = hub.repos["dataset", NAME]
    assert set(repo.files) == {".gitattributes", *upload.uploaded}
    assert len(repo.trees) == 2
    assert repo.tags == {"v1": upload.commit}


def test_somebody_elses_data_set_is_left_alone(hub, release, tmp_path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "train.jsonl").write_text("{}\n")
    before = hub.add_model(NAME, tmp_path / "theirs", private=True, repo_type="dataset")
    with pytest.raises(HubError, match="did not make it"):
        uploading.push(release, NAME)
    assert hub.repos["dataset", NAME].branches == {"main": before}


def test_what_stands_is_what_was_asked_for(made, release, tmp_path):
    assert dataset_card.standing(made, release, NONE) == artifacts.read(release, "data-release")
    assert dataset_card.standing(made, release, PublishOptions(license="mit")) is None
    assert dataset_card.standing(made, tmp_path / "nothing", NONE) is None
    build.make(DataOptions(n=40, valid=5, test=5, seed=4), tmp_path / "other")
    assert dataset_card.standing(tmp_path / "other", release, NONE) is None


def test_damaged_puzzles_are_refused(made, tmp_path):
    copy = Path(shutil.copytree(made, tmp_path / "data"))
    (copy / "test.jsonl").write_text("{}\n")
    with pytest.raises(ArtifactError, match="damaged"):
        dataset_card.build(copy, tmp_path / "release", NONE)


def test_the_command_publishes_puzzles(hub, made, tmp_path):
    env = os.environ | hub.env(tmp_path) | {"PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-m", "countdown_rl", "publish", "--dataset", str(made), "--json"]
    pushed = [*words, "--push", "--repo-id", NAME]
    for built in (True, False):
        done = subprocess.run(pushed, cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout)
        assert (result["built"], bool(result["upload"]["uploaded"])) == (built, built)
    assert (tmp_path / "artifacts" / "data-release" / "train.jsonl").is_file()
    done = subprocess.run([*words, "--model", "x"], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 2
    assert "--dataset" in done.stderr
