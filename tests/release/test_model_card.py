"""The model card: metadata that the Hub reads, results, and examples that run."""

import json
import re
import shutil
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from countdown_rl.core import artifacts
from countdown_rl.core.formatting import cell
from countdown_rl.models import chat_template
from countdown_rl.release import folder
from countdown_rl.release.config import PublishOptions
from countdown_rl.tasks.countdown.task import CountdownRow
from countdown_rl.training.config import TrainOptions
from tests.support import release_chain, tiny_llama

OUT = Path("release")


def card(**options) -> ModelCard:
    folder.build(PublishOptions(**{"model": "merged"} | options), OUT)
    return ModelCard.load(OUT / "README.md")


def test_the_metadata_is_what_the_hub_reads(root):
    data = card(base_model="some/base", license="mit", trained_on=("some/data",)).data
    assert (data.library_name, data.pipeline_tag, data.license) == ("transformers", "text-generation", "mit")
    assert (data.base_model, data.base_model_relation) == ("some/base", "finetune")
    assert data.datasets == ["some/data"]
    assert {"countdown-rl", "grpo", "lora"} <= set(data.tags)
    everything, *groups = data.eval_results
    assert (everything.metric_type, everything.metric_value, everything.dataset_split) == ("accuracy", 0.62, "test")
    assert (everything.metric_args["n"], everything.metric_args["interval_95"]) == (100, [0.52, 0.72])
    assert len(groups) == 3


def test_a_name_that_is_a_value_in_yaml_reads_back(root):
    assert card(name="no", license="other").data.model_name == "no"


def test_the_card_shows_results_options_and_the_comparison(root):
    page = card().text
    assert "| all puzzles | 62.0% | 52.0% to 72.0% | 100 |" in page
    assert "| base | 50.0% |" in page
    assert "| learning-rate | 0.0002 |" in page
    assert f"GRPO; reward: {', '.join(TrainOptions().reward)}." in page
    assert str(root) not in page


def test_a_name_cannot_end_a_cell_or_open_a_tag():
    assert cell("a|b <img>") == r"a\|b &lt;img>"


@pytest.mark.parametrize("model", ["merged", "gguf"])
@pytest.mark.parametrize("log", [True, False])
def test_every_file_that_the_card_links_to_is_there(root, model, log):
    if log:
        release_chain.log_of(Path())
    page = card(license="llama3.1", model=model).text
    links = re.findall(r"\]\((?!https?://)([^)]+)\)", page)
    assert "manifest.json" in links
    assert [link for link in links if not (OUT / link).is_file()] == []
    assert "\n\n\n" not in page


def test_an_adapter_is_served_over_its_base(root):
    page = card(base_model="some/base", license="mit", model="adapter").text
    assert "vllm serve some/base --enable-lora --lora-modules countdown=." in page


def test_a_gguf_file_has_its_instructions(root):
    gguf = card(model="gguf")
    assert gguf.data.library_name == "gguf"
    assert "llama-cli -m model-q8_0.gguf" in gguf.text
    assert "ollama create countdown -f Modelfile" in gguf.text
    assert {"gguf", "llama.cpp"} <= set(gguf.data.tags)


def test_the_example_runs_and_its_prompt_is_that_of_training(root, monkeypatch):
    code = re.search(r"```python\n(.*?)```", card().text, re.DOTALL)[1].replace("=256", "=4")
    monkeypatch.chdir(OUT)
    variables = {}
    exec(code, variables)
    assert variables["output"].shape[1] - variables["inputs"]["input_ids"].shape[1] <= 4
    row = CountdownRow({"nums": [19, 36, 55, 7], "target": 65})
    assert variables["prompt"] == chat_template.render(tiny_llama.tokenizer(), row.messages())


def test_the_example_of_a_completed_chat_template_is_a_user_turn_alone(root, monkeypatch):
    row = CountdownRow({"nums": [19, 36, 55, 7], "target": 65})
    tokenizer = tiny_llama.tokenizer()
    prompt = chat_template.render(tokenizer, row.messages())
    chat_template.complete_user_turn(tokenizer, row.messages())
    inputs = artifacts.read(Path("merged"), "merged").inputs
    for name in ("merged", "eval"):
        shutil.rmtree(name)
    with artifacts.writing(Path("merged"), "merged", options={}, inputs=inputs) as draft:
        tiny_llama.checkpoint(draft.path)
        tokenizer.save_pretrained(draft.path)
    page = card(license="mit").text
    assert "A user turn is enough" in page
    code = re.search(r"```python\n(.*?)```", page, re.DOTALL)[1].replace("=256", "=4")
    assert '"system"' not in code
    monkeypatch.chdir(OUT)
    variables = {}
    exec(code, variables)
    assert variables["prompt"] == prompt


@pytest.mark.parametrize(
    "ending", ["<|assistant|><think>\n", "<|assistant|>{{ date_string | default(strftime_now('%d %b %Y')) }}"]
)
def test_the_example_has_the_prompt_of_an_evaluation_whatever_the_template_adds(root, monkeypatch, ending):
    row = CountdownRow({"nums": [19, 36, 55, 7], "target": 65})
    tokenizer = tiny_llama.tokenizer(tiny_llama.TEMPLATE.replace("<|assistant|>", ending))
    tokenizer.add_tokens(["<think>", "</think>"], special_tokens=True)
    inputs = artifacts.read(Path("merged"), "merged").inputs
    for name in ("merged", "eval"):
        shutil.rmtree(name)
    with artifacts.writing(Path("merged"), "merged", options={}, inputs=inputs) as draft:
        tiny_llama.checkpoint(draft.path, vocab_size=328)
        tokenizer.save_pretrained(draft.path)
    code = re.search(r"```python\n(.*?)```", card(license="mit").text, re.DOTALL)[1].replace("=256", "=4")
    monkeypatch.chdir(OUT)
    variables = {}
    exec(code, variables)
    assert variables["prompt"] == chat_template.render(tokenizer, row.messages())
    assert "skip_special_tokens" not in code  # which would take out the tags


def test_the_example_of_gsm8k_is_a_word_problem(root):
    shutil.rmtree("eval")
    release_chain.evaluate(Path(), "merged", accuracy=0.5, task="gsm8k")
    assert "A shelf holds 3 rows" in card().text


def test_the_bits_of_quantized_weights_are_those_measured(root):
    inputs = artifacts.read(Path("merged"), "merged").inputs
    with artifacts.writing(Path("nf4"), "quantized", options={}, inputs=inputs) as draft:
        for file in Path("merged").iterdir():
            shutil.copyfile(file, draft.path / file.name)
        (draft.path / "manifest.json").unlink()
        config = json.loads((draft.path / "config.json").read_text())
        config["quantization_config"] = {"quant_method": "bitsandbytes"}
        (draft.path / "config.json").write_text(json.dumps(config))
        draft.facts["bits_per_parameter"] = 7.468
    assert "bf16 compute), 7.5 bits a parameter." in card(model="nf4").text
