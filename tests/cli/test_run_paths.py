"""Defaults of the paths of a run."""

from pathlib import Path

import pytest

from countdown_rl.cli.main import app
from countdown_rl.errors import UsageError
from countdown_rl.sft import prepare as sft
from countdown_rl.training import prepare as train


@pytest.mark.parametrize(
    ("words", "directory"),
    [
        (["train"], "artifacts/train"),
        (["train", "--out", "trial"], "trial-run"),
        (["train", "--out", "trial", "--log", "here/log.csv"], "here"),
        (["sft"], "artifacts/sft-run"),
        (["sft", "--out", "runs/trial"], "runs/trial-run"),
    ],
)
def test_another_out_has_a_log_and_checkpoints_of_its_own(tmp_path, monkeypatch, words, directory):
    def stop(run, *_):
        assert (run.log, run.checkpoints) == (Path(directory, "log.csv"), Path(directory, "checkpoints"))
        raise UsageError("stopped here")

    monkeypatch.chdir(tmp_path)
    for module in (sft, train):
        monkeypatch.setattr(module, "prepare", stop)
    with pytest.raises(UsageError, match="stopped here"):
        app([*words, "--check"], standalone_mode=False)
