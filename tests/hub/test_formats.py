"""A release in several forms: what lies where, what is said of each, and under which terms."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from huggingface_hub import EvalResultEntry, ModelCard, hf_hub_download, parse_eval_result_entries

from countdown_rl import artifacts
from countdown_rl.errors import ArtifactError, HubError, InputError, UsageError
from countdown_rl.hub import licenses, release, upload
from countdown_rl.hub.config import PublishOptions
from countdown_rl.hub.sources import Sources, completed
from countdown_rl.runlog import plots
from tests.support import release_chain, tiny_llama

ROOT = Path(__file__).parents[2]
NAME = "me/tiny"
NONE = PublishOptions()


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    root = release_chain.chain(tmp_path_factory.mktemp("chain"))
    release_chain.quantized(root, "gguf")
    release_chain.evaluate(root, "gguf", accuracy=0.6)
    release_chain.log_of(root)
    return root


@pytest.fixture
def root(made, tmp_path, monkeypatch) -> Path:
    shutil.copytree(made, tmp_path / "root")
    monkeypatch.chdir(tmp_path / "root")
    return Path()


def build(options: PublishOptions = NONE, model: str = "merged", also: tuple[str, ...] = (), **given):
    return release.build(completed(Sources(model, also, **given)), Path("release"), options)


def page() -> str:
    return ModelCard.load("release/README.md").text


def test_each_form_lies_whole_in_a_folder_of_its_name(root):
    manifest = build(also=("gguf",))
    assert manifest.facts["forms"] == {".": "full", "./gguf": "gguf"}
    for name, entry in artifacts.read(Path("gguf"), "quantized").files.items():
        assert manifest.files[f"gguf/{name}"] == entry
    assert {"eval", "gguf-eval"} <= manifest.inputs.keys()
    assert (
        "| GGUF for llama.cpp, Ollama and what is built on them | `./gguf` | 60.0% | 50.0% to 70.0% | 100 |" in page()
    )
    assert "llama-cli -m gguf/model-q8_0.gguf" in page()
    assert "ollama create countdown -f gguf/Modelfile" in page()
    tags = ModelCard.load("release/README.md").data.tags
    assert {"gguf", "llama.cpp"} <= set(tags)


def test_a_gguf_alone_is_a_release(root):
    manifest = build(model="gguf")
    assert "model-q8_0.gguf" in manifest.files
    assert manifest.facts["name"] == "base-countdown-grpo-gguf"
    assert manifest.facts["accuracy"] == 0.6
    assert ModelCard.load("release/README.md").data.library_name == "gguf"
    assert "llama-cli -m model-q8_0.gguf" in page()


def test_an_evaluation_of_the_gguf_file_counts_as_one_of_its_artifact(root):
    data = artifacts.file_input(Path("data/test.jsonl"))
    metrics = Path("eval/gguf/details.json").read_bytes()
    file = artifacts.file_input(Path("gguf/model-q8_0.gguf"))
    with artifacts.writing(Path("eval/file"), "eval", options={}, inputs={"model": file, "data": data}) as draft:
        (draft.path / "details.json").write_bytes(metrics)
    assert build(model="gguf", measured=(Path("eval/file"),)).facts["accuracy"] == 0.6


def test_a_gguf_comes_back_from_the_hub_as_it_was_sent(hub, root, tmp_path):
    build(also=("gguf",))
    upload.push(Path("release"), NAME)
    hub.fail("GET /.store", cut="body")
    there = hf_hub_download(NAME, "gguf/model-q8_0.gguf", revision="v1", cache_dir=tmp_path / "cache")
    assert hub.faults[0].times == 0
    assert Path(there).read_bytes() == Path("gguf/model-q8_0.gguf").read_bytes()
    assert not hub.leaks


def test_a_form_in_a_folder_loads_from_the_hub(hub, root, tmp_path):
    build(model="gguf", also=("merged",))
    upload.push(Path("release"), NAME)
    code = (
        "import torch; from transformers import AutoModelForCausalLM;"
        f"there = AutoModelForCausalLM.from_pretrained({NAME!r}, subfolder='merged').state_dict();"
        "here = AutoModelForCausalLM.from_pretrained('merged').state_dict();"
        "assert there.keys() == here.keys() and all(torch.equal(there[key], here[key]) for key in here)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=hub.env(tmp_path), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_adapter_goes_along_by_option_and_names_its_base(root):
    build(PublishOptions(base_model="some/base"), also=("adapter",))
    config = json.loads(Path("release/adapter/adapter_config.json").read_bytes())
    assert config["base_model_name_or_path"] == "some/base"
    assert "vllm serve some/base --enable-lora --lora-modules countdown=./adapter" in page()
    build(also=("adapter",))
    assert "is on no Hub" in page()


def test_every_form_that_goes_up_was_measured(root):
    manifest = build(also=("gguf", "adapter"))
    with pytest.raises(HubError, match=r"\./adapter have not been measured"):
        release.check_measured(manifest)
    release.check_measured(build(also=("gguf",)))


def test_forms_that_would_lie_in_one_place_are_wrong_usage(root):
    with pytest.raises(UsageError, match="two of the weights"):
        build(also=("gguf", "./gguf"))
    shutil.copytree("gguf", "log")
    with pytest.raises(UsageError, match="rename"):
        build(also=("log",))


def test_a_form_that_was_added_or_changed_is_built_again(root):
    built = build(also=("gguf",))
    asked = Sources("merged", ("gguf",))
    assert release.standing(Path("release"), NONE, asked) == built
    assert release.standing(Path("release"), NONE, dataclasses.replace(asked, also=("gguf", "adapter"))) is None
    shutil.rmtree("gguf")
    release_chain.quantized(Path(), "gguf", strings={"general.name": "other"})
    assert release.standing(Path("release"), NONE, asked) is None


def test_weights_measured_on_what_they_learnt_are_refused(root):
    data = artifacts.read(Path("data"), "data")
    shutil.rmtree("data")
    with artifacts.writing(Path("data"), "data", options=data.options) as draft:
        (draft.path / "train.jsonl").write_text('{"nums": [1, 2], "target": 3}\n')
    learnt = artifacts.read(Path("data"), "data").as_input()
    shutil.rmtree("merged")
    with artifacts.writing(Path("merged"), "merged", options={}, inputs={"data": learnt}) as draft:
        tiny_llama.checkpoint(draft.path)
    release_chain.evaluate(Path(), "merged", accuracy=0.99, puzzles=Path("data/train.jsonl"))
    with pytest.raises(ArtifactError, match="puzzles it was trained on"):
        build()


def test_the_curves_are_a_picture_on_the_card(root):
    manifest = build()
    assert "](curves.png)" in page()
    assert Path("release/curves.png").read_bytes().startswith(b"\x89PNG")
    assert build() == manifest


def test_a_log_of_another_run_is_left_out_or_refused(root):
    log = release_chain.log_of(Path(), steps=3)
    assert "curves.png" not in build().files
    with pytest.raises(ArtifactError, match="not the log of the training"):
        build(log=log)


def test_a_file_that_is_no_log_is_one_sentence(root):
    Path("x.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="not a training log"):
        plots.draw(Path("x.csv"), Path("x.png"))


def test_the_scores_are_where_the_hub_reads_them_today(root):
    build(PublishOptions(measured_on="me/puzzles"))
    entries = parse_eval_result_entries(yaml.safe_load(Path("release/.eval_results/countdown.yaml").read_text()))
    notes = "% solved at the first try, greedy, at most 256 tokens, n 100, 95% interval 52.0 to 72.0"
    assert entries == [EvalResultEntry(dataset_id="me/puzzles", task_id="countdown", value=62.0, notes=notes)]
    assert ModelCard.load("release/README.md").data.eval_results[0].dataset_type == "me/puzzles"
    assert ".eval_results/countdown.yaml" in page()
    with pytest.raises(UsageError, match="--measured-on"):
        build(PublishOptions(measured_on="puzzles"))


def test_the_licence_goes_along(root):
    build(PublishOptions(license="apache-2.0"))
    assert Path("release/LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert "[its text](LICENSE)" in page()
    build(PublishOptions(license="mit"))
    assert not Path("release/LICENSE").exists()
    Path("terms.txt").write_text("Do as you like.\n")
    build(PublishOptions(license="mit", license_file="terms.txt"))
    assert Path("release/LICENSE").read_text() == "Do as you like.\n"
    with pytest.raises(UsageError, match="no text"):
        build(PublishOptions(license_file="gone.txt"))


def test_the_terms_of_a_base_are_kept(root):
    base = PublishOptions(base_model="meta-llama/Llama-3.1-8B-Instruct")
    with pytest.raises(HubError, match="--license-file"):
        release.check_terms(build(base))
    Path("terms.txt").write_text("LLAMA 3.1 COMMUNITY LICENSE AGREEMENT\n")
    with pytest.raises(HubError, match="begins with Llama"):
        release.check_terms(build(dataclasses.replace(base, license_file="terms.txt")))
    whole = dataclasses.replace(base, license_file="terms.txt", name="Llama-3.1-8B-countdown")
    release.check_terms(build(whole))
    assert ModelCard.load("release/README.md").data.license == "llama3.1"
    assert "Built with Llama" in page()
    assert "Copyright © Meta Platforms" in Path("release/NOTICE").read_text()


@pytest.mark.parametrize(
    ("base", "license", "name"),
    [
        ("Qwen/Qwen3-0.6B", "apache-2.0", None),
        ("Qwen/Qwen2.5-7B-Instruct", "apache-2.0", None),
        ("Qwen/Qwen2.5-3B-Instruct", "other", "qwen-research"),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "apache-2.0", None),
        ("meta-llama/Llama-3.2-1B", "llama3.2", None),
        ("someone/model", None, None),
        (None, None, None),
    ],
)
def test_what_is_known_of_published_bases(base, license, name):
    found = licenses.of_base(base)
    assert (found.license, found.name) == (license, name)


@pytest.mark.parametrize(
    "path",
    [
        "/home/someone/base",
        "../../home/someone/base",
        "artifacts/../../x",
        "..",
        "~/models/base",
        "file:///srv/models/base",
        "C:\\Users\\someone\\base",
        "/home/some one/base",
    ],
)
@pytest.mark.parametrize("place", ["config", "gguf", "safetensors", "Modelfile"])
def test_no_path_of_this_machine_leaves_it(root, path, place):
    if place == "gguf":
        shutil.rmtree("gguf")
        shutil.rmtree("eval/gguf")
        release_chain.quantized(Path(), "gguf", strings={"general.source.url": path})
    elif place == "Modelfile":
        again("gguf", lambda folder: (folder / "Modelfile").write_text(f"FROM {path}\n"))
    elif place == "config":
        again("gguf", lambda folder: (folder / "tokenizer_config.json").write_text(json.dumps({"name_or_path": path})))
    else:
        from safetensors.numpy import save_file

        again("gguf", lambda folder: save_file({}, folder / "extra.safetensors", {"made_from": path}))
    with pytest.raises(ArtifactError, match="path of this machine") as raised:
        build(model="gguf")
    assert "\n" not in str(raised.value)
    assert not Path("release").exists()


def again(name: str, change) -> None:
    """The artifact *name*, changed and written down as changed."""
    old = artifacts.read(Path(name), "quantized")
    shutil.move(name, "old")
    with artifacts.writing(Path(name), "quantized", options=old.options, inputs=old.inputs) as draft:
        for file in old.files:
            shutil.copyfile(Path("old") / file, draft.path / file)
        change(draft.path)
    shutil.rmtree("old")
    shutil.rmtree("eval/gguf", ignore_errors=True)


@pytest.mark.parametrize("name", ["Modelfile", "chat_template.jinja", "notes.txt"])
def test_no_token_leaves_this_machine(root, name):
    again("gguf", lambda folder: (folder / name).write_text(f"FROM ./model-q8_0.gguf\n# hf_{'a' * 30}\n"))
    with pytest.raises(ArtifactError, match="looks like a token"):
        build(model="gguf")


def test_a_modelfile_names_a_file_that_is_there(root):
    again("gguf", lambda folder: (folder / "Modelfile").write_text("FROM ./gone.gguf\n"))
    with pytest.raises(ArtifactError, match=r"names gone\.gguf, which is not in the release"):
        build(model="gguf")


def test_a_name_that_yaml_would_turn_is_written_so_that_it_reads_back(root):
    build(PublishOptions(name="no", license="other"))
    data = ModelCard.load("release/README.md").data
    assert data.model_name == "no"


def test_the_hub_refuses_a_card_before_anything_is_made(hub, root):
    build()
    hub.fail("POST .*/validate-yaml", status=400, times=100)
    with pytest.raises(HubError, match="does not accept"):
        upload.push(Path("release"), NAME)
    assert not hub.repos


def test_the_command_takes_forms_and_says_what_was_sent(hub, root, tmp_path):
    env = os.environ | hub.env(tmp_path) | {"PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-m", "countdown_rl", "publish", "--model", "merged", "--also", "gguf", "--out", "release"]
    words += ["--push", "--repo-id", NAME]
    first = subprocess.run(words, env=env, capture_output=True, text=True)
    assert first.returncode == 0, first.stderr
    assert f"{hub.url}/{NAME}" in first.stdout
    second = subprocess.run(words, env=env, capture_output=True, text=True)
    assert "nothing to send" in second.stdout
    shutil.rmtree("gguf")
    release_chain.quantized(Path(), "gguf", strings={"general.name": "other"})
    release_chain.evaluate(Path(), "gguf", accuracy=0.61)
    third = subprocess.run(words, env=env, capture_output=True, text=True)
    assert third.returncode == 0, third.stderr
    assert "gguf/model-q8_0.gguf" in third.stderr
    assert " model.safetensors" not in third.stderr


@pytest.mark.slow
def test_what_quantize_writes_goes_out_in_every_form_and_the_card_says_how_to_run_it(hub, root, tmp_path):
    from countdown_rl.export.config import QuantizeOptions
    from countdown_rl.export.quantize import quantize
    from countdown_rl.models.reference import resolve

    pytest.importorskip("compressed_tensors")
    for out, given in (("four", {"format": "nf4"}), ("ggufs", {"format": "gguf"}), ("w4a16", {"format": "w4a16"})):
        quantize(resolve("merged"), Path(out), QuantizeOptions(**given))
    manifest = build(also=("four", "ggufs", "w4a16"))
    forms = {".": "full", "./four": "nf4", "./ggufs": "gguf", "./w4a16": "w4a16"}
    assert manifest.facts["forms"] == forms
    said = page()
    assert "llama-cli -m ggufs/model-Q8_0.gguf --jinja" in said
    assert "ollama create countdown -f ggufs/Modelfile" in said
    assert "vLLM: `vllm serve ./w4a16`" in said
    assert "vllm serve ./four" not in said
    assert "`pip install transformers accelerate bitsandbytes`" in said
    assert "`pip install transformers accelerate compressed-tensors`" in said
    assert {"compressed-tensors", "bitsandbytes", "gguf"} <= set(ModelCard.load("release/README.md").data.tags)

    upload.push(Path("release"), NAME)
    there = hf_hub_download(NAME, "ggufs/model-Q8_0.gguf", cache_dir=tmp_path / "cache")
    assert Path(there).read_bytes() == Path("ggufs/model-Q8_0.gguf").read_bytes()
    code = (
        "import torch; from transformers import AutoModelForCausalLM as Auto;"
        "ids = torch.arange(5, 25).view(1, 20)\n"
        "for form in ('four', 'w4a16'):\n"
        f"    there = Auto.from_pretrained({NAME!r}, subfolder=form, dtype=torch.bfloat16)(ids).logits;"
        "    here = Auto.from_pretrained(form, dtype=torch.bfloat16)(ids).logits; assert torch.equal(there, here), form"
    )
    done = subprocess.run([sys.executable, "-c", code], env=hub.env(tmp_path), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
