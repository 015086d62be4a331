"""State of a run: only its own complete checkpoints are resumed, and its files never replace other files."""

import json
import shutil
from pathlib import Path

import pytest

from countdown_rl.core.errors import ArtifactError
from countdown_rl.core.identity import Identity
from countdown_rl.evaluation import training_log
from countdown_rl.evaluation.sample import Sample
from countdown_rl.evaluation.training_log import SftRow, StepRow
from countdown_rl.inference.engine import Completion
from countdown_rl.tasks.registry import parse_row
from countdown_rl.training.state import MARK, Checkpoints, Journal, check_log
from tests.support.runs import steps

pytestmark = pytest.mark.usefixtures("here")
ROW = steps(1)[0]
EVALUATED = Sample.of(parse_row({"nums": [1, 2], "target": 3}), Completion("x", 1, True)).to_json()
SAMPLE = {"step": 1} | EVALUATED


def identity(a):
    return Identity({"a": a}, {})


def started(directory, *steps):
    """The checkpoints of a run after *steps*, as they are before the older ones are removed."""
    store = Checkpoints(directory)
    store.start(identity(1))
    for step in steps:
        checkpoint = directory / f"checkpoint-{step}"
        checkpoint.mkdir()
        (checkpoint / MARK).touch()
    return store


def test_the_newest_complete_checkpoint_of_the_same_run_is_resumed(tmp_path):
    store = started(tmp_path / "c", 2, 10)
    assert store.to_resume(identity(1), 20) == tmp_path / "c" / "checkpoint-10"
    assert store.to_resume(identity(1), 9) == tmp_path / "c" / "checkpoint-2"
    (tmp_path / "c" / "checkpoint-10" / MARK).unlink()
    assert store.to_resume(identity(1), 20) == tmp_path / "c" / "checkpoint-2"
    with pytest.raises(ArtifactError, match="--a"):
        store.to_resume(identity(2), 20)


def test_a_checkpoint_is_on_disk_before_its_mark(tmp_path, flushed, monkeypatch):
    touch, marked = Path.touch, []

    def after_flush(path):
        assert {part.stat().st_ino for part in (path.parent, *path.parent.rglob("*"))} <= flushed
        flushed.clear()
        touch(path)
        marked.append(path)

    checkpoint = tmp_path / "checkpoint-2"
    checkpoint.mkdir()
    (checkpoint / "weights").write_text("1")
    monkeypatch.setattr(Path, "touch", after_flush)
    Checkpoints(tmp_path).complete(checkpoint, 1)
    assert {part.stat().st_ino for part in (checkpoint, *marked)} <= flushed


def test_marks_are_removed_before_the_checkpoints(tmp_path, monkeypatch):
    store = started(tmp_path / "c", 2, 10)
    store.best(4).mkdir()
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)  # killed before it removes any
    store.clear()
    assert store.newest() is None


@pytest.mark.parametrize("name", ["checkpoint-500", "best-3"])
def test_checkpoints_of_other_programs_are_refused(tmp_path, name):
    paths = tmp_path / "out", "adapter", tmp_path / "log.csv"
    Checkpoints(tmp_path).check_paths(*paths)
    (tmp_path / name).mkdir()
    with pytest.raises(ArtifactError, match="countdown-rl"):
        Checkpoints(tmp_path).check_paths(*paths)
    started(tmp_path / "c", 2).check_paths(*paths)


def test_directories_with_other_names_are_left_alone(tmp_path):
    store = started(tmp_path / "c", 2)
    others = ["best-model", "checkpoint-1-old", "checkpoint-final"]
    for name in others:
        (tmp_path / "c" / name).mkdir()
        (tmp_path / "c" / name / MARK).touch()
    assert store.newest() == tmp_path / "c" / "checkpoint-2"
    store.clear()
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == others


def written(path: Path) -> None:
    """Write the files of a run with the log *path*."""
    journal = Journal(path, 2)
    journal.write()
    journal.add_row(ROW)
    journal.add_samples([SAMPLE])


def test_the_log_of_an_earlier_run_is_replaced():
    log = Path("runs/log.csv")
    check_log(log, StepRow)
    written(log)
    check_log(log, StepRow)
    with pytest.raises(ArtifactError, match="--log"):
        check_log(log, SftRow)  # of the other command


@pytest.mark.parametrize(
    "content", [b"a,b\n1,2\n", b"\0\xff", b"step,reward\n1,2\n", b"x" * 200_000]
)
@pytest.mark.parametrize("kind", [StepRow, SftRow])
def test_a_file_that_is_no_log_is_refused(content, kind):
    Path("log.csv").write_bytes(content)
    with pytest.raises(ArtifactError, match="--log"):
        check_log(Path("log.csv"), kind)
    Path("log.csv").write_bytes(b"")
    check_log(Path("log.csv"), kind)


@pytest.mark.parametrize("text", [json.dumps(EVALUATED), "mine"])
def test_samples_of_other_origin_are_not_replaced(text):
    training_log.write(Path("log.csv"), [ROW])
    Path("samples.jsonl").write_text(text)
    with pytest.raises(ArtifactError, match=r"samples\.jsonl"):
        check_log(Path("log.csv"), StepRow)
    check_log(Path("loss.csv"), StepRow)  # whose samples have another name


def test_a_device_is_refused():
    with pytest.raises(ArtifactError, match="--log"):
        check_log(Path("/dev/null"), StepRow)


def test_links_to_the_files_of_an_earlier_run_keep_their_contents():
    written(Path("log.csv"))
    Path("cache").hardlink_to("samples.jsonl")
    before = Path("cache").read_bytes()
    written(Path("log.csv"))
    assert Path("cache").read_bytes() == before
