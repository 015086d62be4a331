"""Runs in tests: their data, killed after a step, beside another process, their logs, and the bytes that they leave."""

import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from countdown_rl.core import artifacts
from countdown_rl.evaluation import training_log
from countdown_rl.tasks import jsonl
from countdown_rl.training.prepared import Reporter

SPLITS = ("train", "valid", "test")


def write_data(path: Path, splits: dict[str, Iterable[dict[str, Any]]], **options: Any) -> Path:
    """Write a data artifact of *options* with the rows of each of *splits*."""
    with artifacts.writing(path, "data", options=options) as draft:
        for split, rows in splits.items():
            jsonl.write_rows(draft.path / f"{split}.jsonl", rows)
    return path


def paths(where: Path) -> dict[str, Any]:
    """Arguments of a run that writes into the directory *where*."""
    return {"out": where / "out", "log": where / "log.csv"}


class Killed(BaseException):
    """The process of a run ended."""


def killing(step: int, **callbacks: Callable[..., None]) -> Reporter:
    """A reporter that ends the run after the row of *step*."""

    def on_step(row: Any) -> None:
        if row.step == step:
            raise Killed

    return Reporter(step=on_step, **callbacks)


@contextmanager
def locked_elsewhere(path: str) -> Iterator[None]:
    """Let another process write *path*, and kill it."""
    code = (
        "import sys; from pathlib import Path; from countdown_rl.core import artifacts\n"
        "with artifacts.locked(Path(sys.argv[1])): print(flush=True); sys.stdin.read()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code, path], **pipes) as other:
        other.stdout.readline()
        yield
        other.kill()


def steps(count: int, **values: Any) -> list[training_log.StepRow]:
    """A log of *count* steps with *values*, in which the share of correct completions rises to 1."""
    usual = dict.fromkeys(training_log.columns_of(training_log.StepRow), 0.5)
    usual |= dict.fromkeys(("kl", "eval_kl", "eval_correct", "eval_correct_before")) | values
    measured = [{"step": step, "correct": step / count} for step in range(1, count + 1)]
    return [training_log.StepRow(**usual | values) for values in measured]


def files(path: Path) -> dict[str, bytes]:
    """The files under a directory."""
    paths = filter(Path.is_file, path.rglob("*"))
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in paths}


def timeless(rows: Iterable[training_log.LogRow]) -> list[training_log.LogRow]:
    """*rows* of a log without their seconds."""
    timed = [name for name in training_log.columns_of(training_log.StepRow) if "seconds" in name]
    return [replace(row, **{name: 0 for name in timed if hasattr(row, name)}) for row in rows]


def samples_of(result: Any) -> list[bytes]:
    """The samples beside the artifact of a run, if it has any."""
    return [path.read_bytes() for path in result.out.parent.glob("samples.jsonl")]


def assert_same(result: Any, expected: Any) -> None:
    """Two runs left the same artifact, log and samples."""
    assert files(result.out) == files(expected.out)
    assert timeless(result.rows) == timeless(expected.rows)
    assert samples_of(result) == samples_of(expected)


def killed(fit: Callable[..., Any], step: int, *arguments: Any, **callbacks: Any) -> None:
    """Kill the run that *fit* starts with *arguments* after *step*."""
    reporter = killing(step, **callbacks)
    with pytest.raises(Killed):
        fit(*arguments, reporter=reporter)


def resumed(fit: Callable[..., Any], options: Any, step: int) -> tuple[Any, Any]:
    """A run, and one that was killed after *step* and run again, with the same bytes.

    *fit* takes the options of a run and the name of its directory.
    """
    whole = fit(options, "whole")
    killed(fit, step, options, "killed")
    again = fit(options, "killed")
    assert_same(again, whole)
    return whole, again
