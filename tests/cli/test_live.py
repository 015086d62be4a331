"""Progress of a training run."""

from countdown_rl.cli import console, live
from countdown_rl.runlog.log import StepRow


def row(step, reward=0.5):
    return StepRow(step, reward, 0.4, 1.0, 81.0, 0.1, 0.25, 0.7, None, 0.3, 2e-4, 2.0, 1.0, 0.1, 0.9)


def test_without_a_terminal_means_of_the_last_steps_are_lines_at_intervals(monkeypatch, capsys):
    monkeypatch.setattr(console, "INTERVAL", 0.0)
    with live.progress(20) as update:
        for step in range(1, 13):
            update(row(step, reward=step))
    printed = capsys.readouterr()
    assert printed.out == ""
    lines = printed.err.splitlines()
    assert lines[:2] == ["step: 0 of 20", "step: 1 of 20, reward 1.000, solved 40%, 81 tokens"]
    assert lines[-1].startswith("step: 12 of 20, reward 7.500, solved 40%, 81 tokens")


def test_a_short_run_prints_no_progress_without_a_terminal(capsys):
    with live.progress(3) as update:
        update(row(3))
    assert capsys.readouterr().err == ""
