"""Artifact directories: whole or absent, checked when they are read, the same bytes from the same inputs."""

import json
import os
import shutil
from functools import partial
from pathlib import Path

import pytest

from countdown_rl.core import artifacts
from countdown_rl.core.errors import ArtifactError
from countdown_rl.core.manifest import (
    PRETRAINED_BY,
    Manifest,
    ProvenanceEntry,
    file_entry,
    initial_model,
    lineage,
    provenance_chain,
)
from tests.support.runs import locked_elsewhere

pytestmark = pytest.mark.usefixtures("here")


def make(out: Path, text: str = "rows", kind: str = "data", **inputs) -> Manifest:
    with artifacts.writing(out, kind, options={"n": 1}, **inputs) as writer:
        (writer.path / "rows.jsonl").write_text(text)
        writer.facts["rows"] = 1
    return artifacts.read(out, kind)


@pytest.mark.parametrize(
    ("inputs", "facts", "expected"),
    [
        ({}, {}, PRETRAINED_BY),
        ({}, {"command": "python -m recipe"}, "python -m recipe"),
        (
            {"model": {"digest": "base"}},
            {"command": "countdown-rl sft"},
            "countdown-rl sft",
        ),
        ({"model": {"digest": "base"}}, {}, "countdown-rl sft"),
    ],
)
def test_a_model_is_pretrained_if_it_has_no_base(inputs, facts, expected):
    link = provenance_chain(Manifest.of("model", {}, inputs, facts=facts).as_input())[-1]
    assert link.command == expected


def test_an_artifact_is_read_back_with_its_files_facts_and_inputs():
    data = make(Path("data"))
    assert (data.kind, data.options, data.facts) == ("data", {"n": 1}, {"rows": 1})
    assert data.files == {"rows.jsonl": file_entry(Path("data/rows.jsonl"))}
    assert (
        make(Path("deep/second")).to_bytes()
        == data.to_bytes()
        == Path("data/manifest.json").read_bytes()
    )
    manifest = make(Path("eval"), kind="eval", inputs={"data": data.as_input()})
    assert manifest.inputs["data"]["digest"] == data.digest
    assert manifest.inputs == {"data": {"digest": data.digest, "kind": "data"}}
    assert manifest.entry("data") == data.as_input()


def test_the_lineage_has_each_ancestor_once_in_the_order_of_their_making():
    data = make(Path("data")).as_input()
    hub = {"digest": "h", "kind": "hub", "source": "me/base", "revision": "h"}
    start = make(Path("start"), kind="model", inputs={"model": hub, "data": data}).as_input()
    inputs = {"model": start | {"source": "start"}, "data": data}
    adapter = make(Path("adapter"), kind="adapter", inputs=inputs)
    assert [entry.name for entry in adapter.lineage] == ["data", "me/base", "start"]
    merged = make(Path("merged"), kind="merged", inputs={"adapter": adapter.as_input()})
    chain = provenance_chain(merged.as_input())
    assert [entry.kind for entry in chain] == ["data", "hub", "model", "adapter", "merged"]
    assert lineage(chain) == {"h", start["digest"], adapter.digest}
    assert initial_model(chain).name == "me/base"
    assert Manifest.parse(merged.to_bytes(), "m") == merged
    assert provenance_chain(merged.entry("adapter")) == chain[:-1]


def test_the_version_stands_in_the_manifest_and_changes_no_digest(monkeypatch):
    digests, versions = set(), []
    for version in ("1", "2"):
        monkeypatch.setattr(artifacts, "version", lambda version=version: version)
        manifest = make(Path("data"))
        digests.add(manifest.digest)
        versions.append(manifest.version)
        make(
            Path("eval"), kind="eval", inputs={"data": manifest.as_input()}
        )  # which reads the chain
    assert (len(digests), versions) == (1, ["1", "2"])


def test_a_failed_run_keeps_the_previous_artifact_and_leaves_no_other_files():
    make(Path("data"), "old")
    with pytest.raises(TypeError):
        make(Path("data"), text=b"not text")
    assert Path("data/rows.jsonl").read_text() == "old"
    assert os.listdir() == ["data"]


def test_an_artifact_is_on_disk_before_it_has_its_name(flushed, monkeypatch):
    rename, renamed = Path.rename, []

    def after_flush(path, target):
        assert {part.stat().st_ino for part in (path, *path.rglob("*"))} <= flushed
        renamed.append(target)
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", after_flush)
    with artifacts.writing(Path("data"), "data", options={}) as draft:
        (draft.path / "inner").mkdir()
        (draft.path / "inner" / "train.jsonl").write_text("{}")
    assert renamed == [Path("data").resolve()]


def test_what_a_killed_writer_left_is_removed_or_restored():
    make(Path("data"), "old")
    Path(".data.partial").mkdir()
    Path("data").rename(".data.previous")  # killed between the two renames
    assert artifacts.read(Path("data"), "data").files["rows.jsonl"]["size"] == 3
    shutil.copytree("data", ".data.previous")  # killed after them
    make(Path("data"))
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
    ("damage", "message"),
    [
        (lambda: Path("data/rows.jsonl").unlink(), "data/rows.jsonl is missing.*gen-data"),
        *(
            (partial(Path("data/rows.jsonl").write_text, s), "rows.jsonl is damaged.*gen-data")
            for s in ("ROWS", "longer")
        ),
        (lambda: Path("data/manifest.json").write_text("{"), "data/manifest.json is damaged"),
        (lambda: Path("data/manifest.json").unlink(), "data has no manifest.json.*gen-data"),
        (
            lambda: Path("data/test.jsonl").write_text("x"),
            "data/test.jsonl is not in the manifest.*remove it",
        ),
        (
            lambda: Path("data").rename("gone"),
            "data does not exist; `countdown-rl gen-data` makes it",
        ),
    ],
)
def test_damage_is_reported_with_the_command_that_makes_the_artifact(damage, message):
    make(Path("data"))
    Path("data/.DS_Store").touch()  # hidden files may lie there
    artifacts.read(Path("data"), "data")
    damage()
    with pytest.raises(ArtifactError, match=message):
        artifacts.read(Path("data"), "data")


OUTSIDE = [
    "/etc/x",
    "../x",
    "a/../../x",
    "a/..",
    "..",
    ".",
    "",
    "a//b",
    "./a",
    "a/",
    "a\\b",
    "..\\x",
    "C:x",
    "C:/x",
]


@pytest.mark.parametrize("name", [*OUTSIDE, "a\0b", "a\nb"])
def test_a_manifest_that_names_a_file_outside_is_refused(name):
    manifest = make(Path("out"))
    entry = {name: {"sha256": "0" * 64, "size": 0}}
    outer, inner = json.loads(manifest.to_bytes()), json.loads(manifest.to_bytes())
    outer["files"] |= entry
    inner["lineage"] = [{"kind": "merged", "name": "m", "digest": "0", "files": entry}]
    for content in (outer, inner):
        with pytest.raises(ArtifactError, match="no file below it"):
            Manifest.parse(json.dumps(content).encode(), "manifest.json")


def test_the_links_of_a_downloaded_snapshot_are_read():
    make(Path("cache/snapshots/abc"))
    Path("cache/blobs").mkdir()
    Path("cache/snapshots/abc/rows.jsonl").rename("cache/blobs/1")
    Path("cache/snapshots/abc/rows.jsonl").symlink_to("../../blobs/1")
    assert artifacts.read(Path("cache/snapshots/abc"), "data").kind == "data"


def test_an_artifact_of_another_kind_is_refused():
    make(Path("data"))
    with pytest.raises(
        ArtifactError, match="data is a data artifact, not an eval artifact; `countdown-rl eval`"
    ):
        artifacts.read(Path("data"), "eval")
    Path("other").mkdir()
    Path("other/manifest.json").write_text(json.dumps({"kind": "webapp"}))
    assert [artifacts.peek(Path(name)) for name in ("data", "other", "nowhere")] == [
        "data",
        None,
        None,
    ]


def test_an_artifact_can_be_read_by_those_whom_the_umask_lets():
    before = os.umask(0o027)
    try:
        with artifacts.writing(Path("out"), "data", options={}) as writer:
            (writer.path / "rows").touch(0o600)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in Path("out").iterdir()} == {0o640}
    assert Path("out").stat().st_mode & 0o777 == 0o750


def test_a_gitignore_file_survives_writing_the_artifact():
    Path("data").mkdir()
    Path("data/.gitignore").write_text("/a.txt\n")
    assert ".gitignore" not in make(Path("data")).files | make(Path("data")).files
    assert Path("data/.gitignore").read_text() == "/a.txt\n"


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_stays_and_its_target_is_written(exists):
    Path("disk").mkdir()
    if exists:
        make(Path("disk/data"), "old")
    Path("data").symlink_to("disk/data")
    for text in ("new", "newer"):
        make(Path("disk/../data"), text)
        assert Path("data").is_symlink()
        assert Path("disk/data/rows.jsonl").read_text() == text
    Path("disk/data").rename("disk/.data.previous")  # killed between the two renames
    artifacts.read(Path("data"), "data")
    assert (sorted(os.listdir()), os.listdir("disk")) == (["data", "disk"], ["data"])


def test_files_of_other_origin_are_not_overwritten(monkeypatch):
    make(Path("data"))
    Path("file").write_text("mine")
    for folder in ("folder", "here", "volume"):
        Path(folder).mkdir()
    Path("folder/thesis.txt").write_text("mine")
    Path("link").symlink_to("data")
    monkeypatch.setattr("pathlib.Path.is_mount", lambda path: path.name == "volume")
    for out, kind, message in (
        ("data", "eval", "data holds a data artifact"),
        ("file", "data", "file is a file"),
        ("folder", "data", "folder holds files that countdown-rl did not write"),
        (".", "data", "the directory you are in"),
        ("..", "data", "the directory you are in"),
        ("volume", "data", "mount point"),
        ("file/data", "data", "file/data cannot be written"),
        *((f"/proc/{name}", "data", f"/proc/{name} cannot be written") for name in ("x", "x/y")),
    ):
        with pytest.raises(ArtifactError, match=message):
            make(Path(out), kind=kind)
    assert Path("folder/thesis.txt").read_text() == Path("file").read_text() == "mine"
    assert make(Path("here")).facts == {"rows": 1}


@pytest.mark.parametrize(
    ("path", "name"),
    [
        *(
            (f"{place}/base", "base")
            for place in ("/home/some one", "../../home/someone", "~/models", "file:///srv/models")
        ),
        *(("artifacts/../../x", "x"), ("..", "elsewhere")),
        *(
            (kept, kept)
            for kept in ("/+-", "artifacts/base", "Qwen/Qwen3-0.6B", "{{ a }}\n/think>/x/y")
        ),
    ],
)
def test_no_manifest_holds_a_local_path_of_its_own(path, name):
    inputs = {"from": {"source": path}, "base": {"digest": "0", "kind": "hub", "source": path}}
    with artifacts.writing(Path("data"), "data", options={"from": [path]}, inputs=inputs) as writer:
        writer.facts["path"] = path
    manifest = artifacts.read(Path("data"), "data")
    assert (manifest.options, manifest.facts) == ({"from": [name]}, {"path": name})
    assert manifest.inputs["from"] == {"source": name}
    assert [entry.name for entry in manifest.lineage] == [name]


def test_an_output_that_another_process_writes_is_refused_until_that_process_ends():
    with locked_elsewhere("data"):
        Path(".data.partial").mkdir()
        with pytest.raises(ArtifactError, match="written by another process"):
            make(Path("data"))
        with (
            pytest.raises(ArtifactError, match="written by another process"),
            artifacts.replacing(Path("data")),
        ):
            pass
        assert Path(".data.partial").exists()
        Path(".data.previous").mkdir()  # between its two renames
        with pytest.raises(ArtifactError, match="does not exist"):
            artifacts.read(Path("data"), "data")
        Path(".data.previous").rmdir()
    make(Path("data"))
    assert os.listdir() == ["data"]


def test_a_lock_can_be_taken_again_by_its_holder_and_is_removed():
    with artifacts.locked(Path("runs/data"), Path("runs/checkpoints")):
        assert sorted(os.listdir("runs")) == [".checkpoints.lock", ".data.lock"]
        make(Path("runs/data"))
    assert os.listdir("runs") == ["data"]


def test_a_node_of_the_chain_knows_its_command_and_a_chain_without_a_model_has_no_origin():
    commands = {
        kind: ProvenanceEntry(kind, "n", "d").command for kind in ("adapter", "data", "hub")
    }
    assert commands == {"adapter": "countdown-rl train", "data": "countdown-rl gen-data", "hub": ""}
    tuned = ProvenanceEntry("adapter", "n", "d", facts={"command": "countdown-rl sft"})
    assert (tuned.command, tuned.by_grpo) == ("countdown-rl sft", False)
    with pytest.raises(ArtifactError, match="merged"):
        initial_model(provenance_chain(Manifest("merged", {}).as_input()))
