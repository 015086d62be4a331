"""Fixtures that more than one file of tests uses."""

import time
from collections.abc import Iterator

import pytest

from tests.hub import Hub, running

URL_TEMPLATE = "/{repo_id}/resolve/{revision}/{filename}"


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
