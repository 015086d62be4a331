"""The release folder: its inputs are found and checked, and it is built whole, the same way each time, or not."""

import json
import shutil
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from countdown_rl.core import artifacts
from countdown_rl.core.errors import ArtifactError, UsageError
from countdown_rl.core.manifest import Manifest, file_input
from countdown_rl.evaluation import results
from countdown_rl.models import reference
from countdown_rl.release import folder
from countdown_rl.release.config import PublishOptions, UploadOptions
from tests.support import release_chain
from tests.support.runs import files

OUT = Path("release")
TOKEN = "hf_" + "a" * 30


def build(**options) -> Manifest:
    return folder.build(PublishOptions(**{"model": "merged"} | options), OUT)


def remake(name: str, kind: str, change=lambda path: None, **described) -> None:
    """Write the artifact *name* again, with its files as *change* leaves them and other options or inputs if given."""
    manifest = artifacts.read(Path(name), kind)
    described = {"options": manifest.options, "inputs": manifest.inputs} | described
    with artifacts.writing(Path(name), kind, **described) as draft:
        for file in manifest.files:
            shutil.copyfile(Path(name) / file, draft.path / file)
        change(draft.path)


def test_the_release_holds_the_weights_and_the_chain(root):
    manifest = build()
    merged = artifacts.read(Path("merged"), "merged")
    assert merged.files.items() <= manifest.files.items()
    added = manifest.files.keys() - merged.files.keys()
    assert added == {"README.md", *(f"eval/{name}" for name in files(Path("eval/merged")))}
    assert results.read(OUT / "eval") == results.read(Path("eval/merged"))
    kinds = [link.kind for link in manifest.chain("model")]
    assert kinds == ["data", "model", "adapter", "merged"]
    assert (manifest.facts["accuracy"], manifest.facts["license"]) == (0.62, "apache-2.0")
    assert {"eval", "comparison"} <= manifest.inputs.keys()
    assert reference.find_model("release").manifest == manifest
    release_chain.log_of(Path())
    build()
    first = files(OUT)
    build()
    assert files(OUT) == first


def test_an_evaluation_of_the_gguf_file_is_one_of_its_artifact(root):
    remake("eval/gguf", "eval", inputs={"model": file_input(Path("gguf/model-q8_0.gguf"))})
    manifest = build(model="gguf")
    assert manifest.facts["accuracy"] == 0.6
    assert "model-q8_0.gguf" in manifest.files


def test_an_adapter_names_its_base_on_the_hub(root):
    with pytest.raises(UsageError, match="--base-model"):
        build(model="adapter")
    build(model="adapter", base_model="some/base", license="mit")
    config = json.loads(Path("release/adapter_config.json").read_bytes())
    assert config["base_model_name_or_path"] == "some/base"
    assert ModelCard.load(OUT / "README.md").data.base_model_relation == "adapter"


def test_an_evaluation_of_other_weights_is_refused(root):
    release_chain.again(Path(), "merged", seed=5)
    with pytest.raises(ArtifactError, match=r"other weights .*countdown-rl eval --model merged"):
        build()
    with pytest.raises(ArtifactError, match="other weights"):
        build(evaluation="eval/base")
    assert not OUT.exists()


def test_a_comparison_and_a_log_of_others_are_left_out(root):
    log = release_chain.log_of(Path(), steps=3)
    release_chain.evaluate(Path(), "merged", accuracy=0.7)
    with pytest.raises(ArtifactError, match="not of the run"):
        build(log=str(log))
    manifest = build()
    assert not {"comparison", "log"} & manifest.inputs.keys()
    assert "curves.svg" not in manifest.files


def test_weights_evaluated_on_puzzles_that_they_were_trained_on_are_refused(root):
    release_chain.evaluate(Path(), "merged", accuracy=0.99, trained=3)
    with pytest.raises(ArtifactError, match="used in training"):
        build()


@pytest.mark.parametrize(
    ("harm", "word"),
    [
        (lambda: Path("merged/config.json").write_text("{}"), "damaged"),
        (lambda: shutil.rmtree("merged"), "countdown-rl merge"),
        (lambda: shutil.copytree("base", "release"), "holds a model artifact"),
    ],
)
def test_a_broken_chain_leaves_nothing(root, harm, word):
    harm()
    with pytest.raises(ArtifactError, match=word):
        build()
    assert not Path("release/README.md").exists()


def test_weights_other_than_safetensors_and_gguf_are_left_out(root):
    shutil.rmtree("eval")
    remake("merged", "merged", lambda path: (path / "pytorch_model.bin").write_bytes(b"pickle"))
    assert not [name for name in build().files if name.endswith(".bin")]


def test_options_that_no_release_can_have_are_wrong_usage():
    with pytest.raises(UsageError):
        PublishOptions(base_model="not an id")
    with pytest.raises(UsageError, match="--push"):
        UploadOptions(public=True)


def test_the_license_is_read_from_the_card_of_the_base_unless_it_is_given(hub, root, tmp_path):
    assert build(base_model="some/base", license="mit").facts["license"] == "mit"
    assert not hub.log  # nobody was asked
    assert folder.base_license("some/base", None) == {}
    (tmp_path / "card").mkdir()
    (tmp_path / "card/README.md").write_text("---\nlicense: llama3.1\n---\n")
    hub.add_model("some/base", tmp_path / "card")
    assert folder.base_license("some/base", None) == {"license": "llama3.1"}


@pytest.mark.parametrize("described", [{}, {"options": {"note": TOKEN}}])
def test_a_token_is_in_no_release(root, described):
    shutil.rmtree("eval")
    text = "" if described else f"# {TOKEN}"
    remake("gguf", "quantized", lambda path: (path / "Modelfile").write_text(text), **described)
    with pytest.raises(ArtifactError, match="token") as raised:
        build(model="gguf")
    assert TOKEN not in str(raised.value)
    assert not OUT.exists()
