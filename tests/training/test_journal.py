"""Journal of a run: its files never replace other files."""

import json
from pathlib import Path

import pytest

from countdown_rl.core.errors import ArtifactError
from countdown_rl.evaluation import training_log
from countdown_rl.evaluation.training_log import SftRow, StepRow
from countdown_rl.training.journal import Journal, check_log
from tests.support.runs import steps

ROW = steps(1)[0]
SAMPLE = {"step": 1, "completion": "x", "correct": False, "reason": "no-answer"}
EVALUATED = {"completion": "x", "correct": False, "reason": "no-answer"}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def written(path: Path) -> None:
    """Write the files of a run with the log *path*."""
    journal = Journal(path, 2)
    journal.write()
    journal.add_row(ROW)
    journal.add_samples([SAMPLE])


@pytest.mark.parametrize("name", ["log.csv", "trial.csv", "runs/log.csv"])
def test_the_log_of_an_earlier_run_is_replaced(name):
    check_log(Path(name), StepRow)
    written(Path(name))
    check_log(Path(name), StepRow)
    with pytest.raises(ArtifactError, match="--log"):
        check_log(Path(name), SftRow)  # of the other command


@pytest.mark.parametrize(
    "content", [b"a,b\n1,2\n", b"thesis", b"\0\xff", b'{"nums": [3, 4]}\n', b"step,reward\n1,2\n", b"x" * 200_000]
)
@pytest.mark.parametrize("kind", [StepRow, SftRow])
def test_a_file_that_is_no_log_is_refused(content, kind):
    Path("log.csv").write_bytes(content)
    with pytest.raises(ArtifactError, match="--log"):
        check_log(Path("log.csv"), kind)
    Path("log.csv").write_bytes(b"")
    check_log(Path("log.csv"), kind)


@pytest.mark.parametrize("text", [json.dumps(EVALUATED) + "\n", "mine", json.dumps([SAMPLE]) + "\n", "\x85"])
def test_samples_of_other_origin_are_not_replaced(text):
    training_log.write(Path("log.csv"), [ROW])
    Path("samples.jsonl").write_text(text)
    with pytest.raises(ArtifactError, match=r"samples\.jsonl"):
        check_log(Path("log.csv"), StepRow)
    check_log(Path("loss.csv"), StepRow)  # whose samples have another name


def test_a_directory_or_device_is_refused():
    Path("folder").mkdir()
    for path in ("folder", "/dev/null"):
        with pytest.raises(ArtifactError, match="--log"):
            check_log(Path(path), StepRow)


def test_links_to_the_files_of_an_earlier_run_keep_their_contents():
    written(Path("log.csv"))
    before = {}
    for name in ("log.csv", "samples.jsonl"):
        Path(f"cache-{name}").hardlink_to(name)
        before[name] = Path(name).read_bytes()
    written(Path("log.csv"))
    Journal(Path("log.csv"), 2).add_samples([SAMPLE])
    for name, content in before.items():
        assert Path(f"cache-{name}").read_bytes() == content
