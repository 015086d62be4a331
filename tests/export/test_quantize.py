import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from countdown_rl.core import artifacts
from countdown_rl.core.errors import ModelError
from countdown_rl.core.manifest import Manifest
from countdown_rl.export import agreement
from countdown_rl.export.config import MergeOptions, QuantizeOptions
from countdown_rl.export.merge import merge_adapter
from countdown_rl.export.quantize import quantize_model, warning
from countdown_rl.models import nf4
from countdown_rl.models.load import load_model
from countdown_rl.models.reference import find_model
from tests.support import architectures, tiny_llama


def as_merged(base: str, **facts) -> None:
    tiny_llama.checkpoint(Path("full"))
    with artifacts.writing(Path("merged"), "merged", options={"base": base}) as draft:
        shutil.copytree("full", draft.path, dirs_exist_ok=True)
        draft.facts.update(base=base, **facts)


def quantized() -> Manifest:
    as_merged("original")
    return quantize_model(find_model("merged"), Path("quantized"), QuantizeOptions())


def logits(model):
    with torch.inference_mode():
        return model(torch.arange(5, 25).view(1, 20)).logits.float()


def four_bit_layers(model) -> dict:
    return {
        name: module
        for name, module in model.named_modules()
        if type(module).__name__ == "Linear4bit"
    }


@pytest.mark.parametrize("avx512", [True, False])
def test_from_pretrained_reads_the_values_of_direct_quantization(avx512):
    from bitsandbytes.functional import dequantize_4bit

    quantized()
    merged = load_model(find_model("merged"), precision="fp32").model
    theirs = AutoModelForCausalLM.from_pretrained("quantized", device_map={"": "cpu"})
    layers = four_bit_layers(theirs)
    assert len(layers) == 14
    assert theirs.dtype == torch.bfloat16
    for layer in layers.values():
        layer.support_avx512bf16_for_cpu = avx512 and layer.support_avx512bf16_for_cpu
    for name, layer in layers.items():
        direct = nf4.fake_quantize(merged.get_submodule(name).weight)
        assert torch.equal(dequantize_4bit(layer.weight.data, layer.weight.quant_state), direct)
    # And it runs as it is, whatever path bitsandbytes takes on this CPU.
    a, b = logits(theirs), logits(load_model(find_model("merged"), precision="nf4").model)
    assert (a - b).norm() / b.norm() < 0.05


def test_weights_that_would_lose_by_quantization_are_refused():
    quantized()
    as_merged("dequantized")
    for name, word in (("quantized", "already"), ("merged", "round the adapter away")):
        with pytest.raises(ModelError, match=word):
            quantize_model(find_model(name), Path("again"), QuantizeOptions())
    assert not Path("again").exists()


@pytest.mark.parametrize(("format", "base"), [("nf4", "original"), ("gguf", "dequantized")])
def test_an_adapter_is_merged_into_the_base_for_the_format(format, base):
    peft = tiny_llama.adapter(Path("peft"), tiny_llama.checkpoint(Path("base")), reference="base")
    settings, inputs = {"precision": "nf4"}, {"model": find_model("base").as_input()}
    with artifacts.writing(Path("adapter"), "adapter", options=settings, inputs=inputs) as draft:
        shutil.copytree(peft, draft.path, dirs_exist_ok=True)
    options = QuantizeOptions(format=format)
    direct = quantize_model(find_model("adapter"), Path("direct"), options, pytest.fail)
    merge_adapter(find_model("adapter"), Path("merged"), MergeOptions(base=base))
    in_two = quantize_model(find_model("merged"), Path("in-two"), options, pytest.fail)
    name = direct.facts.get("file", "model.safetensors")
    assert direct.files[name] == in_two.files[name]


@pytest.mark.parametrize(
    ("trained_over", "format", "warned"),
    [("nf4", "gguf", True), ("nf4", "nf4", False), ("bf16", "gguf", False)],
)
def test_a_merge_into_original_weights_warns_with_its_divergence(trained_over, format, warned):
    agreement = {"with_policy_as_trained": {"kl": 0.161}}
    as_merged("original", trained_over=trained_over, agreement=agreement)
    text = warning(find_model("merged"), format)
    assert ("KL from the trained policy is 0.16," in text) if warned else text is None


@pytest.mark.parametrize(
    ("kl", "words"),
    [
        (3.6e-8, "equivalent.* 0.1 points"),
        (1e-6, "equivalent.* 0.7"),
        (7e-6, "close.* 1.9"),
        (5e-4, "unclear.*eval"),
    ],
)
def test_a_verdict_is_no_stronger_than_pinskers_bound(kl, words):
    assert re.match(words, agreement.verdict({"kl": kl}))


@pytest.mark.parametrize(("format", "largest"), [("nf4", 0.1), ("gguf", 1e-3)])
def test_small_weights_are_compared_with_their_source(format, largest, run_command):
    tiny_llama.checkpoint(Path("full"), hidden_size=64)
    said = run_command("quantize", "--model", "full", "--format", format, "--out", "small")
    facts = artifacts.read(Path("small"), "quantized").facts["agreement"]
    assert facts["positions"] == 256
    assert 0 < facts["kl"] < largest
    assert "against the full-precision weights: same token at" in said.out


def edited(change, **settings) -> None:
    """A checkpoint whose tensors were changed by *change*."""
    tiny_llama.checkpoint(Path("full"), **settings)
    tensors = load_file("full/model.safetensors")
    change(tensors)
    save_file(tensors, "full/model.safetensors", {"format": "pt"})


@pytest.mark.parametrize("head", ["its own", "a copy", "alone"])
@pytest.mark.parametrize("format", ["nf4", "gguf"])
def test_the_output_head_of_a_tied_configuration_is_the_one_in_the_checkpoint(head, format):
    def change(tensors):
        embedding = tensors["model.embed_tokens.weight"]
        tensors["lm_head.weight"] = embedding.clone()
        if head == "its own":
            tensors["lm_head.weight"] = torch.randn_like(embedding)
        if head == "alone":
            del tensors["model.embed_tokens.weight"]

    edited(change, hidden_size=64)
    options = QuantizeOptions(format=format, gguf_type="f16")
    quantize_model(find_model("full"), Path("quantized"), options)
    original = AutoModelForCausalLM.from_pretrained("full", dtype=torch.float32)
    quantized = load_model(find_model("quantized"), precision="fp32").model
    if format == "nf4":
        for name in nf4.linears(original):  # the head itself is not quantized
            original.set_submodule(name, quantized.get_submodule(name).float())
    ours, expected = logits(quantized), logits(original)
    assert (ours - expected).norm() / expected.norm() < 0.05


@pytest.mark.parametrize("format", ["nf4", "gguf"])
@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda tensors: tensors.pop("lm_head.weight"), "lm_head.weight"),
        (lambda tensors: tensors.update({"model.norm.weight": torch.ones(3)}), "model.norm.weight"),
    ],
)
def test_a_checkpoint_with_other_tensors_than_its_architecture_is_refused(format, change, name):
    edited(change, tie_word_embeddings=False)
    with pytest.raises(ModelError, match=name):
        quantize_model(find_model("full"), Path("quantized"), QuantizeOptions(format=format))
    assert not Path("quantized").exists()


def test_rotary_frequencies_of_older_checkpoints_are_no_fault():
    edited(
        lambda tensors: tensors.update(
            {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}
        )
    )
    for format in ("nf4", "gguf"):
        quantize_model(
            find_model("full"), Path(format), QuantizeOptions(format=format, gguf_type="f16")
        )


@pytest.mark.parametrize(
    "name",
    ["mixtral", "qwen3_moe", "gpt_oss", "deepseek_v3", "jamba", "falcon", "qwen3_next"],
)
def test_a_model_whose_weights_would_mostly_stay_in_16_bits_is_refused(name):
    architectures.checkpoint(Path("full"), name)
    with pytest.raises(ModelError, match="16 bits"):
        quantize_model(find_model("full"), Path("quantized"), QuantizeOptions())


@pytest.mark.parametrize("name", ["gpt2", "gpt_neox", "phi3", "cohere", "olmo2", "qwen3_5_text"])
def test_4_bit_weights_of_other_architectures_load_in_transformers(name):
    architectures.checkpoint(Path("full"), name, hidden_size=64, intermediate_size=128)
    facts = quantize_model(find_model("full"), Path("quantized"), QuantizeOptions()).facts
    theirs = AutoModelForCausalLM.from_pretrained("quantized", device_map={"": "cpu"})
    in_4_bits = 0
    for layer in four_bit_layers(theirs).values():
        layer.support_avx512bf16_for_cpu = False  # that path wants outputs in multiples of 32
        in_4_bits += layer.in_features * layer.out_features
    assert in_4_bits == facts["parameters_in_4_bits"]
    a, b = logits(theirs), logits(load_model(find_model("quantized")).model)
    assert (a - b).norm() / b.norm() < 0.05
