"""Log of a run: read back as written, thinned to means, and never in place of other files."""

import json
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from countdown_rl.core.errors import ArtifactError, InputError
from countdown_rl.tasks.registry import parse_row
from countdown_rl.training import log
from countdown_rl.training.log import SftRow, StepRow

ROW = StepRow(1, 0.25, 0.5, 1.0, 40.5, 0.0, 1 / 3, None, None, 0.1, 1e-5, 2.5, 1.5, 0.01, 0.9)
SAMPLE = {"step": 1, "completion": "x", "correct": False, "reason": "no-answer"}
EVALUATED = {"completion": "x", "correct": False, "reason": "no-answer"}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def written(path: Path) -> None:
    """Write the files of a run with the log *path*."""
    journal = log.Journal(path, 2)
    journal.write()
    journal.add_row(ROW)
    journal.add_samples([SAMPLE])


def test_a_log_is_read_back_as_written():
    groups = {"correct_needs_mul-div": None, "correct_numbers_3": 0.5}
    rows = [ROW, replace(ROW, step=4, seconds_rest=0.25, groups=groups)]
    log.write(Path("log.csv"), rows)
    assert log.read(Path("log.csv")) == [replace(ROW, groups=dict.fromkeys(groups)), rows[1]]


def test_a_thinned_row_is_the_mean_of_its_steps():
    second = replace(ROW, step=2, reward=1.0, entropy=0.5, groups={"correct_numbers_3": 0.25})
    (both,) = log.thinned([ROW, second], 2)
    assert both.groups == {"correct_numbers_3": 0.25}
    assert (both.step, both.reward, both.entropy, both.kl) == (2, 0.625, 0.5, None)


def test_a_log_with_a_row_cut_off_is_refused():
    log.write(Path("log.csv"), [ROW, replace(ROW, step=2)])
    Path("log.csv").write_text(Path("log.csv").read_text()[:-8])
    with pytest.raises(InputError, match="not a training log"):
        log.read(Path("log.csv"))


def test_rows_count_in_the_columns_of_the_main_groups_of_their_task():
    puzzle = parse_row({"nums": [1, 2, 3], "target": 7, "needs": "mul-div", "solutions": 1})
    assert log.group_columns(puzzle) == ("correct_numbers_3", "correct_needs_mul-div")
    assert log.group_columns(parse_row({"task": "gsm8k", "question": "?", "gold": "7"})) == ()


def test_the_value_of_a_group_becomes_a_name_of_a_column():
    class WordRow(type(parse_row({"nums": [1], "target": 1}))):
        groups: ClassVar = {"numbers": "one, two"}

    (column,) = log.group_columns(WordRow({"nums": [1], "target": 1}))
    log.write(Path("log.csv"), [replace(ROW, groups={column: 0.5})])
    assert log.read(Path("log.csv"))[0].groups == {"correct_numbers_one-two": 0.5}


@pytest.mark.parametrize("name", ["log.csv", "trial.csv", "runs/log.csv"])
def test_the_log_of_an_earlier_run_is_replaced(name):
    log.check_log(Path(name), StepRow)
    written(Path(name))
    log.check_log(Path(name), StepRow)
    with pytest.raises(ArtifactError, match="--log"):
        log.check_log(Path(name), SftRow)  # of the other command


@pytest.mark.parametrize(
    "content", [b"a,b\n1,2\n", b"thesis", b"\0\xff", b'{"nums": [3, 4]}\n', b"step,reward\n1,2\n", b"x" * 200_000]
)
@pytest.mark.parametrize("kind", [StepRow, SftRow])
def test_a_file_that_is_no_log_is_refused(content, kind):
    Path("log.csv").write_bytes(content)
    with pytest.raises(ArtifactError, match="--log"):
        log.check_log(Path("log.csv"), kind)
    Path("log.csv").write_bytes(b"")
    log.check_log(Path("log.csv"), kind)


@pytest.mark.parametrize("text", [json.dumps(EVALUATED) + "\n", "mine", json.dumps([SAMPLE]) + "\n", "\x85"])
def test_samples_of_other_origin_are_not_replaced(text):
    log.write(Path("log.csv"), [ROW])
    Path("samples.jsonl").write_text(text)
    with pytest.raises(ArtifactError, match=r"samples\.jsonl"):
        log.check_log(Path("log.csv"), StepRow)
    log.check_log(Path("loss.csv"), StepRow)  # whose samples have another name


def test_a_directory_or_device_is_refused():
    Path("folder").mkdir()
    for path in ("folder", "/dev/null"):
        with pytest.raises(ArtifactError, match="--log"):
            log.check_log(Path(path), StepRow)


def test_links_to_the_files_of_an_earlier_run_keep_their_contents():
    written(Path("log.csv"))
    before = {}
    for name in ("log.csv", "samples.jsonl"):
        Path(f"cache-{name}").hardlink_to(name)
        before[name] = Path(name).read_bytes()
    written(Path("log.csv"))
    log.Journal(Path("log.csv"), 2).add_samples([SAMPLE])
    for name, content in before.items():
        assert Path(f"cache-{name}").read_bytes() == content
