"""Log of a run: read back as written, thinned to means."""

from dataclasses import replace
from pathlib import Path

import pytest

from countdown_rl.core.errors import InputError
from countdown_rl.core.manifest import ProvenanceEntry
from countdown_rl.evaluation import training_log
from countdown_rl.evaluation.training_log import StepRow
from countdown_rl.tasks.registry import parse_row

pytestmark = pytest.mark.usefixtures("here")
ROW = StepRow(1, 0.25, 0.5, 1.0, 40.5, 0.0, 1 / 3, None, None, 0.1, 1e-5, 2.5, 1.5, 0.01, 0.9)


def test_a_log_is_read_back_as_written():
    groups = {"correct_needs_mul-div": None, "correct_numbers_3": 0.5, "rewards/my:short/mean": 2.5}
    rows = [ROW, replace(ROW, step=4, seconds_rest=0.25, groups=groups)]
    training_log.write(Path("log.csv"), rows)
    first, second = training_log.read(Path("log.csv"))
    assert (first, second) == (replace(ROW, groups=dict.fromkeys(groups)), rows[1])


def test_a_thinned_row_is_the_mean_of_its_steps():
    second = replace(ROW, step=2, reward=1.0, entropy=0.5, groups={"correct_numbers_3": 0.25})
    (both,) = training_log.thinned([ROW, second], 2)
    assert both.groups == {"correct_numbers_3": 0.25}
    assert (both.step, both.reward, both.entropy, both.kl) == (2, 0.625, 0.5, None)


@pytest.mark.parametrize(
    ("changes", "own"),
    [
        ({}, True),
        ({"seconds": 9.0, "seconds_rest": 1.0}, True),
        ({"eval_kl": 0.5}, False),
        ({"groups": {"correct_numbers_3": 0.25}}, False),
        ({"step": 3}, False),
    ],
)
def test_the_log_of_a_run_is_recognized_by_all_that_is_not_time(changes, own):
    rows = [replace(ROW, draws=2), replace(ROW, step=2, groups={"correct_numbers_3": 0.5})]
    facts = {"method": "grpo", "log_digest": training_log.digest(rows)}
    training_log.write(Path("log.csv"), [rows[0], replace(rows[1], **changes)])
    links = [ProvenanceEntry("adapter", "adapter", "0", facts=facts)]
    assert training_log.is_log_of(Path("log.csv"), links) == own


def test_a_log_with_a_row_cut_off_is_refused():
    training_log.write(Path("log.csv"), [ROW, replace(ROW, step=2)])
    Path("log.csv").write_text(Path("log.csv").read_text()[:-8])
    with pytest.raises(InputError, match="not a training log"):
        training_log.read(Path("log.csv"))


def test_rows_count_in_the_columns_of_the_main_breakdowns_of_their_task():
    puzzle = parse_row({"nums": [1, 2, 3], "target": 7, "needs": "mul-div", "solutions": 1})
    assert training_log.group_columns(puzzle) == ("correct_numbers_3", "correct_needs_mul-div")


def test_the_value_of_a_breakdown_becomes_a_name_of_a_column():
    columns = training_log.group_columns(parse_row({"nums": [1], "target": 1, "tier": "one, two"}))
    assert columns == ("correct_tier_one-two",)
