"""A release goes up whole, once, to the right place, and nothing says the token."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from countdown_rl import artifacts
from countdown_rl.errors import ArtifactError, HubError, UsageError
from countdown_rl.hub import release as publishing
from countdown_rl.hub import upload as uploading
from countdown_rl.hub.config import PublishOptions
from countdown_rl.hub.sources import Sources
from countdown_rl.models import reference
from tests.support import release_chain
from tests.support.hub import EXPIRED, READ, STRANGER, WRITE, Blob

ROOT = Path(__file__).parents[2]
NAME = "me/tiny"


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    root = release_chain.chain(tmp_path_factory.mktemp("chain"))
    publishing.build(
        Sources(str(root / "merged"), measured=(root / "eval" / "merged",)), root / "release", PublishOptions()
    )
    return root


@pytest.fixture
def release(built, tmp_path) -> Path:
    return Path(shutil.copytree(built / "release", tmp_path / "release"))


def other_release(built: Path, tmp_path: Path) -> Path:
    root = tmp_path / "other"
    shutil.copytree(built, root)
    shutil.rmtree(root / "release")
    release_chain.again(root, "merged", seed=9)
    release_chain.evaluate(root, "merged", accuracy=0.7)
    publishing.build(
        Sources(str(root / "merged"), measured=(root / "eval" / "merged",)), root / "release", PublishOptions()
    )
    return root / "release"


def sent(hub, line: str) -> list[str]:
    return [entry for entry in hub.log if line in entry]


def test_what_goes_up_is_the_folder_and_it_is_private(hub, release):
    upload = uploading.push(release, NAME)
    there = hub.model(NAME).files
    assert {name: data for name, data in there.items() if name != ".gitattributes"} == {
        path.relative_to(release).as_posix(): path.read_bytes() for path in release.rglob("*") if path.is_file()
    }
    assert hub.model(NAME).private
    assert upload.private
    assert upload.url == f"{hub.url}/{NAME}"
    assert hub.model(NAME).tags == {"v1": upload.commit}
    assert upload.verified == len(there) - 1
    assert not hub.leaks


def test_the_release_loads_back_from_the_hub(hub, release, tmp_path):
    uploading.push(release, NAME)
    code = (
        "import sys, torch; from transformers import AutoModelForCausalLM, AutoTokenizer;"
        f"there = AutoModelForCausalLM.from_pretrained({NAME!r}, revision='v1').state_dict();"
        f"here = AutoModelForCausalLM.from_pretrained({str(release)!r}).state_dict();"
        "assert there.keys() == here.keys() and all(torch.equal(there[key], here[key]) for key in here);"
        f"assert AutoTokenizer.from_pretrained({NAME!r}).chat_template"
    )
    done = subprocess.run([sys.executable, "-c", code], env=hub.env(tmp_path), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not hub.leaks


def test_the_hub_id_is_a_model_reference_at_that_commit(hub, release):
    upload = uploading.push(release, NAME)
    ref = reference.resolve(NAME)
    assert (ref.kind, ref.revision) == ("hub", upload.commit)
    weights = reference.files(ref) / "model.safetensors"
    assert weights.read_bytes() == (release / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_four_bit_weights_load_back_as_four_bit(hub, built, tmp_path):
    from countdown_rl.export import quantize
    from countdown_rl.export.config import QuantizeOptions

    merged = reference.resolve(str(built / "merged"))
    quantize.quantize(merged, tmp_path / "quantized", QuantizeOptions())
    publishing.build(Sources(str(tmp_path / "quantized")), tmp_path / "release", PublishOptions())
    uploading.push(tmp_path / "release", NAME)
    code = (
        "import torch; from transformers import AutoModelForCausalLM;"
        f"there = AutoModelForCausalLM.from_pretrained({NAME!r}).state_dict();"
        f"here = AutoModelForCausalLM.from_pretrained({str(tmp_path / 'quantized')!r}).state_dict();"
        "assert there.keys() == here.keys() and all(torch.equal(there[key], here[key]) for key in here);"
        "assert any('quant_state' in key for key in there)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=hub.env(tmp_path), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_second_push_sends_nothing(hub, release):
    first = uploading.push(release, NAME)
    hub.log.clear()
    second = uploading.push(release, NAME)
    assert (second.uploaded, second.removed, second.unchanged) == ([], [], first.verified)
    assert (second.commit, second.tag) == (first.commit, "v1")
    assert not any(sent(hub, line) for line in ("PUT", "/commit/", "/tag/"))


def test_a_new_release_sends_what_changed_and_takes_the_next_tag(hub, built, release, tmp_path):
    first = uploading.push(release, NAME)
    second = uploading.push(other_release(built, tmp_path), NAME)
    assert second.uploaded == ["README.md", "model.safetensors", "manifest.json"]
    assert hub.model(NAME).tags == {"v1": first.commit, "v2": second.commit}
    assert uploading.push(release, NAME, tag="v1").uploaded == second.uploaded


def test_what_a_person_added_stays_and_what_this_tool_put_there_goes(hub, built, release, tmp_path):
    uploading.push(release, NAME)
    repo = hub.model(NAME)
    tree = dict(repo.trees[repo.branches["main"]])
    repo.commit(tree | {"photo.png": Blob(b"png", True)})
    other = other_release(built, tmp_path)
    manifest = json.loads((other / "manifest.json").read_bytes())
    del manifest["files"]["generation_config.json"]
    (other / "generation_config.json").unlink()
    (other / "manifest.json").write_bytes(artifacts.Manifest(**manifest).to_bytes())
    assert uploading.push(other, NAME).removed == ["generation_config.json"]
    assert "photo.png" in repo.files
    assert "generation_config.json" not in repo.files


def test_a_public_repository_is_made_only_when_asked_for(hub, release):
    assert not uploading.push(release, NAME, public=True).private
    assert not hub.model(NAME).private
    with pytest.raises(HubError, match="give --public"):
        uploading.push(release, NAME)


def test_a_private_repository_is_opened_once_everything_is_there(hub, release):
    uploading.push(release, NAME)
    assert not uploading.push(release, NAME, public=True).private
    assert not hub.model(NAME).private


def test_what_another_tool_made_is_not_overwritten_without_force(hub, release, tmp_path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "README.md").write_text("# theirs")
    (tmp_path / "theirs" / "manifest.json").write_text('{"kind": "something else"}')
    before = hub.add_model(NAME, tmp_path / "theirs", private=True)
    with pytest.raises(HubError, match="did not make it"):
        uploading.push(release, NAME)
    assert hub.model(NAME).branches == {"main": before}
    uploading.push(release, NAME, force=True)
    assert hub.model(NAME).files["README.md"] == (release / "README.md").read_bytes()


def test_a_tag_that_is_taken_is_not_moved(hub, built, release, tmp_path):
    uploading.push(release, NAME, tag="paper")
    with pytest.raises(HubError, match="tag paper"):
        uploading.push(other_release(built, tmp_path), NAME, tag="paper")
    assert len(hub.model(NAME).tags) == 1


def test_large_files_go_up_in_parts(hub, release):
    hub.part_size = 50_000
    uploading.push(release, NAME)
    assert len(sent(hub, "PUT /.store")) == 4
    assert hub.model(NAME).files["model.safetensors"] == (release / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("token", "sentence"),
    [
        (EXPIRED, "expired or revoked"),
        (READ, "may not write"),
        (STRANGER, "may not write"),
        ("hf_tök en", "holds characters"),
        (None, "there is no token"),
    ],
)
def test_a_token_that_does_not_do_is_one_sentence(hub, release, monkeypatch, token, sentence):
    monkeypatch.delenv("HF_TOKEN") if token is None else monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(HubError, match=sentence) as raised:
        uploading.push(release, NAME)
    assert not hub.repos
    if token:
        assert token not in str(raised.value)


def test_a_token_that_expires_half_way_leaves_nothing_half_visible(hub, release):
    hub.fail("PUT /.store", status=500, times=0)
    hub.fail("POST .*/commit/", status=401)
    with pytest.raises(HubError, match="does not accept the token"):
        uploading.push(release, NAME)
    assert set(hub.model(NAME).files) == {".gitattributes"}
    hub.log.clear()
    uploading.push(release, NAME)
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
        {"match": "GET .*/tree/", "cut": "body"},
        {"match": "GET .*/refs", "status": 429, "headers": {"Retry-After": "2"}},
        {"match": "GET .*/whoami", "status": 500},
        {"match": "POST .*/validate-yaml", "status": 500},
    ],
    ids=lambda fault: " ".join(map(str, fault.values())),
)
def test_a_fault_that_passes_loses_nothing(hub, release, fault):
    hub.fail(**fault)
    upload = uploading.push(release, NAME)
    assert hub.faults[0].times == 0
    repo = hub.model(NAME)
    assert set(repo.files) == {".gitattributes", *upload.uploaded}
    assert len(repo.trees) == 2  # the Hub's own first commit, and one of ours
    assert repo.tags == {"v1": upload.commit}


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ({"match": "PUT /.store", "status": 500}, "answered 500 again and again"),
        ({"match": "POST .*/commit/", "cut": "before"}, "connection broke"),
        ({"match": "POST .*/commit/", "status": 412}, "changed by someone else"),
        ({"match": "GET", "status": 429, "headers": {"Retry-After": "3600"}}, "asks to wait 3600 s"),
        ({"match": "GET", "status": 429, "headers": {"Retry-After": "Fri, 01 Jan 2999 00:00:00 GMT"}}, "asks to wait"),
        ({"match": "GET", "status": 429, "headers": {"RateLimit": '"api";r=0;t=900'}}, "asks to wait 900 s"),
        ({"match": "POST .*/preupload", "status": 403}, "may not write"),
        ({"match": "POST .*/validate-yaml", "status": 400}, "does not accept"),
    ],
    ids=lambda value: " ".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_a_fault_that_stays_is_one_sentence_and_a_second_run_finishes(hub, release, fault, sentence):
    hub.fail(**fault, times=100)
    with pytest.raises(HubError, match=sentence) as raised:
        uploading.push(release, NAME)
    assert "\n" not in str(raised.value)
    if NAME in {name for _, name in hub.repos}:
        assert set(hub.model(NAME).files) == {".gitattributes"}
    hub.faults.clear()
    assert uploading.push(release, NAME).verified


def test_no_network_is_one_sentence(hub, release, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(HubError, match="cannot be reached"):
        uploading.push(release, NAME)


def test_offline_mode_is_respected(hub, release, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(HubError, match="HF_HUB_OFFLINE"):
        uploading.push(release, NAME)
    assert not hub.log


@pytest.mark.parametrize("name", ["tiny", "me/ti ny", "a/b/c", "me/..", "https://hf.co/me/tiny"])
def test_a_name_that_is_none_is_wrong_usage(hub, release, name):
    with pytest.raises(UsageError, match="NAME/MODEL"):
        uploading.push(release, name)
    assert not hub.log


def test_a_damaged_release_or_one_with_a_token_in_it_stays_here(hub, release):
    manifest = json.loads((release / "manifest.json").read_bytes())
    (release / "chat_template.jinja").write_text(f"{{# {WRITE} #}}")
    with pytest.raises(ArtifactError, match="damaged"):
        uploading.push(release, NAME)
    manifest["files"]["chat_template.jinja"] = {
        "sha256": artifacts.file_sha256(release / "chat_template.jinja"),
        "size": (release / "chat_template.jinja").stat().st_size,
    }
    (release / "manifest.json").write_bytes(artifacts.Manifest(**manifest).to_bytes())
    with pytest.raises(ArtifactError, match="looks like a token"):
        uploading.push(release, NAME)
    assert not hub.log


def command(*words: str, env: dict[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    env = env | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-m", "countdown_rl", "publish", *words], env=env, cwd=cwd, capture_output=True, text=True
    )


def test_the_command_pushes_what_stands_and_never_says_the_token(hub, built, tmp_path):
    work = Path(shutil.copytree(built, tmp_path / "work"))
    shutil.rmtree(work / "release")
    where = ("--model", "merged", "--out", "release")
    assert command(*where, "--license", "mit", env=os.environ.copy(), cwd=work).returncode == 0
    before = (work / "release" / "manifest.json").read_bytes()
    outputs = []
    for _ in range(2):
        done = command(*where, "--push", "--repo-id", NAME, "--json", env=hub.env(tmp_path), cwd=work)
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout)
        assert not result["built"]
        outputs += [done.stdout, done.stderr]
    assert result["upload"]["uploaded"] == []
    assert (work / "release" / "manifest.json").read_bytes() == before
    debug = hub.env(tmp_path, EXPIRED) | {"COUNTDOWN_RL_DEBUG": "1", "HF_DEBUG": "1"}
    done = command(*where, "--push", "--repo-id", NAME, env=debug, cwd=work)
    outputs += [done.stdout, done.stderr]
    assert done.returncode == 1
    for output in outputs:
        assert not any(token in output for token in (WRITE, EXPIRED))


def test_the_command_says_what_is_missing(hub, built, tmp_path):
    env = hub.env(tmp_path, None)
    done = command("--model", "merged", "--out", "release", "--push", env=env, cwd=built)
    assert done.returncode == 2
    assert "--repo-id" in done.stderr
    done = command("--model", "merged", "--out", "release", "--push", "--repo-id", NAME, env=env, cwd=built)
    assert done.returncode == 1
    assert done.stderr.count("error:") == 1
    assert "hf auth login" in done.stderr


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7),
        ({"Retry-After": "Thu, 01 Jan 1970 00:00:30 GMT"}, 2),
        ({"RateLimit": '"api";r=0;t=55'}, 55),
        ({"RateLimit": '"api";r=3;t=55'}, 2),
        ({}, 2),
    ],
)
def test_it_waits_as_long_as_the_hub_asks(hub, release, monkeypatch, headers, seconds):
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    hub.fail("GET .*/whoami", status=429, headers=headers)
    uploading.push(release, NAME)
    assert waited == [seconds]
