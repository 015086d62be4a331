"""Checkpoints: only complete ones of the same run are resumed, and only those of ``train`` are removed."""

import shutil

import pytest

from countdown_rl.core import artifacts
from countdown_rl.core.errors import ArtifactError, UsageError
from countdown_rl.training import checkpoints


def kept(directory, *steps):
    """The checkpoints of a run after *steps*, as they are before the older ones are removed."""
    store = checkpoints.Checkpoints(directory, {"a": 1})
    store.start()
    for step in steps:
        checkpoint = directory / f"checkpoint-{step}"
        checkpoint.mkdir()
        for name in ("optimizer.pt", "weights"):
            (checkpoint / name).write_text(f"{name} {step}")
        store.complete(checkpoint)
        shutil.copytree(checkpoint, directory / f"copy-{step}")
    for step in steps:
        shutil.rmtree(directory / f"checkpoint-{step}", ignore_errors=True)
        (directory / f"copy-{step}").rename(directory / f"checkpoint-{step}")
    return store


def test_an_incomplete_checkpoint_is_not_resumed(tmp_path):
    store = checkpoints.Checkpoints(tmp_path / "c", {"a": 1})
    store.start()
    for step in (2, 4):
        (tmp_path / "c" / f"checkpoint-{step}").mkdir()
        (tmp_path / "c" / f"checkpoint-{step}" / "weights").write_text("x")
    assert store.to_resume() is None
    store.complete(tmp_path / "c" / "checkpoint-2")
    assert store.to_resume() == tmp_path / "c" / "checkpoint-2"
    (tmp_path / "c" / "checkpoint-4").mkdir()
    assert store.to_resume() == tmp_path / "c" / "checkpoint-2"
    other = checkpoints.Checkpoints(tmp_path / "c", {"a": 2})
    with pytest.raises(ArtifactError, match="it cannot be read"):
        other.to_resume()


def test_many_differences_are_counted(tmp_path):
    options = dict.fromkeys("abcde", 1)
    store = checkpoints.Checkpoints(tmp_path / "c", {"options": options})
    store.start()
    (tmp_path / "c" / "checkpoint-2").mkdir()
    store.complete(tmp_path / "c" / "checkpoint-2")
    other = checkpoints.Checkpoints(tmp_path / "c", {"options": dict.fromkeys("abcde", 2)})
    with pytest.raises(ArtifactError, match="--a was 1, is 2; --b was 1, is 2; --c was 1, is 2; 2 more"):
        other.to_resume()


def test_the_newest_complete_checkpoint_is_resumed(tmp_path):
    store = kept(tmp_path / "c", 2, 10)
    assert store.to_resume() == tmp_path / "c" / "checkpoint-10"
    (tmp_path / "c" / "checkpoint-10" / checkpoints.MARK).unlink()
    assert store.to_resume() == tmp_path / "c" / "checkpoint-2"


@pytest.mark.parametrize("remove", [lambda store: store.clear(), lambda store: store.complete(store.best(4))])
def test_marks_are_removed_before_the_checkpoints(tmp_path, monkeypatch, remove):
    store = kept(tmp_path / "c", 2, 10)
    store.best(4).mkdir()
    monkeypatch.setattr(checkpoints.shutil, "rmtree", lambda *_, **__: None)  # killed before it removes anything
    remove(store)
    assert store.newest() is None


@pytest.mark.parametrize("left", ["marks", "directories", "nothing"])
def test_what_a_killed_run_left_of_its_checkpoints_is_cleared(tmp_path, left):
    store = kept(tmp_path / "c", 2, 10)
    for path in (tmp_path / "c").glob("checkpoint-*"):
        if left != "marks":
            (path / checkpoints.MARK).unlink()
        if left == "nothing":
            shutil.rmtree(path)
    checkpoints.Checkpoints(tmp_path / "c", {"a": 2}).clear_own()
    assert (tmp_path / "c" / checkpoints.RUN).exists()
    store.clear_own()
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("name", ["c", "c/run.json"])
def test_the_log_is_no_path_of_the_checkpoints(tmp_path, name):
    with pytest.raises(UsageError, match="--log"):
        checkpoints.Checkpoints(tmp_path / "c", {}).check_paths(tmp_path / "out", "adapter", tmp_path / name)


@pytest.mark.parametrize(("log", "kept"), [("data/log.csv", "c"), ("log.csv", "data/c")])
def test_a_run_writes_nothing_into_an_artifact(tmp_path, log, kept):
    with artifacts.writing(tmp_path / "data", "data", options={}):
        pass
    with pytest.raises(ArtifactError, match="lies in"):
        checkpoints.Checkpoints(tmp_path / kept, {}).check_paths(tmp_path / "out", "adapter", tmp_path / log)


@pytest.mark.parametrize(("log", "kept"), [("file/log.csv", "c"), ("log.csv", "file/c"), ("log.csv", "file")])
def test_paths_through_a_file_are_refused_before_the_work(tmp_path, log, kept):
    (tmp_path / "file").touch()
    with pytest.raises(ArtifactError, match=r"cannot be written|no directory"):
        checkpoints.Checkpoints(tmp_path / kept, {}).check_paths(tmp_path / "out", "adapter", tmp_path / log)


@pytest.mark.parametrize("name", ["checkpoint-500", "best-3"])
def test_checkpoints_of_other_programs_are_refused(tmp_path, name):
    store = checkpoints.Checkpoints(tmp_path, {"a": 1})
    store.check_paths(tmp_path / "out", "adapter", None)
    (tmp_path / name).mkdir()
    with pytest.raises(ArtifactError, match=name):
        store.check_paths(tmp_path / "out", "adapter", None)
    kept(tmp_path / "c", 2).check_paths(tmp_path / "out", "adapter", None)


def test_directories_with_other_names_are_left_alone(tmp_path):
    store = kept(tmp_path / "c", 2)
    for name in ("checkpoint-final", "best-model", "checkpoint-1-old"):
        (tmp_path / "c" / name).mkdir()
        (tmp_path / "c" / name / checkpoints.MARK).write_text("{}")
    assert store.newest() == tmp_path / "c" / "checkpoint-2"
    store.clear()
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == [
        "best-model",
        "checkpoint-1-old",
        "checkpoint-final",
    ]
