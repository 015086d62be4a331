import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from countdown_rl.core.errors import ModelError, UsageError
from countdown_rl.export.config import MergeOptions, QuantizeOptions
from countdown_rl.export.merge import merge_adapter
from countdown_rl.export.quantize import quantize_model
from countdown_rl.inference import engines
from countdown_rl.models import load, w4a16
from countdown_rl.models.reference import find_model
from tests.support import tiny_llama

pytest.importorskip("compressed_tensors")
IDS = torch.arange(5, 25).view(1, 20)


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def written(**changes):
    tiny_llama.checkpoint(Path("full"), **changes)
    return quantize_model(find_model("full"), Path("quantized"), QuantizeOptions(format="w4a16"))


def rounded(weight: torch.Tensor, group: int) -> torch.Tensor:
    """By the definition: the largest of each group is 7.5 steps, and every weight goes to the nearest of 16."""
    groups = weight.float().unflatten(1, (-1, group))
    step = (groups.abs().amax(2, keepdim=True) / 7.5).bfloat16().float()
    return ((groups / step).round().clamp(-8, 7) * step).flatten(1)


@pytest.mark.parametrize(("changes", "group"), [({"hidden_size": 256, "intermediate_size": 384}, 128), ({}, 64)])
def test_transformers_reads_weights_rounded_to_the_nearest_of_sixteen_values(changes, group):
    facts = written(**changes).facts
    assert (facts["group_size"], facts["left_in_16_bits"]) == (group, [])
    theirs = AutoModelForCausalLM.from_pretrained("quantized", dtype=torch.float32)
    expected = load.load_model(find_model("full"), precision="fp32").model
    for name, module in expected.named_modules():
        if type(module) is torch.nn.Linear and name != "lm_head":
            module.weight.data = rounded(module.weight, group)
    ours = load.load_model(find_model("quantized"), precision="fp32").model
    with torch.inference_mode():
        logits = expected(IDS).logits
        for model in (theirs, ours):
            assert (model(IDS).logits - logits).norm() / logits.norm() < 0.01
    untouched = load.load_model(find_model("full"), precision="fp32").model.get_input_embeddings().weight
    assert torch.equal(theirs.get_input_embeddings().weight, untouched)


def test_load_gives_dequantized_plain_weights(capfd):
    load.silence_libraries()
    written()
    capfd.readouterr()
    loaded = load.load_model(find_model("quantized"))
    assert (loaded.storage, loaded.precision) == ("dequantized-w4a16", "fp32")
    assert loaded.tokenizer.chat_template == tiny_llama.tokenizer().chat_template
    assert capfd.readouterr() == ("", "")
    with pytest.raises(ModelError, match="already"):
        load.load_model(find_model("quantized"), precision="nf4")


def test_rows_that_no_group_size_divides_stay_in_16_bits_and_are_listed():
    facts = written(intermediate_size=144).facts
    down = [f"model.layers.{layer}.mlp.down_proj" for layer in range(2)]
    assert facts["left_in_16_bits"] == down
    assert facts["group_size"] == 64
    ignored = json.loads(Path("quantized/config.json").read_text())["quantization_config"]["ignore"]
    assert set(ignored) == {"lm_head", *down}
    theirs = AutoModelForCausalLM.from_pretrained("quantized", dtype=torch.float32).model
    original = load.load_model(find_model("full"), precision="fp32").model.model
    assert torch.equal(theirs.layers[0].mlp.down_proj.weight, original.layers[0].mlp.down_proj.weight)


def test_the_group_size_is_the_largest_that_divides_every_width():
    assert w4a16.group_size([256, 512]) == 128
    assert w4a16.group_size([256, 192]) == 64
    assert w4a16.group_size([256, 96, 100]) == 32
    with pytest.raises(ModelError, match="multiple of 32"):
        w4a16.group_size([100])


def test_the_result_is_supported_by_vllm(monkeypatch):
    written()
    monkeypatch.setattr(engines, "find_spec", lambda name: name)
    assert engines.choose_engine("vllm", find_model("quantized"), precision="auto", device="auto") == "vllm"
    quantize_model(find_model("full"), Path("nf4"), QuantizeOptions())
    with pytest.raises(UsageError, match="NF4"):
        engines.choose_engine("vllm", find_model("nf4"), precision="auto", device="auto")


def test_w4a16_weights_cannot_be_merged_into_or_quantized_again():
    written()
    tiny_llama.adapter(Path("adapter"), Path("full"), reference="quantized")
    with pytest.raises(ModelError, match="compressed-tensors"):
        merge_adapter(find_model("adapter"), Path("merged"), MergeOptions())
    with pytest.raises(ModelError, match="is quantized already"):
        quantize_model(find_model("quantized"), Path("again"), QuantizeOptions(format="w4a16"))


def test_w4a16_without_compressed_tensors_is_refused(monkeypatch):
    monkeypatch.setattr(w4a16, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match="pip install 'compressed-tensors"):
        written()
    assert not Path("quantized").exists()
