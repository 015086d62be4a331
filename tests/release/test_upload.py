"""Uploads: complete, once, to the right repository, and without the token in any message."""

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from huggingface_hub import constants

from countdown_rl.core.errors import ArtifactError, HubError
from countdown_rl.core.manifest import Manifest, file_entry
from countdown_rl.models import reference
from tests.support.hub import EXPIRED, READ, STRANGER, WRITE, Blob, push
from tests.support.runs import files

ROOT = Path(__file__).parents[2]
NAME = "me/tiny"


def sent(hub, line: str) -> list[str]:
    return [entry for entry in hub.log if line in entry]


def reseal(folder: Path, name: str, content: bytes) -> None:
    """Give the file *name* of the release other *content*, and list it as it is then."""
    (folder / name).write_bytes(content)
    manifest = json.loads((folder / "manifest.json").read_bytes())
    manifest["files"][name] = file_entry(folder / name)
    (folder / "manifest.json").write_bytes(Manifest(**manifest).to_bytes())


def test_the_repository_holds_the_folder_and_is_private(hub, folder):
    upload = push(folder, NAME)
    repo = hub.model(NAME)
    assert repo.files | {".gitattributes": b""} == files(folder) | {".gitattributes": b""}
    assert (repo.private, upload.private, upload.url) == (True, True, f"{hub.url}/{NAME}")
    assert repo.tags == {"v1": upload.commit}
    assert reference.find_model(NAME).revision == upload.commit
    assert not hub.leaks


def test_a_push_sends_what_changed_and_tags_each_release(hub, folder):
    first = push(folder, NAME)
    hub.log.clear()
    again = push(folder, NAME)
    assert (again.commit, again.tag) == (first.commit, "v1")
    assert not any(sent(hub, line) for line in ("PUT", "/commit/", "/tag/"))
    repo = hub.model(NAME)
    repo.commit(repo.trees[repo.branches["main"]] | {"photo.png": Blob(b"png", True)})
    reseal(folder, "model.safetensors", (folder / "model.safetensors").read_bytes()[::-1])
    second = push(folder, NAME)
    assert len(sent(hub, "PUT /.store")) == 1  # model.safetensors
    assert repo.tags == {"v1": first.commit, "v2": second.commit}
    assert "photo.png" not in repo.files


def test_a_repository_is_public_on_request_and_only_then(hub, folder):
    hub.fail("POST .*/commit/", status=403)
    with pytest.raises(HubError):
        push(folder, NAME, public=True)
    assert hub.model(NAME).private  # nothing is in it
    assert push(folder, NAME).private
    assert not push(folder, NAME, public=True).private
    assert not hub.model(NAME).private
    with pytest.raises(HubError, match="give --public"):
        push(folder, NAME)


def test_a_repository_of_another_tool_is_not_overwritten(hub, folder, tmp_path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/manifest.json").write_text('{"kind": "something else"}')
    before = hub.add_model(NAME, tmp_path / "theirs", private=True)
    with pytest.raises(HubError, match="did not make it"):
        push(folder, NAME)
    assert hub.model(NAME).branches == {"main": before}


@pytest.mark.parametrize("token", [EXPIRED, READ, STRANGER, None])
def test_an_unusable_token_is_one_sentence(hub, folder, monkeypatch, token):
    monkeypatch.delenv("HF_TOKEN") if token is None else monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(HubError, match="hf auth login" if token else "there is no token") as raised:
        push(folder, NAME)
    assert not hub.repos
    assert str(token) not in str(raised.value)


@pytest.mark.parametrize(
    "fault",
    [
        {"match": "POST .*/batch", "status": 503, "times": 3},
        *({"match": "PUT /.store", "cut": cut} for cut in ("before", "after")),
        {"match": "POST .*/commit/", "status": 401},
        *({"match": "POST .*/commit/", "cut": cut} for cut in ("before", "after")),
        {"match": "POST .*/tag/", "cut": "after"},
    ],
    ids=lambda fault: " ".join(map(str, fault.values())),
)
def test_a_fault_loses_nothing_and_a_second_run_finishes(hub, folder, fault):
    hub.fail(**fault)
    with suppress(HubError):  # huggingface_hub repeats some requests itself
        push(folder, NAME)
    assert hub.faults[0].times == 0
    stored = len(sent(hub, "PUT /.store"))
    push(folder, NAME)
    repo = hub.model(NAME)
    assert repo.files.keys() - {".gitattributes"} == files(folder).keys()
    assert len(repo.trees) == 2  # the Hub's own first commit, and one of ours
    assert repo.tags == {"v1": repo.branches["main"]}
    if fault.get("status") == 401:  # what is there is not sent again
        assert len(sent(hub, "PUT /.store")) == stored


def test_offline_nothing_is_asked(hub, folder, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(HubError, match="HF_HUB_OFFLINE"):
        push(folder, NAME)
    assert not hub.log


def test_a_damaged_release_or_one_with_a_token_is_not_uploaded(hub, folder):
    (folder / "chat_template.jinja").write_text("")
    with pytest.raises(ArtifactError, match="damaged"):
        push(folder, NAME)
    original = (folder / "eval" / "manifest.json").read_bytes()
    reseal(folder, "chat_template.jinja", b"")
    reseal(folder, "eval/manifest.json", original + f" {WRITE}".encode())
    with pytest.raises(ArtifactError, match="token"):
        push(folder, NAME)
    assert not hub.log


@pytest.mark.parametrize("token", [WRITE, EXPIRED])
def test_the_command_uploads_and_never_prints_the_token(hub, root, tmp_path, token):
    env = hub.env(tmp_path, token) | {"PYTHONPATH": str(ROOT), "HF_DEBUG": "1"}
    words = ["publish", "--model", "merged", "--out", "release", "--push"]
    command = [sys.executable, "-m", "countdown_rl", *words, NAME]
    done = subprocess.run(command, env=env, cwd=root, capture_output=True, text=True)
    assert done.returncode == (token == EXPIRED), done.stderr
    assert token not in done.stdout + done.stderr
    assert "%|" not in done.stderr  # a progress bar
    assert (f"{hub.url}/{NAME} (private, v1)" in " ".join(done.stderr.split())) == (token == WRITE)
