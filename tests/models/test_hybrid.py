"""Models with layers of linear and of full attention, such as Qwen3-Next and Qwen3.5: correct, or refused by name."""

import pytest
import torch

from countdown_rl.core.errors import ModelError
from countdown_rl.export.config import QuantizeOptions
from countdown_rl.export.quantize import quantize_model
from countdown_rl.inference import cpu_decoder
from countdown_rl.inference.generate import Decoding, Generator
from countdown_rl.models import load, nf4
from countdown_rl.models.reference import find_model
from tests.support import architectures, standins

PROMPTS = [[7, 8, 9, 10, 11, 12, 13], [9, 10], [5, 6, 7, 8]]


HYBRID = ("qwen3_5_text", "qwen3_next")


@pytest.fixture(params=HYBRID)
def model(request, tmp_path):
    return find_model(str(architectures.checkpoint(tmp_path / "model", request.param)))


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
    loaded, original = (load.load_model(model, precision=name, device="cpu").model for name in ("nf4", "fp32"))
    layers = nf4.linears(original)
    assert {"model.layers.0.linear_attn.out_proj", "model.layers.1.self_attn.q_proj"} <= layers.keys()
    for name, layer in layers.items():
        assert torch.equal(loaded.get_submodule(name).weight, nf4.fake_quantize(layer.weight).float())


def test_gguf_export_is_refused(model, tmp_path):
    with pytest.raises(ModelError, match="convert_hf_to_gguf"):
        quantize_model(model, tmp_path / "gguf", QuantizeOptions(format="gguf"))


def test_the_text_model_of_a_vision_model_has_its_logits(tmp_path):
    import transformers

    text = architectures.SETTINGS["qwen3_5_text"] | {"vocab_size": 512}
    vision = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 32}
    config = transformers.AutoConfig.for_model("qwen3_5", text_config=text, vision_config=vision)
    original = transformers.Qwen3_5ForConditionalGeneration(config).eval()
    original.save_pretrained(tmp_path)
    standins.tokenizer(standins.FAMILIES["qwen2.5"]).save_pretrained(tmp_path)
    loaded = load.load_model(find_model(str(tmp_path)), precision="fp32", device="cpu")
    ids = torch.tensor([PROMPTS[0]])
    with torch.inference_mode():
        assert torch.equal(loaded.model(ids).logits, original(input_ids=ids).logits)
