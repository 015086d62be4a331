"""A release says what it is, of what it was made, and how good it is; or it is not built."""

import dataclasses
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from countdown_rl import artifacts
from countdown_rl.errors import ArtifactError, HubError, ModelError, UsageError
from countdown_rl.hub import release
from countdown_rl.hub.config import PublishOptions
from countdown_rl.hub.sources import Sources
from countdown_rl.models import reference
from tests.support import release_chain, tiny_llama

ROOT = Path(__file__).parents[2]
NONE = PublishOptions()


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    return release_chain.chain(tmp_path_factory.mktemp("chain"))


@pytest.fixture
def root(made, tmp_path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "root"))


def build(root: Path, options: PublishOptions = NONE, model: str = "merged", **given) -> artifacts.Manifest:
    given = {"measured": (root / "eval" / model,), "comparison": root / "eval" / "comparison"} | given
    return release.build(Sources(str(root / model), **given), root / "release", options)


def card(root: Path) -> ModelCard:
    return ModelCard.load(root / "release" / "README.md")


def test_the_release_holds_the_weights_and_the_whole_chain(root):
    manifest = build(root)
    merged = artifacts.read(root / "merged", "merged")
    assert merged.files.items() <= manifest.files.items()
    assert manifest.files.keys() - merged.files.keys() == {"README.md", "LICENSE"}
    kinds = [link.kind for link in artifacts.chain(manifest.inputs["model"])]
    assert kinds == ["data", "model", "adapter", "merged"]
    assert manifest.facts["accuracy"] == 0.62
    assert reference.resolve(str(root / "release")).manifest == manifest


def test_the_same_artifacts_give_the_same_bytes(root):
    first = build(root)
    page = (root / "release" / "README.md").read_bytes()
    assert build(root).digest == first.digest
    assert (root / "release" / "README.md").read_bytes() == page


def test_the_card_is_metadata_that_the_hub_reads(root):
    build(root, PublishOptions(base_model="some/base", license="mit", trained_on=("some/data",)))
    data = card(root).data
    assert (data.library_name, data.pipeline_tag, data.license) == ("transformers", "text-generation", "mit")
    assert (data.base_model, data.base_model_relation) == ("some/base", "finetune")
    assert data.datasets == ["some/data"]
    assert {"countdown-rl", "grpo", "lora"} <= set(data.tags)
    whole, *groups = data.eval_results
    assert (whole.metric_type, whole.metric_value, whole.dataset_split) == ("accuracy", 0.62, "test")
    assert (whole.metric_args["n"], whole.metric_args["interval_95"]) == (100, [0.52, 0.72])
    assert len(groups) == 3


def test_the_card_shows_results_options_checksums_and_the_comparison(root):
    manifest = build(root)
    page = card(root).text
    assert "| all puzzles | 62.0% | 52.0% to 72.0% | 100 |" in page
    assert "| base | 50.0% |" in page
    assert "| learning-rate | 0.0002 |" in page
    for name, entry in manifest.files.items():
        assert name == "README.md" or entry["sha256"] in page
    for link in artifacts.chain(manifest.inputs["model"]):
        assert link.digest[:12] in page
    assert re.search(r"countdown-rl gen-data --out data .*--n 10 .*--seed 42", page)
    assert "countdown-rl eval --model . --data data/test.jsonl --limit 100 --temperature 0.0" in page
    assert str(root) not in page


def test_the_example_on_the_card_runs_as_it_stands(root):
    build(root)
    code = re.search(r"```python\n(.*?)```", card(root).text, re.DOTALL)[1].replace("=256", "=4")
    done = subprocess.run([sys.executable, "-c", code], cwd=root / "release", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_example_on_the_card_puts_the_prompt_that_training_did(root):
    from countdown_rl.models import chat_template
    from countdown_rl.tasks.countdown import CountdownRow

    build(root)
    code = re.search(r"```python\n(.*?)```", card(root).text, re.DOTALL)[1]
    tokenizer = tiny_llama.tokenizer()
    place = {"tokenizer": tokenizer}
    exec(code[code.index("turns = [") : code.index("inputs = ")], place)
    row = CountdownRow({"nums": [19, 36, 55, 7], "target": 65})
    assert place["prompt"] == chat_template.render(tokenizer, row.messages())


def test_an_evaluation_of_other_weights_is_refused(root):
    release_chain.again(root, "merged", seed=5)
    with pytest.raises(ArtifactError, match=r"measured other weights .*countdown-rl eval --model"):
        build(root)
    with pytest.raises(ArtifactError, match="measured other weights"):
        build(root, measured=(root / "eval" / "base",))
    assert not (root / "release").exists()


def test_a_comparison_without_this_evaluation_is_refused(root):
    release_chain.evaluate(root, "merged", accuracy=0.7)
    with pytest.raises(ArtifactError, match="countdown-rl compare"):
        build(root)


def test_too_low_an_accuracy_is_refused(root):
    with pytest.raises(ArtifactError, match=r"solves 62\.0%"):
        build(root, PublishOptions(min_accuracy=0.9))
    with pytest.raises(UsageError, match="--eval"):
        build(root, PublishOptions(min_accuracy=0.5), measured=(), comparison=None)


def test_a_release_without_results_says_so_and_is_not_uploaded(root):
    manifest = build(root, measured=(), comparison=None)
    assert "have not been measured" in card(root).text
    assert card(root).data.eval_results is None
    with pytest.raises(HubError, match="--unmeasured"):
        release.check_measured(manifest)


@pytest.mark.parametrize(
    ("spoil", "error", "sentence"),
    [
        (lambda root: (root / "merged" / "config.json").write_text("{}"), ArtifactError, "damaged"),
        (lambda root: (root / "merged" / "model.safetensors").unlink(), ArtifactError, "missing"),
        (lambda root: (root / "merged" / "manifest.json").unlink(), ArtifactError, "no manifest"),
        (lambda root: shutil.rmtree(root / "merged"), ModelError, "countdown-rl merge"),
        (lambda root: (root / "eval" / "merged" / "metrics.json").unlink(), ArtifactError, "missing"),
        (lambda root: shutil.rmtree(root / "eval" / "merged"), ArtifactError, "countdown-rl eval"),
        (lambda root: (root / "release").write_text("a file"), ArtifactError, "is a file"),
        (lambda root: shutil.copytree(root / "base", root / "release"), ArtifactError, "holds a model artifact"),
    ],
)
def test_a_broken_chain_is_one_sentence(root, spoil, error, sentence):
    spoil(root)
    with pytest.raises(error, match=sentence) as raised:
        build(root)
    assert "\n" not in str(raised.value)


def test_a_token_in_the_options_of_an_input_is_refused(root):
    manifest = artifacts.read(root / "base", "model")
    shutil.rmtree(root / "base")
    with artifacts.writing(root / "base", "model", options={"note": "hf_" + "a" * 30}, inputs=manifest.inputs) as draft:
        tiny_llama.checkpoint(draft.path)
    with pytest.raises(ArtifactError, match="a token"):
        build(root, model="base", measured=(), comparison=None)
    assert not (root / "release").exists()


def test_a_chain_that_was_changed_afterwards_is_refused(root):
    path = root / "merged" / "manifest.json"
    manifest = json.loads(path.read_bytes())
    manifest["inputs"]["adapter"]["manifest"]["options"]["learning_rate"] = 1.0
    path.write_bytes(artifacts.Manifest(**manifest).to_bytes())
    release_chain.evaluate(root, "merged", accuracy=0.62)
    with pytest.raises(ArtifactError, match="manifest of adapter"):
        build(root, comparison=None)


def test_an_adapter_names_its_base_on_the_hub(root, monkeypatch):
    monkeypatch.chdir(root)  # the base is named by a relative path
    root = Path()
    with pytest.raises(UsageError, match="--base-model"):
        build(root, model="adapter", measured=(), comparison=None)
    build(root, PublishOptions(base_model="some/base"), model="adapter", measured=(), comparison=None)
    config = json.loads((root / "release" / "adapter_config.json").read_bytes())
    assert config["base_model_name_or_path"] == "some/base"
    data = card(root).data
    assert (data.library_name, data.base_model_relation) == ("peft", "adapter")


def test_a_base_that_is_no_id_is_wrong_usage(root):
    with pytest.raises(UsageError, match="--base-model"):
        build(root, PublishOptions(base_model="not an id"))


def test_what_stands_is_what_was_asked_for(root):
    asked = Sources(str(root / "merged"))

    def standing(options: PublishOptions = NONE, **sources):
        return release.standing(root / "release", options, dataclasses.replace(asked, **sources))

    assert standing() is None
    built = build(root, PublishOptions(license="mit"))
    assert standing() == built
    assert standing(PublishOptions(license="mit")) == built
    assert standing(PublishOptions(license="other")) is None
    assert standing(PublishOptions(min_accuracy=0.9)) is None
    assert standing(measured=(root / "eval" / "base",)) is None
    for other in ("countdown-tiny", str(root / "base"), str(root / "gone")):
        assert standing(model=other) is None
    (root / "merged").rename(root / "away")
    assert standing() == built
    (root / "away").rename(root / "merged")
    release_chain.again(root, "merged", seed=5)
    assert standing() is None


def command(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    words = (sys.executable, "-m", "countdown_rl", "publish", "--model", "merged", "--out", "release", *words)
    return subprocess.run(words, cwd=root, env=env, capture_output=True, text=True)


def test_the_command_finds_the_measurements_beside_the_weights(root):
    done = command(root, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["accuracy"], result["n"], result["built"]) == (0.62, 100, True)
    assert {"eval", "comparison"} <= artifacts.read(root / "release", "release").inputs.keys()
    assert not done.stderr


def test_the_command_refuses_in_a_sentence_and_leaves_what_stood(root):
    assert command(root).returncode == 0
    before = artifacts.read(root / "release", "release")
    release_chain.again(root, "merged", seed=5)
    done = command(root)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert artifacts.read(root / "release", "release") == before
    assert command(root, "--public").returncode == 2
