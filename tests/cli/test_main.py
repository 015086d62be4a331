"""Exit status and words of failures."""

import errno
import os
import re
import subprocess
import sys
from importlib import import_module

import pytest

from countdown_rl.cli import console, main
from countdown_rl.core import errors
from countdown_rl.tasks import jsonl
from tests.evaluation.test_compare import BASE, TRAINED, made
from tests.support.command import python


def fail(work):
    """The exit status of a command that calls *work*."""
    with pytest.raises(SystemExit) as done:
        main.main(work)
    return done.value.code


def raising(error):
    """A function of this package that raises *error*."""

    def work():
        raise error

    work.__code__ = work.__code__.replace(co_filename=errors.__file__)
    return work


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (errors.UsageError("--x goes with --y."), 2, "--x goes with"),
        (errors.ArtifactError("out is missing; make it."), 1, "out is missing"),
        (OSError(errno.ENOSPC, "No space left on device", "out"), 1, "No space left"),
        (PermissionError(errno.EACCES, "Permission denied", "out"), 1, "permission denied"),
        (RuntimeError("DataLoader: [Errno 28] No space left on device"), 1, "No space left"),
        (MemoryError(), 1, "memory"),
        (ModuleNotFoundError("No module named 'peft.x'", name="peft.x"), 1, "train"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_failure_of_the_options_the_input_or_the_machine_is_one_sentence(
    capsys, error, code, words
):
    assert fail(raising(error)) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert re.fullmatch(rf"error: .*{words}.*\n", printed.err)


@pytest.mark.parametrize(
    "error", [ValueError("a\x1b[2Jb"), OSError("no number"), FileNotFoundError(2, "No", "x")]
)
def test_an_unexpected_exception_prints_its_traceback_and_asks_for_a_report(capsys, error):
    assert fail(raising(error)) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    first, *_, exception, request = printed.err.splitlines()
    assert first == "Traceback (most recent call last):"
    assert exception.startswith(type(error).__name__)
    assert "report" in request
    assert "\x1b" not in printed.err


USER_CODE = """
import json

def wrong(grade, row, tokens):
    return json.loads("{")

def refuses():
    from countdown_rl import InputError
    raise InputError("the row has no gold answer.")
"""


@pytest.fixture
def user(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(USER_CODE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    return import_module("mine")


@pytest.mark.parametrize("wrapped", [False, True])
def test_an_error_of_the_users_code_adds_the_frames_of_that_code_alone(capsys, user, wrapped):
    def work():
        try:
            user.wrong(None, None, 0)
        except ValueError as error:
            if wrapped:
                raise errors.UsageError("the reward failed.") from error
            raise

    work.__code__ = work.__code__.replace(co_filename=errors.__file__)
    assert fail(work) == (2 if wrapped else 1)
    sentence, frame, line, *rest = capsys.readouterr().err.splitlines()
    assert sentence.startswith(
        "error: the reward failed." if wrapped else "error: JSONDecodeError: Expecting"
    )
    assert f'{user.__file__}", line 5, in wrong' in frame
    assert "json.loads" in line
    assert not [text for text in rest if "File" in text]


def test_an_error_that_the_users_code_words_itself_is_one_sentence(capsys, user):
    assert fail(user.refuses) == 1
    assert capsys.readouterr().err == "error: the row has no gold answer.\n"


def test_the_traceback_of_a_failure_is_printed_on_request(run_command):
    words = ["eval", "--model", "random", "--data", "nowhere.jsonl"]
    assert "Traceback" not in run_command(*words, code=1).err
    assert re.search(
        r"^Traceback(.|\n)*^error: nowhere",
        run_command("--traceback", *words, code=1).err,
        re.MULTILINE,
    )


def test_every_process_names_itself_in_its_traceback(capsys, monkeypatch):
    for name, value in (("WORLD_SIZE", "2"), ("RANK", "1"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(console.people, "quiet", False)
    monkeypatch.setattr(console._out, "quiet", False)
    assert fail(raising(errors.InputError("row 3 is wrong."))) == 1
    assert capsys.readouterr().err == ""
    assert fail(raising(KeyError("x"))) == 1
    assert "process 1" in capsys.readouterr().err


#: Commands that load no torch; each uses what those before it wrote.
CHEAP = (
    "--help",
    "train --help",
    "solve 25 50 75 100 3 6 --target 952 --all",
    "init pipeline",
    "gen-data --n 30 --numbers 1-9 --out data",
    "eval --model random --data data/test.jsonl --out random",
    "samples random --n 2",
    "samples adapter --errors",
    "grade random/samples.jsonl",
    "compare base adapter",
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


def test_light_commands_load_no_torch_and_print_on_any_terminal(tmp_path):
    place = tmp_path / "a ü"
    place.mkdir()
    for name, marks in (("base", BASE), ("adapter", TRAINED)):
        made(place / name, marks)
    terminal = {"PYTHONIOENCODING": "ascii", "TERM": "dumb", "COLUMNS": "40"}
    printed = python(RUN_ALL, os.environ | terminal, place)
    assert r"\u2192" in printed  # an arrow


@pytest.mark.parametrize("streams", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-", "| true"])
@pytest.mark.parametrize(
    "words",
    ["--version", "--help", "solve 3 7 50 --target 46", "gen-data --n 20 --out data", "grade many"],
)
def test_a_closed_stream_is_no_failure(tmp_path, words, streams):
    row = {"nums": [3, 4], "target": 7, "completion": "<answer>3+4</answer>"}
    jsonl.write_rows(tmp_path / "many", [row] * 2000)
    command = f'"{sys.executable}" -m countdown_rl {words} {streams}; exit ${{PIPESTATUS[0]}}'
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Error" not in done.stderr
    assert not done.stderr or streams != "| true" or words.startswith("gen-data")
    assert all(path.stat().st_size < 20_000 for path in tmp_path.rglob("*.jsonl"))
    assert (tmp_path / "data").exists() == words.startswith("gen-data")
