"""Defaults of the paths of a run, and a warning before it."""

import subprocess
import sys
from pathlib import Path

import pytest

from countdown_rl.cli.main import app
from countdown_rl.core.errors import UsageError
from countdown_rl.inference import engines
from countdown_rl.models import load
from countdown_rl.training.prepared import Start
from countdown_rl.training.run import outcome_warnings
from countdown_rl.training.state import Places


@pytest.mark.parametrize(
    ("words", "directory"),
    [
        ("train", "artifacts/train"),
        ("train --out trial", "trial-run"),
        ("train --out trial --log here/log.csv", "here"),
        ("sft", "artifacts/sft-run"),
        ("sft --out runs/trial", "runs/trial-run"),
    ],
)
def test_another_out_has_a_log_and_checkpoints_of_its_own(here, monkeypatch, words, directory):
    def stop(arguments, options, reporter):
        places = Places.of(arguments, options)
        assert (places.log, places.checkpoints.directory) == (
            Path(directory, "log.csv"),
            Path(directory, "checkpoints"),
        )
        raise UsageError("stopped here")

    monkeypatch.setattr(Start, "begin", stop)
    Path("rows.jsonl").write_text("{}")
    with pytest.raises(UsageError, match="stopped here"):
        app([*words.split(), "--data", "rows.jsonl", "--check"], standalone_mode=False)


@pytest.mark.parametrize("command", ["train", "sft", "eval"])
def test_a_gpu_that_torch_does_not_see_is_told_before_the_work(here, monkeypatch, capsys, command):
    def stop(*_, **__):
        raise UsageError("stopped here")

    Path("rows.jsonl").write_text('{"id": "1", "nums": [1, 2], "target": 3}\n')
    monkeypatch.setattr(load, "unused_gpu", lambda: "there is a GPU.")
    for place, name in ((Start, "begin"), (engines, "choose_engine")):
        monkeypatch.setattr(place, name, stop)
    with pytest.raises(UsageError, match="stopped here"):
        app([command, "--model", "countdown-tiny", "--data", "rows.jsonl"], standalone_mode=False)
    assert "warning: there is a GPU." in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        "train --reward corect=1",
        "train --data nope",
        "train --data file",
        "train --out .",
        "sft --from file",
        "sft --from nope",
        "sft --data nope",
        "sft --log . --out out",
        "merge --adapter nope",
        "merge --out .",
        "quantize --model nope",
        "collect nope",
    ],
)
def test_a_refusal_that_needs_no_model_imports_no_torch(tmp_path, words):
    (tmp_path / "file").touch()
    (tmp_path / "puzzles").write_text('{"nums": [1, 2], "target": 3}')
    code = "import sys; from countdown_rl.cli import main\ntry: main.main()\nfinally: print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code, *words.split()], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode > 0, done.stdout) == (True, "False\n"), done.stderr


@pytest.mark.parametrize(
    ("facts", "names"),
    [
        ({"loss_first": 1.0, "loss_last_tenth": 1.1}, ["loss"]),
        ({"loss_first": 1.0, "loss_last_tenth": 0.5, "eval_correct": 0.5}, []),
        ({"eval_correct": 0.25}, ["fall"]),
        ({}, []),
    ],
)
def test_a_run_that_made_nothing_better_ends_with_a_warning(facts, names):
    assert list(outcome_warnings({"steps": 9, **facts}, 0.5)) == names
