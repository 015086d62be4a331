"""Completions of a training run, read at the prompt."""

import json

import pytest
from typer.testing import CliRunner

from countdown_rl.cli.main import app
from countdown_rl.tasks import jsonl


def sample(step, reason="", completion="3 + 4</think>\n<answer>3 + 4</answer>"):
    about = {"step": step, "nums": [3, 4], "target": 7, "completion": completion, "correct": not reason}
    return about | {"reason": reason, "answer": "3 + 4", "value": "7", "tokens": 9}


@pytest.fixture
def run(tmp_path):
    rows = [sample(1, "no-answer"), sample(1), sample(11, "wrong-value"), sample(21), sample(31, "no-answer")]
    jsonl.write_rows(tmp_path / "samples.jsonl", rows)
    (tmp_path / "log.csv").write_text("")
    return tmp_path


def shown(*words):
    done = CliRunner().invoke(app, ["samples", *map(str, words), "--json"])
    assert done.exit_code == 0, done.output
    return [one["step"] for one in json.loads(done.stdout)["samples"]]


def test_samples_are_filtered_by_step_grade_and_reason(run):
    assert shown(run, "--step", "11-25") == [11, 21]
    assert shown(run, "--step", "1") == [1, 1]
    assert shown(run, "--right") == [1, 21]
    assert shown(run, "--wrong", "--step", "2-99") == [11, 31]
    assert shown(run, "--reason", "no-answer") == [1, 31]


def test_the_view_shows_the_step_and_escapes_control_characters(run):
    jsonl.write_rows(run / "samples.jsonl", [sample(41, completion="\x1b[2Jhaha\u202e</think>")], append=True)
    said = CliRunner().invoke(app, ["samples", str(run), "--step", "41"]).stdout
    assert "step 41  3 4 → 7" in said
    assert "haha" in said
    assert not {"\x1b", "\u202e"} & set(said)


def test_an_unfinished_line_is_left_out(run):
    with (run / "samples.jsonl").open("a") as stream:
        stream.write('{"step": 41, "comp')
    assert shown(run, "--n", 9) == [1, 1, 11, 21, 31]


def test_a_verdict_is_in_words_and_truncation_is_named(run):
    cut = sample(51, "no-answer") | {"answer": None, "value": None, "truncated": True}
    jsonl.write_rows(run / "samples.jsonl", [cut, sample(61, "number-used-twice")], append=True)
    said = CliRunner().invoke(app, ["samples", str(run), "--step", "51-61"]).stdout
    assert "✗ no answer: truncated at the token limit" in said
    assert "✗ 3 + 4 = 7: a number used more often than it is given" in said or "3 + 4: a number used more" in said
    assert "number-used-twice" not in said


def test_samples_are_shuffled_by_a_seed(run):
    orders = {tuple(shown(run, "--n", 9, "--shuffle", seed)) for seed in (1, 2, 3, 1)}
    assert 1 < len(orders) <= 3
    assert {tuple(sorted(order)) for order in orders} == {(1, 1, 11, 21, 31)}


@pytest.mark.parametrize("step", ["x", "1-", "-3", "1-2-3"])
def test_an_invalid_step_is_a_usage_error(run, step):
    done = CliRunner().invoke(app, ["samples", str(run), f"--step={step}"])
    assert "neither a step" in str(done.exception)


def test_a_file_without_samples_is_refused(run):
    (run / "samples.jsonl").write_text('{"id": 1}\n')
    done = CliRunner().invoke(app, ["samples", str(run)])
    assert "no samples of a training run" in str(done.exception)
