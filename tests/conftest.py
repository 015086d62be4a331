"""Fixtures that more than one file of tests uses."""

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.support.hub import Hub, running

URL_TEMPLATE = "/{repo_id}/resolve/{revision}/{filename}"

# Tests are not timed: the machine may be busy.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_configure(config: pytest.Config) -> None:
    """Let tests interrupt their processes: a shell's background jobs ignore SIGINT, and pass that on.

    Where tests run side by side, each worker keeps to cores of its own: torch crawls where two share them.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    worker = getattr(config, "workerinput", None)
    if worker and hasattr(os, "sched_setaffinity"):
        cores, count = sorted(os.sched_getaffinity(0)), worker["workercount"]
        if mine := cores[int(worker["workerid"].removeprefix("gw")) % count :: count]:
            os.sched_setaffinity(0, mine)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files with the most slow tests first: side by side, one that starts last leaves the other cores idle."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path) -> Iterator[Hub]:
    """A Hub of its own, which huggingface_hub in this process takes for the real one, logged in.

    Waiting takes no time. For a child process use ``hub.env(tmp_path)``.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import close_session

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
def flushed(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The inodes of the files and directories that are flushed to disk."""
    inodes: set[int] = set()
    monkeypatch.setattr(os, "fsync", lambda handle: inodes.add(os.fstat(handle).st_ino))
    return inodes
