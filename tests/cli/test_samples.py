"""Completions of a training run, shown by the command."""

import json

import pytest
from typer.testing import CliRunner

from countdown_rl.cli.main import app
from countdown_rl.core.errors import UsageError
from countdown_rl.tasks import jsonl


def sample(step, reason="", completion="3 + 4</think>\n<answer>3 + 4</answer>", **fields):
    row = {"step": step, "nums": [3, 4], "target": 7, "completion": completion, "tokens": 9}
    verdicts = dict.fromkeys(("format", "strict_format"), True) | {"correct": not reason}
    flaws = {"trailing": False, "truncated": False, "reason": reason}
    return row | verdicts | flaws | {"answer": "3 + 4", "value": "7"} | fields


@pytest.fixture
def run(tmp_path):
    steps = ((1, "no-answer"), (1, ""), (11, "wrong-value"), (21, ""), (31, "no-answer"))
    rows = [sample(step, reason) for step, reason in steps]
    jsonl.write_rows(tmp_path / "samples.jsonl", rows)
    (tmp_path / "log.csv").write_text("")
    return tmp_path


def shown(*words):
    done = CliRunner().invoke(app, ["samples", *map(str, words), "--json"])
    assert done.exit_code == 0, done.output
    return [row["step"] for row in json.loads(done.stdout)["samples"]]


@pytest.mark.parametrize(
    ("words", "steps"),
    [
        ("--step 11-25", [11, 21]),
        ("--step 1", [1, 1]),
        ("--n 9", [31, 21, 11, 1, 1]),
        ("--correct", [21, 1]),
        ("--incorrect --step 2-99", [11, 31]),
        ("--reason no-answer", [31, 1]),
    ],
)
def test_samples_are_filtered_by_step_grade_and_reason(run, words, steps):
    with (run / "samples.jsonl").open("a") as stream:
        stream.write('{"step": 41, "comp')  # of an interrupted run
    assert shown(run, *words.split()) == steps


def test_the_view_shows_step_and_verdict_and_escapes_control_characters(run):
    cut = sample(51, "no-answer", answer=None, value=None, truncated=True)
    rewards = {"correct": 1.0, "mine": None, "format": 0.5}
    learned = {"group": 0, "rewards": rewards, "advantage": -0.25}
    rows = [sample(41, completion="\x1b[2J[b]haha[/b]\u202e</think>", **learned), cut]
    jsonl.write_rows(run / "samples.jsonl", rows, append=True)
    view = CliRunner().invoke(app, ["samples", str(run), "--step", "41-51"]).stdout
    assert "step 41, group 0  3 4 → 7" in view
    assert "[b]haha[/b]" in view
    assert not {"\x1b", "\u202e"} & set(view)
    assert "truncated" in view
    assert "correct 1, format 0.5, advantage -0.25\n" in view


@pytest.mark.parametrize("words", ["--step=x", "--step=1-", "--correct --reason=no-answer"])
def test_an_invalid_choice_is_a_usage_error(run, words):
    error = CliRunner().invoke(app, ["samples", str(run), *words.split()]).exception
    assert isinstance(error, UsageError)
    assert words.replace("=", " ").split()[0].removeprefix("--") in str(error)


def test_a_run_without_samples_is_refused(run):
    (run / "samples.jsonl").write_text('{"id": 1}\n')
    assert "no samples" in str(CliRunner().invoke(app, ["samples", str(run)]).exception)
    (run / "samples.jsonl").unlink()
    assert "saved no samples; sft saves them with --eval-every" in str(
        CliRunner().invoke(app, ["samples", str(run)]).exception
    )


@pytest.mark.parametrize("command", ["samples", "collect"])
def test_a_file_of_completions_is_no_evaluation(command, tmp_path):
    jsonl.write_rows(tmp_path / "made.jsonl", [{"nums": [3, 4], "target": 7, "completion": "x"}])
    error = CliRunner().invoke(app, [command, str(tmp_path / "made.jsonl")]).exception
    assert "eval --completions" in str(error)
