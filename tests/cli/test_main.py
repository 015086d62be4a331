"""Exit status and words of failures."""

import errno
import os
import subprocess
import sys

import pytest

from countdown_rl import errors
from countdown_rl.cli import main


def fail(error):
    """Run a command that raises *error*, and return its exit status."""

    def run():
        raise error

    with pytest.raises(SystemExit) as done:
        main.main(run)
    return done.value.code


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.UsageError("--x goes with --y."), 2),
        (errors.ArtifactError("out is missing; make it."), 1),
        (OSError(errno.ENOSPC, "No space left on device", "out"), 1),
        (PermissionError(errno.EACCES, "Permission denied", "out"), 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_failure_of_the_options_the_input_or_the_machine_is_one_sentence(capsys, error, code):
    assert fail(error) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize("error", [ValueError("a\x1b[2Jb"), OSError("no number"), FileNotFoundError(2, "No", "x")])
def test_an_unexpected_exception_prints_its_traceback_and_asks_for_a_report(capsys, error):
    assert fail(error) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    first, *_, exception, request = printed.err.splitlines()
    assert first == "Traceback (most recent call last):"
    assert exception.startswith(type(error).__name__)
    assert "report" in request
    assert "\x1b" not in printed.err


def test_a_closed_stderr_is_the_null_device(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    main.main(lambda: sys.stderr.isatty())


def test_every_process_names_itself_in_its_traceback(capsys, monkeypatch):
    for name, value in (("WORLD_SIZE", "2"), ("RANK", "1"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(main.processes, "is_main", lambda: False)
    from countdown_rl.cli import console

    monkeypatch.setattr(console.people, "quiet", False)
    monkeypatch.setattr(console._out, "quiet", False)
    assert fail(errors.InputError("row 3 is wrong.")) == 1
    assert capsys.readouterr().err == ""
    assert fail(KeyError("x")) == 1
    assert "process 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"PYTHONIOENCODING": "ascii"}, "+ and - suffice  * or / is needed"),
        ({"COLUMNS": "0"}, "− suffice  × or ÷ is needed"),
        ({"COLUMNS": "40"}, "neede"),  # folded, where it was cut off
    ],
)
def test_a_narrow_or_bare_terminal_loses_no_text(tmp_path, environment, expected):
    words = ["gen-data", "--n", "30", "--numbers", "1-9", "--out", str(tmp_path / "data")]
    command = [sys.executable, "-m", "countdown_rl", *words]
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8", **environment}
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env=environment)
    assert done.returncode == 0, done.stderr
    assert expected in done.stdout
    assert "…" not in done.stdout
