import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

from countdown_rl.core import artifacts
from countdown_rl.core.errors import ModelError, UsageError
from countdown_rl.export import agreement
from countdown_rl.export.config import MergeOptions
from countdown_rl.export.merge import DTYPES, merge_adapter
from countdown_rl.models import load, nf4
from countdown_rl.models.load import load_model, load_tokenizer
from countdown_rl.models.reference import find_model
from tests.support import tiny_llama


def trained(base: Path, *, precision: str = "nf4", **config) -> Path:
    """An adapter artifact over *base*, as ``train`` writes it."""
    peft = tiny_llama.adapter(Path("peft"), base, reference=str(base), **config)
    options, inputs = {"precision": precision}, {"model": find_model(str(base)).as_input()}
    with artifacts.writing(Path("adapter"), "adapter", options=options, inputs=inputs) as draft:
        shutil.copytree(peft, draft.path, dirs_exist_ok=True)
        draft.facts["precision"] = precision
    return Path("adapter")


def merged(adapter: Path, **options):
    manifest = merge_adapter(find_model(str(adapter)), Path("merged"), MergeOptions(**options))
    return manifest, load_model(find_model("merged"), precision="fp32").model.state_dict()


KINDS = {
    "plain": {},
    "some layers": {"layers_to_transform": [1], "target_modules": ["q_proj", "down_proj"]},
    "rank-stabilized": {"use_rslora": True},
    "patterns": {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"down_proj": 32}},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["auto", "bf16", "fp16", "fp32"])
def test_a_merge_is_the_base_plus_s_b_a_rounded_once(kind, dtype):
    base_dtype = torch.bfloat16 if dtype == "auto" else torch.float32
    tiny_llama.model().to(base_dtype).save_pretrained("base")
    tiny_llama.tokenizer().save_pretrained("base")
    config = KINDS[kind]
    adapter = trained(Path("base"), **config)
    merged(adapter, dtype=dtype)
    change = load_file(adapter / "adapter_model.safetensors")
    ours = load_file("merged/model.safetensors")
    for name, weight in load_file("base/model.safetensors").items():
        prefix = f"base_model.model.{name.removesuffix('.weight')}.lora_"
        if f"{prefix}A.weight" in change:
            a, b = change[f"{prefix}A.weight"], change[f"{prefix}B.weight"]
            alpha = config.get("alpha_pattern", {}).get(name.split(".")[-2], 8)
            scale = alpha / (len(a) ** 0.5 if config.get("use_rslora") else len(a))
            weight = weight.float() + scale * (b @ a)
        assert torch.equal(ours[name], weight.to(DTYPES.get(dtype, base_dtype))), name


def test_a_merge_into_the_dequantized_base_is_the_policy_as_trained():
    adapter = trained(tiny_llama.checkpoint(Path("base")))
    manifest, ours = merged(adapter, base="dequantized")
    policy = load_model(find_model(str(adapter)), precision="nf4").model.float().merge_and_unload()
    for name, value in policy.state_dict().items():
        assert torch.equal(ours[name], value.bfloat16().float()), name
    agreed = manifest.facts["agreement"]
    assert agreed["with_policy_as_trained"] == agreed["with_definition"]
    assert agreed["with_policy_as_trained"]["kl"] < 1e-2


def test_a_base_that_computes_in_bf16_is_merged_in_fp32(monkeypatch):
    adapter = trained(tiny_llama.checkpoint(Path("base")))
    monkeypatch.setattr(load, "MAX_FP32_PARAMETERS", 0)
    monkeypatch.setattr("countdown_rl.models.torch_internals.has_bf16_products", lambda *_: True)
    merged(adapter, base="dequantized", dtype="fp32")
    weights = load_file("merged/model.safetensors")
    weight = weights["model.layers.0.self_attn.q_proj.weight"]
    assert not torch.equal(weight, weight.bfloat16().float())


def test_the_divergence_is_from_the_reference():
    p, q = torch.tensor([[0.0, 1.0]]), torch.tensor([[0.0, 3.0]])
    first, second = (torch.distributions.Categorical(logits=logits) for logits in (p, q))
    expected = torch.distributions.kl_divergence(first, second).item()
    assert agreement.compare([p], [q])["kl"] == pytest.approx(expected, rel=1e-2)


def test_the_manifest_records_the_agreement():
    manifest, _ = merged(trained(tiny_llama.checkpoint(Path("base"))))
    facts = manifest.facts
    assert (facts["base"], facts["trained_over"]) == ("original", "nf4")
    agreed = facts["agreement"]
    same, policy = agreed["with_definition"], agreed["with_policy_as_trained"]
    assert (same["positions"], facts["adapted_modules"]) == (8 * 32, 14)
    assert same["greedy"] >= 0.8
    assert same["kl"] < policy["kl"] < agreed["kl_without_adapter"]
    assert "/tmp" not in manifest.to_bytes().decode()


def test_the_same_inputs_give_the_same_bytes():
    adapter = trained(tiny_llama.checkpoint(Path("base")))
    first, _ = merged(adapter)
    again, _ = merged(adapter)
    assert first.to_bytes() == again.to_bytes()


def test_transformers_reads_a_merge_of_a_sharded_base():
    manifest, ours = merged(trained(tiny_llama.checkpoint(Path("base"), shard="60KB")))
    assert "generation_config.json" in manifest.files
    theirs = AutoModelForCausalLM.from_pretrained("merged", dtype=torch.float32).state_dict()
    assert all(torch.equal(theirs[name], value) for name, value in ours.items())
    template = AutoTokenizer.from_pretrained("merged").chat_template
    assert template == load_tokenizer(find_model("base")).chat_template


@pytest.mark.parametrize("changes", [{"init_lora_weights": "pissa"}, {"something_new": 7}], ids=str)
def test_an_unsupported_adapter_is_refused_by_name(changes):
    base = tiny_llama.checkpoint(Path("base"))
    peft = tiny_llama.adapter(Path("peft"), base, reference="base")
    config = json.loads((peft / "adapter_config.json").read_text())
    (peft / "adapter_config.json").write_text(json.dumps(config | changes))
    with pytest.raises(ModelError, match=r"pissa|something_new"):
        merge_adapter(find_model("peft"), Path("merged"), MergeOptions())
    with pytest.raises(ModelError, match="not an adapter"):
        merge_adapter(find_model("base"), Path("merged"), MergeOptions())
    assert not Path("merged").exists()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    "config",
    [
        {"modules_to_save": ["lm_head"]},
        {"modules_to_save": ["embed_tokens"]},
        {"modules_to_save": ["norm"]},
        {"target_modules": ["q_proj", "lm_head"]},
        {"target_modules": ["q_proj", "embed_tokens"]},
        {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
        {"trainable_token_indices": [3, 5]},
        {"use_dora": True},
    ],
    ids=str,
)
def test_any_adapter_is_merged_as_it_computes_or_refused(config, tied):
    base = tiny_llama.checkpoint(Path("base"), tie_word_embeddings=tied)
    adapter = trained(base, **({"target_modules": ["q_proj"]} | config))
    if tied and len(config.get("target_modules", ())) == 2:
        with pytest.raises(ModelError, match="tied"):
            merged(adapter)
        return
    manifest, _ = merged(adapter, dtype="fp32")
    assert manifest.facts["agreement"]["with_definition"]["max_logit_difference"] < 1e-3


def test_a_merge_that_differs_from_the_adapted_model_is_not_written(monkeypatch):
    adapter = trained(tiny_llama.checkpoint(Path("base")))
    monkeypatch.setattr("countdown_rl.export.merge.MAX_KL", {})  # rounding is a difference too
    with pytest.raises(ModelError, match="differ from the adapter"):
        merged(adapter)
    assert {path.name for path in Path().iterdir()} == {"base", "peft", "adapter"}


def test_an_adapter_without_a_manifest_over_a_4_bit_base_was_trained_over_nf4():
    tiny_llama.adapter(Path("peft"), tiny_llama.checkpoint(Path("full")), reference="base")
    options = {"quantization_config": BitsAndBytesConfig.from_dict(nf4.CONFIG)}
    AutoModelForCausalLM.from_pretrained("full", **options).save_pretrained("base")
    tiny_llama.tokenizer().save_pretrained("base")
    with pytest.raises(UsageError, match=r"--base dequantized.*--base-model"):
        merged(Path("peft"))
    manifest, _ = merged(Path("peft"), base="dequantized", dtype="fp32")
    assert manifest.facts["trained_over"] == "nf4"
    assert manifest.facts["agreement"]["with_policy_as_trained"]["max_logit_difference"] < 1e-3


def test_the_base_option_tells_what_an_unknown_adapter_was_trained_over():
    peft = tiny_llama.adapter(Path("peft"), tiny_llama.checkpoint(Path("base")), reference="base")
    assert merged(peft)[0].facts["trained_over"] == "unknown"
    manifest, _ = merged(peft, base="dequantized")
    assert (manifest.facts["base"], manifest.facts["trained_over"]) == ("dequantized", "nf4")
    adapter = trained(Path("base"), precision="bf16")
    with pytest.raises(UsageError, match="bf16"):
        merged(adapter, base="dequantized")


def test_an_adapter_that_changes_nothing_is_told(run_command):
    peft = tiny_llama.adapter(Path("peft"), tiny_llama.checkpoint(Path("base")), reference="base")
    file = peft / "adapter_model.safetensors"
    tensors = load_file(file)  # before its first step an adapter has B = 0
    zero = {name: tensor * ("_B" not in name) for name, tensor in tensors.items()}
    save_file(zero, file, {"format": "pt"})
    said = run_command("merge", "--adapter", peft, "--out", "merged")
    assert "warning: peft changes nothing" in said.err
