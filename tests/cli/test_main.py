"""Exit status and words of failures."""

import errno
import io
import os
import subprocess
import sys
from collections import Counter

import pytest

from countdown_rl import errors
from countdown_rl.cli import main
from tests.evaluation.test_compare import BASE, TRAINED, made


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


#: Commands that load no torch; each uses what those before it wrote.
CHEAP = (
    *("--help", "train --help", "solve 25 50 75 100 3 6 --target 952 --all", "init pipeline"),
    *("gen-data --n 30 --numbers 1-9 --out data", "eval --model random --data data/test.jsonl --out random"),
    *("samples random --n 2", "diagnose adapter", "grade random/samples.jsonl", "compare base adapter"),
)
RUN_ALL = f"""
import sys
from countdown_rl.cli import main
for words in {CHEAP}:
    sys.argv[1:] = words.split()
    try:
        main.main()
    except SystemExit as stop:
        assert not stop.code, words
assert "torch" not in sys.modules
"""


def printed(place, environment=None):
    """The stdout of the cheap commands, run in *place*."""
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8", "COLUMNS": "80", **(environment or {})}
    for name, marks in (("base", BASE), ("adapter", TRAINED)):
        made(place / name, marks)
    command = [sys.executable, "-c", RUN_ALL]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env=environment, cwd=place)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    return printed(tmp_path_factory.mktemp("usual"))


@pytest.mark.parametrize(
    "environment", [{"COLUMNS": "0"}, {"TERM": "dumb"}, {"NO_COLOR": "1"}, {"COLUMNS": "40"}, {"LC_ALL": "C"}], ids=str
)
def test_a_narrow_or_bare_terminal_loses_no_text(tmp_path, usual, environment):
    """Words may be folded."""
    assert Counter("".join(printed(tmp_path, environment).split())) == Counter("".join(usual.split()))


def test_an_encoding_without_signs_gets_plain_ones_and_a_directory_may_have_any_name(tmp_path, usual):
    place = tmp_path / "mein Verzeichnis ü"
    place.mkdir()
    text = printed(place, {"PYTHONIOENCODING": "ascii"})
    assert len(text.splitlines()) == len(usual.splitlines())
    plain = "".join(main._PLAIN.get(character, character) for character in usual)
    assert text.split() == plain.split()


def test_columns_are_aligned_where_an_encoding_lacks_signs(monkeypatch):
    from countdown_rl.cli import console

    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    main._write_in_any_encoding()
    table = console.table("form", "share")
    table.add_row("n ± n × n", "10%")
    table.add_row("n", "1%")
    console.result({}, as_json=False, view=table)
    sys.stdout.seek(0)
    assert sys.stdout.read().splitlines()[1:] == ["n +/- n * n    10%", "n               1%"]
