"""Uploads: complete, once, to the right repository, and without the token in any message."""

import json
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from huggingface_hub import ModelCard, hf_hub_download

from countdown_rl.core import artifacts
from countdown_rl.core.errors import ArtifactError, HubError, UsageError
from countdown_rl.models import reference
from countdown_rl.release import folder
from countdown_rl.release.config import PublishOptions
from tests.support import release_chain
from tests.support.hub import EXPIRED, READ, STRANGER, WRITE, Blob, push

ROOT = Path(__file__).parents[2]
NAME = "me/tiny"


@pytest.fixture(scope="session")
def changed(chain, tmp_path_factory) -> Path:
    """The release of other merged weights. Do not write to it."""
    root = Path(shutil.copytree(chain, tmp_path_factory.mktemp("changed") / "root"))
    release_chain.again(root, "merged", seed=9)
    release_chain.evaluate(root, "merged", accuracy=0.7)
    folder.build(PublishOptions(model=str(root / "merged")), root / "release")
    return root / "release"


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def sent(hub, line: str) -> list[str]:
    return [entry for entry in hub.log if line in entry]


def test_the_repository_holds_the_folder_and_is_private(hub, folder):
    upload = push(folder, NAME)
    there = hub.model(NAME).files
    assert {name: data for name, data in there.items() if name != ".gitattributes"} == {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in files(folder)
    }
    assert hub.model(NAME).private
    assert upload.private
    assert upload.url == f"{hub.url}/{NAME}"
    assert hub.model(NAME).tags == {"v1": upload.commit}
    assert not hub.leaks


def test_weights_load_back_from_the_hub(hub, folder, root, tmp_path):
    push(folder, NAME)
    code = (
        "import torch; from transformers import AutoModelForCausalLM as Auto, AutoTokenizer;"
        "here = Auto.from_pretrained('merged').state_dict()\n"
        f"there = Auto.from_pretrained({NAME!r}, revision='v1').state_dict()\n"
        "assert there.keys() == here.keys() and all(torch.equal(there[key], here[key]) for key in here)\n"
        f"assert AutoTokenizer.from_pretrained({NAME!r}).chat_template"
    )
    done = subprocess.run([sys.executable, "-c", code], env=hub.env(tmp_path), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not hub.leaks


def test_a_gguf_comes_back_from_the_hub_after_a_cut_connection(hub, root, tmp_path):
    folder.build(PublishOptions(model="gguf"), Path("release"))
    push(Path("release"), NAME)
    hub.fail("GET /.store", cut="body")
    there = hf_hub_download(NAME, "model-q8_0.gguf", revision="v1", cache_dir=tmp_path / "cache")
    assert hub.faults[0].times == 0
    assert Path(there).read_bytes() == Path("gguf/model-q8_0.gguf").read_bytes()
    assert not hub.leaks


def test_the_hub_id_is_a_model_reference_at_that_commit(hub, folder):
    upload = push(folder, NAME)
    ref = reference.resolve(NAME)
    assert (ref.kind, ref.revision) == ("hub", upload.commit)
    weights = reference.local_path(ref) / "model.safetensors"
    assert weights.read_bytes() == (folder / "model.safetensors").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("format", ["nf4", "w4a16"])
def test_a_format_that_quantize_writes_comes_back_from_the_hub(hub, root, tmp_path, format):
    from countdown_rl.export import quantize
    from countdown_rl.export.config import QuantizeOptions

    pytest.importorskip("compressed_tensors")
    quantize.quantize_model(reference.resolve("merged"), Path("four"), QuantizeOptions(format=format))
    manifest = folder.build(PublishOptions(model="four"), Path("release"))
    assert manifest.facts["formats"] == {".": format}
    card = ModelCard.load("release/README.md")
    library = {"nf4": "bitsandbytes", "w4a16": "compressed-tensors"}[format]
    assert ("vllm serve" in card.text) == (format == "w4a16")
    assert f"`pip install transformers accelerate {library}`" in card.text
    assert library in card.data.tags
    push(Path("release"), NAME)
    code = (
        "import torch; from transformers import AutoModelForCausalLM as Auto;"
        "ids = torch.arange(5, 25).view(1, 20)\n"
        f"there = Auto.from_pretrained({NAME!r}, dtype=torch.bfloat16);"
        "here = Auto.from_pretrained('four', dtype=torch.bfloat16)\n"
        "assert torch.equal(there(ids).logits, here(ids).logits)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=hub.env(tmp_path), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_second_push_sends_nothing(hub, folder):
    first = push(folder, NAME)
    hub.log.clear()
    second = push(folder, NAME)
    assert (second.commit, second.tag) == (first.commit, "v1")
    assert not any(sent(hub, line) for line in ("PUT", "/commit/", "/tag/"))


def test_a_new_release_sends_what_changed_and_takes_the_next_tag(hub, changed, folder):
    first = push(folder, NAME)
    hub.log.clear()
    second = push(changed, NAME)
    assert len(sent(hub, "PUT /.store")) == 1  # model.safetensors
    assert hub.model(NAME).tags == {"v1": first.commit, "v2": second.commit}


def test_files_that_the_release_does_not_have_are_removed(hub, changed, folder):
    push(folder, NAME)
    repo = hub.model(NAME)
    repo.commit(repo.trees[repo.branches["main"]] | {"photo.png": Blob(b"png", True)})
    push(changed, NAME)
    assert "photo.png" not in repo.files


def test_a_public_repository_needs_the_public_flag(hub, folder):
    assert not push(folder, NAME, public=True).private
    assert not hub.model(NAME).private
    with pytest.raises(HubError, match="give --public"):
        push(folder, NAME)


def test_a_private_repository_becomes_public_on_request(hub, folder):
    push(folder, NAME)
    assert not push(folder, NAME, public=True).private
    assert not hub.model(NAME).private


def test_a_failed_first_upload_leaves_no_public_repository(hub, folder):
    hub.fail("POST .*/commit/", status=403)
    with pytest.raises(HubError):
        push(folder, NAME, public=True)
    assert hub.model(NAME).private
    assert not push(folder, NAME, public=True).private
    assert not hub.model(NAME).private


def test_a_repository_of_another_tool_is_not_overwritten(hub, folder, tmp_path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "README.md").write_text("# theirs")
    (tmp_path / "theirs" / "manifest.json").write_text('{"kind": "something else"}')
    before = hub.add_model(NAME, tmp_path / "theirs", private=True)
    with pytest.raises(HubError, match="did not make it"):
        push(folder, NAME)
    assert hub.model(NAME).branches == {"main": before}


def test_large_files_are_uploaded_in_parts(hub, folder):
    hub.part_size = 50_000
    push(folder, NAME)
    assert len(sent(hub, "PUT /.store")) == 4
    assert hub.model(NAME).files["model.safetensors"] == (folder / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("token", "sentence"),
    [
        (EXPIRED, "expired or revoked"),
        (READ, "does not allow"),
        (STRANGER, "does not allow"),
        ("hf_tök en", "invalid characters"),
        (None, "there is no token"),
    ],
)
def test_an_unusable_token_is_one_sentence(hub, folder, monkeypatch, token, sentence):
    monkeypatch.delenv("HF_TOKEN") if token is None else monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(HubError, match=sentence) as raised:
        push(folder, NAME)
    assert not hub.repos
    if token:
        assert token not in str(raised.value)


def test_a_token_that_expires_during_the_upload_leaves_no_partial_commit(hub, folder):
    hub.fail("PUT /.store", status=500, times=0)
    hub.fail("POST .*/commit/", status=401)
    with pytest.raises(HubError, match="does not accept the token"):
        push(folder, NAME)
    assert set(hub.model(NAME).files) == {".gitattributes"}
    hub.log.clear()
    push(folder, NAME)
    assert not sent(hub, "PUT /.store")  # what was stored is not sent again


@pytest.mark.parametrize(
    "fault",
    [
        {"match": "POST .*/batch", "status": 503, "times": 3},
        {"match": "PUT /.store", "status": 500, "times": 2},
        {"match": "PUT /.store", "cut": "before"},
        {"match": "PUT /.store", "cut": "after"},
        {"match": "POST .*/preupload/", "status": 429, "headers": {"Retry-After": "1"}},
        {"match": "POST .*/commit/", "status": 502},
        {"match": "POST .*/commit/", "cut": "before"},
        {"match": "POST .*/commit/", "cut": "after"},
        {"match": "POST .*/create", "status": 500},
        {"match": "POST .*/create", "cut": "after"},
        {"match": "POST .*/tag/", "cut": "after"},
        {"match": "GET .*/refs", "status": 429, "headers": {"Retry-After": "2"}},
        {"match": "GET /api/models/me/tiny$", "status": 500},
        {"match": "GET /api/models/me/tiny$", "cut": "body"},
        {"match": "POST .*/validate-yaml", "status": 500},
    ],
    ids=lambda fault: " ".join(map(str, fault.values())),
)
def test_a_fault_loses_nothing_and_a_second_run_finishes(hub, folder, fault):
    hub.fail(**fault)
    with suppress(HubError):  # huggingface_hub repeats some requests itself
        push(folder, NAME)
    assert hub.faults[0].times == 0
    hub.faults.clear()
    push(folder, NAME)
    repo = hub.model(NAME)
    assert set(repo.files) == {".gitattributes", *(path.relative_to(folder).as_posix() for path in files(folder))}
    assert len(repo.trees) == 2  # the Hub's own first commit, and one of ours
    assert repo.tags == {"v1": repo.branches["main"]}


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ({"match": "PUT /.store", "status": 500}, "answered 500"),
        ({"match": "POST .*/commit/", "cut": "before"}, "connection broke"),
        ({"match": "POST .*/commit/", "status": 412}, "refused .412."),
        ({"match": "GET", "status": 429, "headers": {"Retry-After": "3600"}}, "asks to wait"),
        ({"match": "POST .*/preupload", "status": 403}, "does not allow"),
        ({"match": "POST .*/validate-yaml", "status": 400}, "does not accept"),
    ],
    ids=lambda value: " ".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_a_lasting_fault_is_one_sentence_and_a_second_run_finishes(hub, folder, fault, sentence):
    hub.fail(**fault, times=100)
    with pytest.raises(HubError, match=sentence) as raised:
        push(folder, NAME)
    assert "\n" not in str(raised.value)
    if NAME in {name for _, name in hub.repos}:
        assert set(hub.model(NAME).files) == {".gitattributes"}
    hub.faults.clear()
    assert push(folder, NAME).tag == "v1"


def test_no_network_is_one_sentence(hub, folder, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(HubError, match="cannot be reached"):
        push(folder, NAME)


def test_offline_mode_is_respected(hub, folder, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(HubError, match="HF_HUB_OFFLINE"):
        push(folder, NAME)
    assert not hub.log


@pytest.mark.parametrize("name", ["tiny", "me/ti ny", "a/b/c", "me/..", "https://hf.co/me/tiny"])
def test_a_name_that_is_not_an_id_is_wrong_usage(hub, folder, name):
    with pytest.raises(UsageError, match="NAME/MODEL"):
        push(folder, name)
    assert not hub.log


def test_a_damaged_release_or_one_with_a_token_is_not_uploaded(hub, folder):
    manifest = json.loads((folder / "manifest.json").read_bytes())
    (folder / "chat_template.jinja").write_text(f"{{# {WRITE} #}}")
    with pytest.raises(ArtifactError, match="damaged"):
        push(folder, NAME)
    manifest["files"]["chat_template.jinja"] = {
        "sha256": artifacts.file_sha256(folder / "chat_template.jinja"),
        "size": (folder / "chat_template.jinja").stat().st_size,
    }
    (folder / "manifest.json").write_bytes(artifacts.Manifest(**manifest).to_bytes())
    with pytest.raises(ArtifactError, match="token"):
        push(folder, NAME)
    assert not hub.log


def test_the_command_builds_and_uploads(hub, root, command):
    words = ("publish", "--model", "merged", "--out", "release", "--push", "--repo-id", NAME)
    for _ in range(2):
        done = command(*words, "--json")
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["upload"]["tag"] == "v1"
        assert WRITE not in done.output
    assert f"{hub.url}/{NAME} (private, v1)" in " ".join(command(*words).stdout.split())


def test_no_output_contains_the_token_when_debugging(hub, root, tmp_path):
    words = ("publish", "--model", "merged", "--out", "release", "--push", "--repo-id", NAME)
    for token in (WRITE, EXPIRED):
        env = hub.env(tmp_path, token) | {"PYTHONPATH": str(ROOT), "HF_DEBUG": "1"}
        done = subprocess.run(
            [sys.executable, "-m", "countdown_rl", *words], env=env, cwd=root, capture_output=True, text=True
        )
        assert done.returncode == (token == EXPIRED), done.stderr
        assert token not in done.stdout + done.stderr
        assert "%|" not in done.stderr  # a progress bar


def test_the_command_asks_for_a_repository_and_a_token(hub, root, command, monkeypatch):
    words = ("publish", "--model", "merged", "--out", "release", "--push")
    assert isinstance(command(*words).exception, UsageError)
    monkeypatch.delenv("HF_TOKEN")
    done = command(*words, "--repo-id", NAME)
    assert isinstance(done.exception, HubError)
    assert "hf auth login" in str(done.exception)
