"""Exit status and words of failures."""

import errno
import io
import os
import resource
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack, suppress

import pytest

from countdown_rl.cli import main
from countdown_rl.core import errors
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


@pytest.fixture
def limit():
    """A function that sets the soft limit of a resource for the test."""
    before = {}

    def set_limit(kind, number):
        before[kind] = resource.getrlimit(kind)
        resource.setrlimit(kind, (number, before[kind][1]))

    yield set_limit
    for kind, limits in before.items():
        resource.setrlimit(kind, limits)


def save_with_torch(path):
    import torch

    torch.save({"a": torch.zeros(100_000)}, path)


def save_with_safetensors(path):
    import torch
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(100_000)}, path)


def save_a_tokenizer(path):
    from tests.support import tiny_llama

    tiny_llama.tokenizer().backend_tokenizer.save(str(path))


def save_with_numpy(path):
    import numpy as np

    np.zeros(100_000).tofile(path)


def save_rows(path):
    from countdown_rl.tasks import jsonl

    jsonl.write_rows(path, [{"a": "x" * 100_000}])


WRITERS = [save_with_torch, save_with_safetensors, save_a_tokenizer, save_with_numpy, save_rows]


@pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.__name__)
def test_a_file_that_cannot_grow_is_one_sentence_whoever_writes_it(tmp_path, limit, capsys, writer):
    writer(tmp_path / "whole")
    limit(resource.RLIMIT_FSIZE, 5_000)
    with pytest.raises(SystemExit) as done:
        main.main(lambda: writer(tmp_path / "part"))
    printed = capsys.readouterr()
    assert done.value.code == 1
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="open descriptors are counted in /proc")
@pytest.mark.parametrize("writer", [save_with_safetensors, save_a_tokenizer, save_rows], ids=lambda w: w.__name__)
def test_too_few_descriptors_are_one_sentence(tmp_path, limit, capsys, writer):
    writer(tmp_path / "whole")

    def run():
        with ExitStack() as stack:
            limit(resource.RLIMIT_NOFILE, max(map(int, os.listdir("/proc/self/fd"))) + 2)
            with suppress(OSError):
                while True:
                    stack.enter_context(open(os.devnull))
            writer(tmp_path / "part")

    with pytest.raises(SystemExit) as done:
        main.main(run)
    assert done.value.code == 1
    assert "too many open files" in capsys.readouterr().err


MACHINE = [
    (OSError(errno.EDQUOT, "Disk quota exceeded", "out"), "quota"),
    (OSError(errno.EIO, "Input/output error", "out"), "disk failed"),
    (OSError(errno.EROFS, "Read-only file system", "out"), "read-only"),
    (OSError(errno.ENAMETOOLONG, "File name too long", "x" * 300), "too long"),
    (OSError(errno.ENFILE, "Too many open files in system", "out"), "too many open files"),
    (NotADirectoryError(errno.ENOTDIR, "Not a directory", "file/out"), "part of the path is a file"),
    (IsADirectoryError(errno.EISDIR, "Is a directory", "out"), "directory"),
    (FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']"), "TMPDIR"),
    (RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534"), "no space left"),
    (RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed"), "no space left"),
    (RuntimeError("can't start new thread"), "threads"),
    (ImportError("libx.so: cannot open shared object file: Too many open files"), "too many open files"),
    (RuntimeError("DataLoader: [Errno 28] No space left on device"), "no space left"),
    (MemoryError(), "memory"),
]


@pytest.mark.parametrize(("error", "words"), MACHINE, ids=lambda value: str(value)[:30])
def test_a_failure_of_the_machine_is_named(capsys, error, words):
    assert fail(error) == 1
    assert words in capsys.readouterr().err


def test_the_cause_of_an_error_is_looked_at(capsys):
    error = errors.ModelError("m cannot be loaded.")
    error.__cause__ = OSError(errno.EMFILE, "Too many open files")
    fail(error)
    assert "too many open files" in capsys.readouterr().err
    error.__cause__ = MemoryError()  # for which there is a better sentence
    fail(error)
    assert "m cannot be loaded" in capsys.readouterr().err


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
