"""Checkpoints: only complete ones of the same run are resumed."""

import pytest

from countdown_rl.errors import ArtifactError
from countdown_rl.training import checkpoints


def test_an_incomplete_checkpoint_is_not_resumed(tmp_path):
    store = checkpoints.Checkpoints(tmp_path / "c", {"a": 1})
    store.begin()
    for step in (2, 4):
        (tmp_path / "c" / f"checkpoint-{step}").mkdir()
        (tmp_path / "c" / f"checkpoint-{step}" / "weights").write_text("x")
    assert store.latest() is None
    store.keep(tmp_path / "c" / "checkpoint-2")
    assert store.latest() == tmp_path / "c" / "checkpoint-2"
    (tmp_path / "c" / "checkpoint-4").mkdir()
    assert store.latest() == tmp_path / "c" / "checkpoint-2"
    other = checkpoints.Checkpoints(tmp_path / "c", {"a": 2})
    assert other.differences() == ["it cannot be read"]
    assert other.latest() is None


def test_many_differences_are_counted(tmp_path):
    options = dict.fromkeys("abcde", 1)
    store = checkpoints.Checkpoints(tmp_path / "c", {"options": options})
    store.begin()
    (tmp_path / "c" / "checkpoint-2").mkdir()
    store.keep(tmp_path / "c" / "checkpoint-2")
    other = checkpoints.Checkpoints(tmp_path / "c", {"options": dict.fromkeys("abcde", 2)})
    assert other.differences() == ["--a was 1, is 2", "--b was 1, is 2", "--c was 1, is 2", "2 more"]


@pytest.mark.parametrize("name", ["optimizer.pt", "added.pt"])
def test_a_checkpoint_with_a_file_that_the_run_did_not_write_is_refused(tmp_path, name):
    store = checkpoints.Checkpoints(tmp_path / "c", {"a": 1})
    store.begin()
    (tmp_path / "c" / "checkpoint-2").mkdir()
    (tmp_path / "c" / "checkpoint-2" / "optimizer.pt").write_bytes(b"pickle")
    store.keep(tmp_path / "c" / "checkpoint-2")
    (tmp_path / "c" / "checkpoint-2" / name).write_bytes(b"other")
    with pytest.raises(ArtifactError, match=name):
        store.latest()
