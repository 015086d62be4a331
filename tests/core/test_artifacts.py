"""Artifact directories: whole or absent, checked when they are read, the same bytes from the same inputs."""

import json
import os
import shutil
from pathlib import Path

import pytest

from countdown_rl.core import artifacts
from countdown_rl.core.errors import ArtifactError
from countdown_rl.core.manifest import (
    PRETRAINED_BY,
    Manifest,
    file_entry,
    provenance_chain,
)
from tests.support.runs import locked_elsewhere

pytestmark = pytest.mark.usefixtures("here")


def make(out: str, text: str = "rows", kind: str = "data", **inputs) -> Manifest:
    with artifacts.writing(Path(out), kind, options={"n": 1}, **inputs) as writer:
        (writer.path / "rows.jsonl").write_text(text)
        writer.facts["rows"] = 1
    return artifacts.read(Path(out), kind)


def test_an_artifact_is_read_back_and_its_version_changes_no_digest(monkeypatch):
    data = make("data")
    assert (data.kind, data.options, data.facts) == ("data", {"n": 1}, {"rows": 1})
    assert data.files == {"rows.jsonl": file_entry(Path("data/rows.jsonl"))}
    assert make("deep/second").to_bytes() == Path("data/manifest.json").read_bytes()
    manifest = make("eval", kind="eval", inputs={"data": data.as_input()})
    assert manifest.inputs == {"data": {"digest": data.digest, "kind": "data"}}
    assert manifest.chain("data") == provenance_chain(data.as_input())
    monkeypatch.setattr(artifacts, "version", lambda: "2")
    assert (make("data").version, make("data").digest) == ("2", data.digest)


def test_the_lineage_has_each_ancestor_once_in_the_order_of_their_making():
    data = make("data").as_input()
    hub = {"digest": "h", "kind": "hub", "source": "me/base", "revision": "h"}
    start = make("start", kind="model", inputs={"model": hub, "data": data}).as_input()
    inputs = {"model": start | {"source": "start"}, "data": data, "exclude": [data]}
    adapter = make("adapter", kind="adapter", inputs=inputs)
    merged = make("merged", kind="merged", inputs={"adapter": adapter.as_input()})
    chain = provenance_chain(merged.as_input())
    assert [entry.name for entry in chain] == ["data", "me/base", "start", "adapter", "merged"]
    assert Manifest.parse(merged.to_bytes(), "m").chain("adapter") == chain[:-1]
    assert adapter.chain("exclude") == chain[:1]
    assert merged.chain("nothing") == []


@pytest.mark.parametrize(
    ("kind", "inputs", "facts", "command"),
    [
        ("model", {}, {}, PRETRAINED_BY),
        ("model", {"model": {"digest": "base"}}, {}, "countdown-rl sft"),
        ("adapter", {}, {"command": "countdown-rl sft"}, "countdown-rl sft"),
        ("hub", {}, {}, ""),
    ],
)
def test_an_ancestor_knows_its_command(kind, inputs, facts, command):
    manifest = Manifest.of(kind, {}, inputs, facts=facts)
    assert provenance_chain(manifest.as_input())[-1].command == command


def test_an_artifact_is_on_disk_before_it_replaces_the_previous_one(flushed, monkeypatch):
    make("data", "old")
    with pytest.raises(TypeError):
        make("data", text=b"not text")
    assert Path("data/rows.jsonl").read_text() == "old"
    rename, renamed = Path.rename, []

    def after_flush(path, target):
        assert path.name == "data" or {part.stat().st_ino for part in path.rglob("*")} <= flushed
        renamed.append(target.name)
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", after_flush)
    make("data")
    assert renamed == [".data.previous", "data"]
    assert os.listdir() == ["data"]


def test_what_a_killed_writer_left_is_removed_or_restored():
    make("data", "old")
    Path(".data.partial").mkdir()
    Path("data").rename(".data.previous")  # killed between the two renames
    assert artifacts.read(Path("data"), "data").files["rows.jsonl"]["size"] == 3
    shutil.copytree("data", ".data.previous")  # killed after them
    make("data")
    assert os.listdir() == ["data"]
    Path(".data.previous").mkdir()  # it was removed in part
    shutil.rmtree("data")
    with pytest.raises(ArtifactError, match="does not exist"):
        artifacts.read(Path("data"), "data")


def test_a_file_is_replaced_and_not_written_through_its_links():
    Path("cache").write_text("old")
    Path("hard").hardlink_to("cache")
    Path("soft").symlink_to("cache")
    for name in ("hard", "soft", "new"):
        with artifacts.replacing(Path(name)) as partial:
            partial.write_text("new")
        with pytest.raises(TypeError), artifacts.replacing(Path(name)) as partial:
            partial.write_text(b"not text")
        assert Path(name).read_text() == "new"
    assert Path("cache").read_text() == "old"
    assert sorted(os.listdir()) == ["cache", "hard", "new", "soft"]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("rows.jsonl", None, "data/rows.jsonl is missing.*gen-data"),
        ("rows.jsonl", "ROWS", "data/rows.jsonl is damaged.*gen-data"),
        ("rows.jsonl", "longer", "data/rows.jsonl is damaged.*gen-data"),
        ("manifest.json", "{", "data/manifest.json is damaged"),
        ("manifest.json", None, "data has no manifest.json.*gen-data"),
        ("test.jsonl", "x", "data/test.jsonl is not in the manifest.*remove it"),
        ("", None, "data does not exist; `countdown-rl gen-data`"),
    ],
)
def test_damage_is_reported_with_the_command_that_makes_the_artifact(file, content, message):
    make("data")
    Path("data/.DS_Store").touch()  # hidden files may lie there
    artifacts.read(Path("data"), "data")
    target = Path("data", file)
    if content is None:
        target.rename("gone")
    else:
        target.write_text(content)
    with pytest.raises(ArtifactError, match=message):
        artifacts.read(Path("data"), "data")


@pytest.mark.parametrize(
    "name",
    ["/etc/x", "../x", "a/../../x", "a/..", "..", ".", "", "a//b", "./a", "a/", "a\\b", "a\0b"],
)
def test_a_manifest_that_names_a_file_outside_is_refused(name):
    manifest = json.loads(make("out").to_bytes())
    entry = {name: {"sha256": "0" * 64, "size": 0}}
    ancestor = {"kind": "merged", "name": "m", "digest": "0", "files": entry}
    for change in ({"files": entry}, {"lineage": [ancestor]}):
        with pytest.raises(ArtifactError, match="no file below it"):
            Manifest.parse(json.dumps(manifest | change), "manifest.json")


def test_an_artifact_of_another_kind_is_refused():
    make("data")
    with pytest.raises(ArtifactError, match=r"data .*not an eval artifact; `countdown-rl eval`"):
        artifacts.read(Path("data"), "eval")
    Path("other").mkdir()
    Path("other/manifest.json").write_text(json.dumps({"kind": "webapp"}))
    assert artifacts.peek(Path("data")) == "data"
    assert artifacts.peek(Path("other")) is artifacts.peek(Path("nowhere")) is None


def test_modes_are_those_of_the_umask_and_a_gitignore_file_survives():
    Path("out").mkdir()
    Path("out/.gitignore").touch(0o640)
    before = os.umask(0o027)
    try:
        with artifacts.writing(Path("out"), "data", options={}) as writer:
            (writer.path / "rows").touch(0o600)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in Path("out").iterdir()}
    assert modes == dict.fromkeys((".gitignore", "manifest.json", "rows"), 0o640)
    assert list(artifacts.read(Path("out"), "data").files) == ["rows"]


def test_a_link_stays_and_its_target_is_written():
    Path("disk").mkdir()
    Path("data").symlink_to("disk/data")
    for text in ("new", "newer"):
        make("disk/../data", text)
        assert Path("data").is_symlink()
        assert Path("disk/data/rows.jsonl").read_text() == text
    Path("disk/data").rename("disk/.data.previous")  # killed between the two renames
    artifacts.read(Path("data"), "data")
    Path("disk/data/rows.jsonl").rename("blob")  # as in a snapshot of the Hub
    Path("disk/data/rows.jsonl").symlink_to("../../blob")
    artifacts.read(Path("data"), "data")
    assert os.listdir("disk") == ["data"]


@pytest.mark.parametrize(
    ("out", "kind", "message"),
    [
        ("data", "eval", "holds a data artifact"),
        ("file", "data", "is a file"),
        ("folder", "data", "holds files that countdown-rl did not write"),
        ("..", "data", "the directory you are in"),
        ("volume", "data", "mount point"),
        ("file/data", "data", "cannot be written"),
    ],
)
def test_files_of_other_origin_are_not_overwritten(out, kind, message, monkeypatch):
    make("data")
    Path("file").write_text("mine")
    Path("folder").mkdir()
    Path("folder/thesis.txt").write_text("mine")
    monkeypatch.setattr("pathlib.Path.is_mount", lambda path: path.name == "volume")
    with pytest.raises(ArtifactError, match=f"^{out} .*{message}"):
        make(out, kind=kind)
    assert Path("folder/thesis.txt").read_text() == Path("file").read_text() == "mine"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/home/some one/base", "base"),
        ("../../home/someone/base", "base"),
        ("~/models/base", "base"),
        ("file:///srv/models/base", "base"),
        ("..", "elsewhere"),
        ("artifacts/base", "artifacts/base"),
        ("{{ a }}\n/think>/x", "{{ a }}\n/think>/x"),
    ],
)
def test_no_manifest_holds_a_local_path_of_its_own(path, name):
    source = {"digest": "0", "kind": "hub", "source": path}
    manifest = Manifest.of("data", {"from": [path]}, {"base": source})
    assert manifest.options == {"from": [name]}
    assert manifest.inputs["base"]["source"] == manifest.lineage[0].name == name


def test_an_output_that_another_process_writes_is_refused_until_that_process_ends():
    with locked_elsewhere("data"):
        Path(".data.partial").mkdir()
        for write in (lambda: make("data"), artifacts.replacing(Path("data")).__enter__):
            with pytest.raises(ArtifactError, match="written by another process"):
                write()
        assert Path(".data.partial").exists()
        Path(".data.previous").mkdir()  # between its two renames
        with pytest.raises(ArtifactError, match="does not exist"):
            artifacts.read(Path("data"), "data")
        Path(".data.previous").rmdir()
    make("data")
    assert os.listdir() == ["data"]


def test_a_lock_can_be_taken_again_by_its_holder_and_is_removed():
    with artifacts.locked(Path("runs/data"), Path("runs/checkpoints")):
        assert sorted(os.listdir("runs")) == [".checkpoints.lock", ".data.lock"]
        make("runs/data")
    assert os.listdir("runs") == ["data"]
