"""Training log: read back as written, and thinned to means."""

import math
from dataclasses import replace
from typing import ClassVar

import pytest

from countdown_rl.core.errors import InputError
from countdown_rl.tasks.registry import parse_row
from countdown_rl.training import log


def test_a_log_is_read_back_as_written(tmp_path):
    row = log.StepRow(3, 0.25, 0.5, 1.0, 40.5, 0.0, 1 / 3, None, None, 0.1, 1e-5, 2.5, 1.5, 0.01, 0.9)
    groups = {"correct_needs_mul-div": None, "correct_numbers_3": 0.5}
    rows = [row, replace(row, step=4, seconds_rest=0.25, groups=groups)]
    log.write(tmp_path / "log.csv", rows)
    assert log.read(tmp_path / "log.csv") == [replace(row, groups=dict.fromkeys(groups)), rows[1]]
    (tmp_path / "log.csv").write_text("step,reward\n1,2\n")
    with pytest.raises(InputError):
        log.read(tmp_path / "log.csv")


def test_a_logged_row_is_the_mean_of_its_steps():
    first = log.StepRow(1, 0.0, 0, 0, 10, 0, 1, None, None, 0, 1e-4, 1, 1, 0, 0)
    second = replace(first, step=2, reward=1.0, entropy=0.5, groups={"correct_numbers_3": 0.25})
    both = log.mean([first, second])
    assert both.groups == {"correct_numbers_3": 0.25}
    assert (both.step, both.reward, both.entropy, both.kl) == (2, 0.5, 0.5, None)
    assert math.isclose(both.mean_length, 10)


@pytest.mark.parametrize("change", [lambda text: text + text.splitlines()[-1], lambda text: text[:-8]])
def test_a_log_with_a_step_twice_or_a_row_cut_off_is_refused(tmp_path, change):
    log.write(tmp_path / "log.csv", [log.StepRow(n, 0.2, 0, 0, 10, 0, 1, None, 0, 0, 1e-4, 1, 1, 0, 0) for n in (1, 2)])
    (tmp_path / "log.csv").write_text(change((tmp_path / "log.csv").read_text()))
    with pytest.raises(InputError, match="not a row"):
        log.read(tmp_path / "log.csv")


def test_rows_count_in_the_columns_of_the_main_groups_of_their_task():
    puzzle = parse_row({"nums": [1, 2, 3], "target": 7, "needs": "mul-div", "solutions": 1})
    assert log.group_columns(puzzle) == ("correct_numbers_3", "correct_needs_mul-div")
    assert log.group_columns(parse_row({"task": "gsm8k", "question": "?", "gold": "7"})) == ()


def test_the_value_of_a_group_becomes_a_name_of_a_column(tmp_path):
    row = log.StepRow(1, 0.0, 0, 0, 10, 0, 1, None, None, 0, 1e-4, 1, 1, 0, 0)

    class WordRow(type(parse_row({"nums": [1], "target": 1}))):
        groups: ClassVar = {"numbers": "one, two"}

    (column,) = log.group_columns(WordRow({"nums": [1], "target": 1}))
    log.write(tmp_path / "log.csv", [replace(row, groups={column: 0.5})])
    assert log.read(tmp_path / "log.csv")[0].groups == {"correct_numbers_one-two": 0.5}
