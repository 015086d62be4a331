"""Model families: prompts of those that the recipes train, and layers of linear attention (Qwen3-Next, Qwen3.5)."""

from pathlib import Path

import pytest
import torch
import transformers

from countdown_rl.export.config import QuantizeOptions
from countdown_rl.export.quantize import quantize_model
from countdown_rl.inference import cpu_decoder
from countdown_rl.inference.generate import Decoding, Generator
from countdown_rl.models import chat_template, load, nf4, reference
from countdown_rl.tasks.registry import parse_row
from tests.support import architectures, standins

OPENED = dict.fromkeys(("qwen3", "qwen2.5"), "<|im_start|>assistant\n") | {
    "llama-3.1": "<|start_header_id|>assistant<|end_header_id|>\n\n"
}
ROW = {"nums": [3, 7, 50], "target": 46}
BEGUN = "Let me work through this step by step.\n<think>"


@pytest.fixture(scope="module", params=OPENED)
def family(request, tmp_path_factory):
    """The name and the tokenizer, as a run loads it, of one family."""
    path = standins.checkpoint(tmp_path_factory.mktemp("family"), request.param)
    return request.param, load.load_tokenizer(reference.find_model(str(path)))


def ids(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("system", [True, False])
@pytest.mark.parametrize("style", ["prefilled", "model_opens"])
def test_a_prompt_ends_in_the_assistant_turn(family, system, style):
    name, tokenizer = family
    turns = parse_row(ROW | {"style": style}).messages()
    text = chat_template.render(tokenizer, turns if system else turns[1:])
    begun = BEGUN if style == "prefilled" else ""
    assert text.endswith(OPENED[name] + begun)
    assert "Numbers: 3 7 50" in text
    assert (turns[0]["content"] in text) == system
    # Encoding adds no tokens to the text of the template, and no turn is opened twice.
    assert tokenizer.decode(ids(tokenizer, text)) == text
    assert text.count(OPENED[name]) == 1
    assert ids(tokenizer, text).count(tokenizer.bos_token_id) == (tokenizer.bos_token is not None)
    assert text.split(OPENED[name])[1].count("<think>") == len(begun) // len(BEGUN)


def test_a_gguf_file_of_a_model_with_its_own_head_size_loads_in_transformers(here):
    standins.checkpoint(Path("full"), "qwen3")  # 4 heads of 32 in a hidden size of 64
    options = QuantizeOptions(format="gguf", gguf_type="f16")
    quantize_model(reference.find_model("full"), Path("gguf"), options)
    logits = []
    for name in ("full", "gguf"):
        model = load.load_model(reference.find_model(name), precision="fp32").model
        with torch.inference_mode():
            logits.append(model(torch.tensor([PROMPTS[0]])).logits)
    torch.testing.assert_close(*logits, atol=1e-4, rtol=1e-4)


PROMPTS = [[7, 8, 9, 10, 11, 12, 13], [9, 10], [5, 6, 7, 8]]
HYBRID = ("qwen3_5_text", "qwen3_next")


@pytest.fixture(params=HYBRID)
def model(request, tmp_path):
    return reference.find_model(str(architectures.checkpoint(tmp_path / "model", request.param)))


@pytest.mark.parametrize("model", [*HYBRID, "gpt2", "qwen2"], indirect=True)
@pytest.mark.parametrize("precision", ["fp32", "nf4"])
def test_padded_prompts_are_completed_as_each_alone_without_a_cache(model, precision):
    loaded = load.load_model(model, precision=precision, device="cpu")
    assert not cpu_decoder.supports(loaded.model)
    completions = Generator(loaded, Decoding(6)).complete(PROMPTS)
    for prompt, completion in zip(PROMPTS, completions, strict=True):
        ids = list(prompt)
        with torch.inference_mode():
            for _ in range(completion.tokens):
                scores = loaded.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
                ids.append(int(scores.argmax()))
        text = loaded.tokenizer.decode(ids[len(prompt) :])
        assert completion.text == text.removesuffix("<|im_end|>").removesuffix("<|endoftext|>")


def test_nf4_rounds_the_projections_of_linear_attention_too(model):
    loaded, original = (
        load.load_model(model, precision=name, device="cpu").model for name in ("nf4", "fp32")
    )
    layers = nf4.linears(original)
    assert "model.layers.0.linear_attn.out_proj" in layers
    for name, layer in layers.items():
        rounded = nf4.fake_quantize(layer.weight).float()
        assert torch.equal(loaded.get_submodule(name).weight, rounded)


def test_the_text_model_of_a_vision_model_has_its_logits(tmp_path):
    text = architectures.SETTINGS["qwen3_5_text"] | {"vocab_size": 512}
    vision = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2}
    vision["out_hidden_size"] = 32
    config = transformers.AutoConfig.for_model("qwen3_5", text_config=text, vision_config=vision)
    original = transformers.Qwen3_5ForConditionalGeneration(config).eval()
    original.save_pretrained(tmp_path)
    standins.tokenizer(standins.FAMILIES["qwen2.5"]).save_pretrained(tmp_path)
    loaded = load.load_model(reference.find_model(str(tmp_path)), precision="fp32", device="cpu")
    ids = torch.tensor([PROMPTS[0]])
    with torch.inference_mode():
        assert torch.equal(loaded.model(ids).logits, original(input_ids=ids).logits)
