"""The release folder: its inputs are found and checked, and it is built whole, the same way each time, or not."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from countdown_rl.core import artifacts
from countdown_rl.core.errors import ArtifactError, UsageError
from countdown_rl.evaluation import results
from countdown_rl.models import reference
from countdown_rl.release import demo, folder, upload
from countdown_rl.release.config import PublishOptions, UploadOptions
from tests.support import release_chain, tiny_llama

OUT = Path("release")
MERGED = PublishOptions(model="merged")


def build(**options) -> artifacts.Manifest:
    return folder.build(dataclasses.replace(MERGED, **options), OUT)


def page() -> str:
    return ModelCard.load(OUT / "README.md").text


def test_the_release_holds_the_weights_and_the_chain(root):
    manifest = build()
    merged = artifacts.read(Path("merged"), "merged")
    changed = {"generation_config.json"}  # to the tokens that end a completion
    assert {name for name, entry in merged.files.items() if manifest.files[name] != entry} <= changed
    evaluation = {f"eval/{name}" for name in ("manifest.json", "metrics.json", "details.json", "samples.jsonl")}
    assert manifest.files.keys() - merged.files.keys() == {"README.md", *evaluation}
    assert results.read(OUT / "eval") == results.read(Path("eval/merged"))
    kinds = [link.kind for link in artifacts.chain(manifest.inputs["model"])]
    assert kinds == ["data", "model", "adapter", "merged"]
    assert manifest.facts["accuracy"] == 0.62
    assert {"eval", "comparison"} <= manifest.inputs.keys()
    assert reference.resolve("release").manifest == manifest


def test_the_same_artifacts_give_the_same_bytes(root):
    release_chain.log_of(Path())
    first = build()
    files = {path: path.read_bytes() for path in OUT.rglob("*") if path.is_file()}
    assert build().digest == first.digest
    assert {path: path.read_bytes() for path in OUT.rglob("*") if path.is_file()} == files


def test_weights_are_hashed_only_while_they_are_copied(hub, root, monkeypatch):
    hashed = []
    original = artifacts.file_sha256
    monkeypatch.setattr(artifacts, "file_sha256", lambda path: hashed.append(path.name) or original(path))
    upload.push(OUT, build(), UploadOptions(push=True, repo_id="me/tiny"))
    assert "README.md" in hashed
    assert "model.safetensors" not in hashed


def test_a_gguf_alone_is_a_release(root):
    manifest = build(model="gguf")
    assert "model-q8_0.gguf" in manifest.files
    assert manifest.facts["name"] == "base-countdown-grpo-gguf"
    assert manifest.facts["accuracy"] == 0.6


def test_an_evaluation_of_the_gguf_file_is_one_of_its_artifact(root):
    data = artifacts.file_input(Path("data/test.jsonl"))
    file = artifacts.file_input(Path("gguf/model-q8_0.gguf"))
    with artifacts.writing(Path("eval/file"), "eval", options={}, inputs={"model": file, "data": data}) as draft:
        for path in Path("eval/gguf").glob("*.json*"):
            if path.name != "manifest.json":
                shutil.copyfile(path, draft.path / path.name)
    assert build(model="gguf", evaluation="eval/file").facts["accuracy"] == 0.6


def test_an_adapter_names_its_base_on_the_hub(root):
    with pytest.raises(UsageError, match="--base-model"):
        build(model="adapter")
    build(model="adapter", base_model="some/base", license="mit")
    config = json.loads(Path("release/adapter_config.json").read_bytes())
    assert config["base_model_name_or_path"] == "some/base"
    data = ModelCard.load(OUT / "README.md").data
    assert (data.library_name, data.base_model_relation) == ("peft", "adapter")


def test_a_name_that_is_not_an_id_on_the_hub_is_wrong_usage(root):
    with pytest.raises(UsageError, match="--base-model"):
        build(license="mit", base_model="not an id")


def test_an_evaluation_of_other_weights_is_refused(root):
    release_chain.again(Path(), "merged", seed=5)
    with pytest.raises(ArtifactError, match=r"other weights .*countdown-rl eval --model merged"):
        build()
    with pytest.raises(ArtifactError, match="other weights"):
        build(evaluation="eval/base")
    assert not OUT.exists()


def test_a_comparison_without_this_evaluation_is_refused_or_left_out(root):
    release_chain.evaluate(Path(), "merged", accuracy=0.7)
    with pytest.raises(ArtifactError, match="not about these weights"):
        build(comparison="eval/comparison")
    assert "comparison" not in build().inputs


@pytest.mark.parametrize("key", ["data", "from"])
def test_weights_evaluated_on_the_file_that_they_were_trained_on_are_refused(root, key):
    file = artifacts.file_input(Path("data/test.jsonl"))
    shutil.rmtree("merged")
    with artifacts.writing(Path("merged"), "model", options={}, inputs={key: file}) as draft:
        tiny_llama.checkpoint(draft.path)
    release_chain.evaluate(Path(), "merged", accuracy=0.99)
    with pytest.raises(ArtifactError, match="used in training"):
        build()


def test_weights_evaluated_on_their_training_puzzles_are_refused(root):
    data = artifacts.read(Path("data"), "data")
    shutil.rmtree("data")
    with artifacts.writing(Path("data"), "data", options=data.options) as draft:
        (draft.path / "train.jsonl").write_text('{"nums": [1, 2], "target": 3}\n')
    data = artifacts.read(Path("data"), "data").as_input()
    shutil.rmtree("merged")
    with artifacts.writing(Path("merged"), "model", options={}, inputs={"data": data}) as draft:
        tiny_llama.checkpoint(draft.path)
    release_chain.evaluate(Path(), "merged", accuracy=0.99, puzzles=Path("data/train.jsonl"))
    with pytest.raises(ArtifactError, match="used in training"):
        build()


def test_the_card_of_weights_without_an_evaluation_says_so(root):
    shutil.rmtree("eval")
    build()
    assert "have not been evaluated" in page()
    assert ModelCard.load(OUT / "README.md").data.eval_results is None


def test_the_curves_are_drawn_from_the_log_of_this_training(root):
    release_chain.log_of(Path())
    build()
    assert "](curves.svg)" in page()
    assert Path("release/curves.svg").read_text("utf-8").startswith("<svg xmlns=")


def test_the_log_of_another_training_is_left_out_or_refused(root):
    log = release_chain.log_of(Path(), steps=3)
    assert "curves.svg" not in build().files
    with pytest.raises(ArtifactError, match="not about these weights"):
        build(log=str(log))


@pytest.mark.parametrize(
    ("harm", "word"),
    [
        (lambda: Path("merged/config.json").write_text("{}"), "damaged"),
        (lambda: Path("merged/model.safetensors").write_bytes(bytes(Path("merged/model.safetensors").stat().st_size)), "damaged"),  # noqa: E501
        (lambda: Path("merged/model.safetensors").unlink(), "missing"),
        (lambda: Path("merged/manifest.json").unlink(), "manifest"),
        (lambda: shutil.rmtree("merged"), "countdown-rl merge"),
        (lambda: Path("eval/merged/metrics.json").unlink(), "missing"),
        (lambda: Path("eval/merged/manifest.json").write_text("{"), "damaged"),
        (lambda: Path("eval/comparison/manifest.json").write_text("{"), "damaged"),
        (lambda: Path("release").write_text("a file"), "is a file"),
        (lambda: shutil.copytree("base", "release"), "holds a model artifact"),
    ],
)  # fmt: skip
def test_a_broken_chain_is_one_sentence(root, harm, word):
    harm()
    with pytest.raises(ArtifactError, match=word) as raised:
        build()
    assert "\n" not in str(raised.value)
    assert not Path("release/README.md").exists()


def test_a_changed_configuration_of_an_adapter_is_refused(root):
    path = Path("adapter/adapter_config.json")
    path.write_text(path.read_text().replace('"lora_alpha": 8', '"lora_alpha": 9'))
    with pytest.raises(ArtifactError, match="damaged"):
        build(model="adapter", base_model="some/base", license="mit")


@pytest.mark.parametrize(
    ("option", "value"), [("name", "x\nlicense: mit"), ("license", "\x1b"), ("trained_on", ("\u202e",))]
)
def test_a_card_takes_printable_names_of_one_line(option, value):
    with pytest.raises(UsageError, match="printable"):
        PublishOptions(**{option: value})


def test_a_chain_that_was_changed_afterwards_is_refused(root):
    path = Path("merged/manifest.json")
    manifest = json.loads(path.read_bytes())
    manifest["inputs"]["adapter"]["manifest"]["options"]["learning_rate"] = 1.0
    path.write_bytes(artifacts.Manifest(**manifest).to_bytes())
    with pytest.raises(ArtifactError, match="manifest of adapter"):
        build()


def test_the_command_takes_the_results_beside_the_weights(root, command):
    done = command("publish", "--model", "merged", "--out", "release", "--json")
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert (result["accuracy"], result["n"]) == (0.62, 100)
    assert {"eval", "comparison"} <= artifacts.read(OUT, "release").inputs.keys()
    assert not done.stderr


def test_a_failed_command_leaves_the_release_that_was_there(root, command):
    build()
    before = artifacts.read(OUT, "release")
    release_chain.again(Path(), "merged", seed=5)
    done = command("publish", "--model", "merged", "--out", "release")
    assert isinstance(done.exception, ArtifactError)
    assert artifacts.read(OUT, "release") == before


@pytest.mark.parametrize("words", [["--public"], ["--repo-id", "me/x"], ["--push"]])
def test_options_of_the_upload_go_together(root, command, words):
    assert isinstance(command("publish", "--model", "merged", *words).exception, UsageError)


def test_a_release_carries_the_page_of_its_gguf(root, command, monkeypatch):
    monkeypatch.setattr(demo, "text", lambda file, chain: f"<page of {file}>")
    done = command("publish", "--model", "gguf", "--with-demo", "--out", "release")
    assert done.exit_code == 0, done.output
    assert Path("release/index.html").read_text() == "<page of gguf/model-q8_0.gguf>"
    assert "index.html" in artifacts.read(Path("release"), "release").files
    assert "Open `index.html`" in Path("release/README.md").read_text()
    done = command("publish", "--model", "merged", "--with-demo", "--out", "other")
    assert "--format gguf" in str(done.exception)
    assert not Path("other").exists()


def test_a_release_decodes_as_it_was_measured(root):
    """Weights that an older version merged have the base's sampling settings."""
    config = {"eos_token_id": [1, 2], "pad_token_id": 0, "repetition_penalty": 1.1, "do_sample": True, "max_length": 20}
    inputs = artifacts.read(Path("merged"), "merged").inputs
    with artifacts.writing(Path("older"), "merged", options={}, inputs=inputs) as draft:
        for file in Path("merged").iterdir():
            shutil.copyfile(file, draft.path / file.name)
        (draft.path / "manifest.json").unlink()
        (draft.path / "generation_config.json").write_text(json.dumps(config))
    folder.build(PublishOptions(model="older", name="older"), OUT)
    assert json.loads((OUT / "generation_config.json").read_text()) == {"eos_token_id": [1, 2], "pad_token_id": 0}
