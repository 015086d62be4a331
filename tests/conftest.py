"""Fixtures that more than one file of tests uses."""

import gc
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from countdown_rl.cli.quiet import silence_libraries
from countdown_rl.core import processes
from tests.support.command import status

if TYPE_CHECKING:
    from tests.support.hub import Hub

URL_TEMPLATE = "/{repo_id}/resolve/{revision}/{filename}"

#: The number of modules that :func:`pytest_runtest_logstart` has frozen.
_frozen = [0]

# Before a conftest of a folder loads the libraries.
processes.begin()
silence_libraries()
# Tests are not timed: the machine may be busy.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_configure(config: pytest.Config) -> None:
    """Let tests interrupt their processes: a shell's background jobs ignore SIGINT, and pass that on.

    Where tests run side by side, each worker keeps to cores of its own: torch crawls where two share them.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.fsync = lambda handle: None  # no test ends the machine
    worker = getattr(config, "workerinput", None)
    if worker and hasattr(os, "sched_setaffinity"):
        cores, count = sorted(os.sched_getaffinity(0)), worker["workercount"]
        if mine := cores[int(worker["workerid"].removeprefix("gw")) % count :: count]:
            os.sched_setaffinity(0, mine)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first: side by side, one that starts last leaves the other cores idle."""
    seconds: Counter[Path] = Counter()
    for item in items:
        seconds[item.path] += 10 if item.get_closest_marker("slow") else 1
    items.sort(key=lambda item: -seconds[item.path])


def pytest_runtest_logstart() -> None:
    """Freeze what new modules hold: every training run collects garbage, half a second for their million objects."""
    if len(sys.modules) > _frozen[0] + 50:
        _frozen[0] = len(sys.modules)
        gc.collect()
        gc.freeze()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path) -> Iterator["Hub"]:
    """A Hub of its own, which huggingface_hub in this process takes for the real one, logged in.

    Waiting takes no time. For a child process use ``hub.env(tmp_path)``.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import close_session

    from tests.support.hub import running

    with running() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.url + URL_TEMPLATE)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
        monkeypatch.setenv("HF_TOKEN", server.token)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
        monkeypatch.setattr(time, "sleep", lambda seconds: None)
        close_session()
        yield server
    close_session()


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inspect names a task after its package by its dist-info; an egg-info in the root would be found before that."""
    monkeypatch.setattr(
        sys,
        "path",
        [path for path in sys.path if Path(path).resolve() != Path(__file__).parents[1]],
    )


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """``tmp_path`` as the working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Any]:
    """Run ``countdown-rl``, which must exit with *code*, and return its stdout and stderr."""

    def run(*words: object, code: int = 0) -> Any:
        assert status(monkeypatch, *words) == code
        return capsys.readouterr()

    return run


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The inodes of the files and directories that are flushed to disk."""
    inodes: set[int] = set()
    monkeypatch.setattr(os, "fsync", lambda handle: inodes.add(os.fstat(handle).st_ino))
    return inodes
