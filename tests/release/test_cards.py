"""Cards: metadata that the Hub reads, results, and examples that run."""

import re
import shutil
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from countdown_rl.core import artifacts
from countdown_rl.evaluation.tables import cell
from countdown_rl.models import chat_template
from countdown_rl.release import folder
from countdown_rl.release.config import PublishOptions
from countdown_rl.tasks.countdown.task import CountdownRow
from countdown_rl.training.options import TrainOptions
from tests.support import release_chain, tiny_llama

OUT = Path("release")
ROW = CountdownRow({"nums": [19, 36, 55, 7], "target": 65})
PUZZLES = "me/puzzles"


def card(**options) -> ModelCard:
    folder.build(PublishOptions(**{"model": "merged"} | options), OUT)
    return ModelCard.load(OUT / "README.md")


def merged_with(tokenizer, **shape) -> None:
    """Replace the merged weights by others with this *tokenizer*, which nothing has evaluated."""
    inputs = artifacts.read(Path("merged"), "merged").inputs
    for name in ("merged", "eval"):
        shutil.rmtree(name)
    with artifacts.writing(Path("merged"), "merged", options={}, inputs=inputs) as draft:
        tiny_llama.checkpoint(draft.path, **shape)
        tokenizer.save_pretrained(draft.path)


def example(page: str, monkeypatch) -> dict:
    """The variables of the example on the *page*, after it was run."""
    monkeypatch.chdir(OUT)
    variables: dict = {}
    exec(re.search(r"```python\n(.*?)```", page, re.DOTALL)[1].replace("=256", "=4"), variables)
    return variables


def test_the_metadata_is_what_the_hub_reads(root):
    data = card(base_model="some/base", license="mit").data
    assert (data.library_name, data.pipeline_tag) == ("transformers", "text-generation")
    assert (data.license, data.base_model) == ("mit", "some/base")
    assert (data.base_model_relation, data.model_name) == ("finetune", "base-countdown-grpo")
    assert {"countdown-rl", "grpo", "lora"} <= set(data.tags)
    everything, *groups = data.eval_results
    assert (everything.metric_type, everything.metric_value) == ("accuracy", 0.62)
    assert everything.metric_args["n"] == 100
    assert groups


def test_the_card_shows_results_options_and_the_comparison(root):
    page = card().text
    assert "| all puzzles | 62.0% | 52.2% to 70.9% | 100 |" in page
    assert "| base | 50.0% |" in page
    assert "| learning-rate | 0.0002 |" in page
    assert f"GRPO; reward: {', '.join(TrainOptions().reward)}." in page
    assert str(root) not in page
    assert cell("a|b <img>") == r"a\|b &lt;img>"  # so that a name ends no cell and opens no tag


@pytest.mark.parametrize("model", ["merged", "gguf"])
def test_every_file_that_the_card_links_to_is_there(root, model):
    release_chain.log_of(Path())
    page = card(license="llama3.1", model=model).text
    links = re.findall(r"\]\((?!https?://)([^)]+)\)", page)
    assert {"manifest.json", "curves.svg"} <= set(links)
    assert all((OUT / link).is_file() for link in links)
    assert "\n\n\n" not in page


def test_formats_have_their_instructions(root):
    page = card(base_model="some/base", license="mit", model="adapter").text
    assert "vllm serve some/base --enable-lora --lora-modules countdown=." in page
    gguf = card(model="gguf")
    assert gguf.data.library_name == "gguf"
    assert "llama-cli -m model-q8_0.gguf" in gguf.text
    assert "ollama create countdown -f Modelfile" in gguf.text
    assert {"gguf", "llama.cpp"} <= set(gguf.data.tags)


def test_the_example_of_a_completed_chat_template_is_a_user_turn_alone(root, monkeypatch):
    tokenizer = tiny_llama.tokenizer()
    prompt = chat_template.render(tokenizer, ROW.messages())
    chat_template.complete_user_turn(tokenizer, ROW.messages())
    merged_with(tokenizer)
    page = card(license="mit").text
    assert "Send only a user message" in page
    assert "have not been evaluated" in page
    assert example(page, monkeypatch)["prompt"] == prompt


@pytest.mark.parametrize(
    "ending", ["", "<think>\n", "{{ date_string | default(strftime_now('%d %b %Y')) }}"]
)
def test_the_example_runs_with_the_prompt_of_an_evaluation(root, monkeypatch, ending):
    template = tiny_llama.TEMPLATE.replace("<|assistant|>", f"<|assistant|>{ending}")
    tokenizer = tiny_llama.tokenizer(template)
    tokenizer.add_tokens(["<think>", "</think>"], special_tokens=True)
    merged_with(tokenizer, vocab_size=328)
    page = card(license="mit").text
    assert "skip_special_tokens" not in page  # which would take out the tags
    variables = example(page, monkeypatch)
    assert variables["prompt"] == chat_template.render(tokenizer, ROW.messages())
    assert variables["output"].shape[1] - variables["inputs"]["input_ids"].shape[1] <= 4


def test_the_example_of_gsm8k_is_a_word_problem(root):
    shutil.rmtree("eval")
    release_chain.evaluate(Path(), "merged", accuracy=0.5, task="gsm8k")
    assert "A shelf holds 3 rows" in card().text
