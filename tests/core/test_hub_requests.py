"""Failures of the Hub: one sentence each, the same for models, data sets, licences and uploads."""

import errno
import os
import re
from pathlib import Path

import pytest
from huggingface_hub import constants
from huggingface_hub.utils import close_session

from countdown_rl.core import hub_requests
from countdown_rl.core.errors import HubError, InputError, ModelError
from countdown_rl.data import external
from countdown_rl.models import reference
from countdown_rl.release import folder
from tests.support.hub import EXPIRED, READ, WRITE

USES = {
    "model": lambda name, revision: reference.find_model(name, revision=revision),
    "data set": lambda name, revision: list(external.from_hub(name, revision)[1]),
    "licence": lambda name, revision: folder.base_license(name, revision),
    "verify": lambda name, revision: hub_requests.download(
        name, revision, allowed=None, ignored=None
    ),
}
#: The error of a use, and what it advises, where that is not a ModelError that ends with its reason.
ERRORS = {"data set": (InputError, " --from."), "licence": (HubError, " --license.")}


@pytest.fixture(autouse=True)
def repositories(hub, tmp_path):
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "README.md").write_text("---\nlicense: mit\n---\n")
    (tmp_path / "files" / "config.json").write_text("{}")
    (tmp_path / "files" / "train.jsonl").write_text('{"nums": [1, 2], "target": 3}\n')
    for kind in ("model", "dataset"):
        hub.add_model("me/it", tmp_path / "files", repo_type=kind)


def sentence(use, name="me/it", revision=None):
    error, end = ERRORS.get(use, (ModelError, "."))
    with pytest.raises(error) as raised:
        USES[use](name, revision)
    text = str(raised.value)
    assert "\n" not in text
    assert text.endswith(end)
    assert name in text
    return text


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (
            {
                "status": 403,
                "headers": {"X-Error-Code": "GatedRepo", "X-Error-Message": "ask first"},
            },
            "gated.*ask first",
        ),
        ({"status": 401, "headers": {"X-Error-Code": "GatedRepo"}}, "gated"),
        (
            {"status": 401, "headers": {"X-Error-Message": "Invalid username or password."}},
            "does not accept the token",
        ),
        (
            {"status": 403, "headers": {"X-Error-Message": "token is too narrow"}},
            "token is too narrow",
        ),
        ({"status": 404, "headers": {"X-Error-Code": "RevisionNotFound"}}, "no revision"),
        ({"status": 429}, "429.*later"),
        ({"status": 503}, "503.*later"),
        ({"cut": "body"}, "check the network|failed"),
        ({"status": 200}, "failed"),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_an_answer_of_the_hub_is_put_in_words(hub, use, fault, words):
    hub.fail("GET|HEAD", times=100, **fault)
    assert re.search(words, sentence(use))


@pytest.mark.parametrize("use", USES)
def test_an_expired_token_is_named_and_not_shown(hub, monkeypatch, use):
    monkeypatch.setenv("HF_TOKEN", EXPIRED)
    text = sentence(use)
    assert "does not accept the token" in text
    assert EXPIRED not in text


@pytest.mark.parametrize("use", sorted(set(USES) - {"licence"}))
@pytest.mark.parametrize("token", [None, READ])
def test_what_is_not_there_may_be_misspelled_or_private(hub, monkeypatch, use, token):
    monkeypatch.delenv("HF_TOKEN") if token is None else monkeypatch.setenv("HF_TOKEN", token)
    assert "check the name" in sentence(use, "me/gone")
    assert "no revision v9" in sentence(use, revision="v9")


@pytest.mark.parametrize("use", USES)
def test_no_network_gives_the_cause_and_the_host(hub, monkeypatch, use):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert "(127.0.0.1: Connection refused)" in sentence(use)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set" in sentence(use)


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("ALL_PROXY", "socks5://me:secret@127.0.0.1:9", "the proxy of ALL_PROXY .*socks"),
        ("all_proxy", "socks5h://127.0.0.1:9", "the proxy of ALL_PROXY .*socks"),
        ("HTTP_PROXY", "ftp://me:secret@127.0.0.1:9", "the proxy of HTTP_PROXY .*scheme"),
        ("HTTPS_PROXY", "http://127.0.0.1:port", "the proxy of HTTPS_PROXY "),
        ("HTTP_PROXY", "http://127.0.0.1:9", "check the network .*refused"),
        (
            "SSL_CERT_FILE",
            "/nowhere/ca.pem",
            "SSL_CERT_FILE names /nowhere/ca.pem, which does not exist",
        ),
        ("SSL_CERT_FILE", __file__, "SSL_CERT_FILE names .*is no certificate"),
        ("HF_TOKEN", "hf_é", "the token holds a character"),
        ("HF_TOKEN", f"{WRITE}\n", None),
        ("NO_PROXY", "127.0.0.1", None),
        ("SSL_CERT_DIR", "/nowhere", None),
    ],
)
def test_a_variable_that_stands_in_the_way_is_named(hub, monkeypatch, use, name, value, words):
    monkeypatch.setenv("NO_PROXY", "")
    monkeypatch.setenv(name, value)
    close_session()
    if words is None:
        USES[use]("me/it", None)
    else:
        text = sentence(use)
        assert re.search(words, text)
        assert "secret" not in text
    close_session()


@pytest.mark.parametrize("use", USES)
def test_a_hub_that_sends_too_slowly_is_no_endless_wait(hub, monkeypatch, use):
    monkeypatch.setattr(hub_requests, "SLOWEST", 10**9)
    monkeypatch.setattr(hub_requests, "PATIENCE", 0.0)
    assert re.search("check the network .*fewer than 1,000,000,000 bytes", sentence(use))
    monkeypatch.setattr(hub_requests, "SLOWEST", 0)
    USES[use]("me/it", None)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_cache_that_cannot_be_written_is_named(hub, monkeypatch, number):
    def refuse(*arguments, **more):
        raise OSError(number, os.strerror(number), "/there/blob")

    monkeypatch.setattr("huggingface_hub.file_download.http_get", refuse)
    text = sentence("model")
    assert os.strerror(number) in text
    assert "/there/blob" in text
    assert "HF_HOME" in text


@pytest.mark.parametrize("use", sorted(set(USES) - {"licence"}))
def test_what_is_cached_needs_no_hub(hub, monkeypatch, use):
    USES[use]("me/it", None)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    USES[use]("me/it", None)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    USES[use]("me/it", None)
    for path in Path(constants.HF_HUB_CACHE).rglob("*.json*"):
        path.unlink()
    if use != "verify":
        assert "not in the cache" in sentence(use)
