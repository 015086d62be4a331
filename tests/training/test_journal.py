"""The files of a journal: only those of such a run are replaced, and never through their links."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from countdown_rl.core.errors import ArtifactError
from countdown_rl.training import log
from countdown_rl.training.log import SftRow, StepRow

ROW = StepRow(1, 0.25, 0.5, 1.0, 40.5, 0.0, 1.0, None, None, 0.1, 1e-5, 2.5, 1.5, 0.01, 0.9)
SAMPLE = {"step": 1, "completion": "x", "correct": False, "reason": "no-answer"}
EVALUATED = {"completion": "x", "correct": False, "reason": "no-answer"}


def written(path: Path) -> None:
    """Write the files of a run with the log *path*."""
    record = log.Journal(path, 2)
    record.write()
    record.add_row(ROW)
    record.add_samples([SAMPLE])


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", ["log.csv", "trial.csv", "runs/log.csv"])
def test_the_log_of_such_a_run_is_replaced(name):
    log.check_log(Path(name), StepRow)
    written(Path(name))
    log.check_log(Path(name), StepRow)


@pytest.mark.parametrize(
    "content", [b"a,b\n1,2\n", b"thesis", b"\0\xff", b'{"nums": [3, 4]}\n', b"step,reward\n", b"x" * 200_000]
)
@pytest.mark.parametrize("kind", [StepRow, SftRow])
def test_a_file_that_is_no_log_is_refused(content, kind):
    Path("log.csv").write_bytes(content)
    with pytest.raises(ArtifactError, match="--log"):
        log.check_log(Path("log.csv"), kind)


def test_the_log_of_the_other_command_is_refused():
    written(Path("log.csv"))
    with pytest.raises(ArtifactError, match="--log"):
        log.check_log(Path("log.csv"), SftRow)


def test_an_empty_file_is_a_log():
    Path("log.csv").touch()
    log.check_log(Path("log.csv"), StepRow)


@pytest.mark.parametrize("text", [json.dumps(EVALUATED) + "\n", "mine", json.dumps([SAMPLE]) + "\n", "\x85"])
def test_samples_of_other_origin_are_not_replaced(text):
    log.write(Path("log.csv"), [ROW])
    Path("samples.jsonl").write_text(text)
    with pytest.raises(ArtifactError, match=r"samples\.jsonl"):
        log.check_log(Path("log.csv"), StepRow)
    Path("loss.csv").touch()
    log.check_log(Path("loss.csv"), StepRow)  # whose samples have another name


def test_samples_without_their_log_are_not_replaced():
    written(Path("log.csv"))
    Path("log.csv").unlink()
    with pytest.raises(ArtifactError, match="another run"):
        log.check_log(Path("log.csv"), StepRow)
    log.check_log(Path("log.csv"), StepRow, resumes=True)


def test_runs_with_logs_in_one_directory_keep_their_own_samples():
    for name in ("log.csv", "other.csv"):
        log.check_log(Path(name), StepRow)
        written(Path(name))
    assert log.read_samples(Path("samples.jsonl")) == log.read_samples(Path("other-samples.jsonl")) == [SAMPLE]


@pytest.mark.parametrize("path", ["folder", "fifo", "/dev/null"])
def test_what_is_no_ordinary_file_is_refused(path):
    Path("folder").mkdir()
    os.mkfifo("fifo")
    with pytest.raises(ArtifactError, match="ordinary"):
        log.check_log(Path(path), StepRow)


def test_links_to_the_files_of_an_earlier_run_keep_their_contents():
    written(Path("log.csv"))
    kept = {}
    for name in ("log.csv", "samples.jsonl"):
        Path(f"cache-{name}").hardlink_to(name)
        kept[name] = Path(name).read_bytes()
    record = log.Journal(Path("log.csv"), 2)
    record.write()
    record.add_row(replace(ROW, step=2))
    record.add_samples([SAMPLE, SAMPLE])
    for name, content in kept.items():
        assert Path(f"cache-{name}").read_bytes() == content != Path(name).read_bytes()
