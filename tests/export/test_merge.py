import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from countdown_rl.core import artifacts
from countdown_rl.core.errors import ModelError, UsageError
from countdown_rl.export.config import MergeOptions
from countdown_rl.export.merge import merge_adapter
from countdown_rl.models.load import load_model, load_tokenizer
from countdown_rl.models.reference import find_model
from tests.support import architectures, command, four_bit, standins, tiny_llama


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


def by_peft(adapter: Path, precision: str = "fp32"):
    """PEFT's own merge, in fp32."""
    loaded = load_model(find_model(str(adapter)), precision=precision)
    return loaded.model.float().merge_and_unload().state_dict()


PLAIN = {
    "plain": {},
    "some layers": {"layers_to_transform": [1], "target_modules": ["q_proj", "down_proj"]},
    "rank-stabilised": {"use_rslora": True},
    "patterns": {
        "rank_pattern": {"q_proj": 2},
        "alpha_pattern": {"down_proj": 32, "0.mlp.up_proj": 3},
    },
    "dora": {"use_dora": True},
}


@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize("shards", ["5GB", "60KB"])
def test_the_merge_equals_pefts_merge_in_fp32_rounded_once(kind, shards):
    base = tiny_llama.checkpoint(Path("base"), shard=shards)
    assert (base / "model.safetensors").exists() == (shards == "5GB")
    adapter = trained(base, **PLAIN[kind])
    _, ours = merged(adapter)
    theirs = by_peft(adapter)
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert torch.equal(ours[name], value.bfloat16().float()), name


def test_a_merge_into_the_dequantized_base_is_the_policy_as_trained():
    base = tiny_llama.checkpoint(Path("base"))
    adapter = trained(base)
    manifest, ours = merged(adapter, base="dequantized")
    for name, value in by_peft(adapter, "nf4").items():
        assert torch.equal(ours[name], value.bfloat16().float()), name
    agreement = manifest.facts["agreement"]
    assert agreement["with_policy_as_trained"] == agreement["with_definition"]
    assert agreement["with_policy_as_trained"]["kl"] < 1e-2


def test_the_manifest_records_the_agreement():
    manifest, _ = merged(trained(tiny_llama.checkpoint(Path("base"))))
    facts = manifest.facts
    assert (facts["base"], facts["trained_over"], facts["adapted_modules"]) == (
        "original",
        "nf4",
        14,
    )
    same, policy = (
        facts["agreement"]["with_definition"],
        facts["agreement"]["with_policy_as_trained"],
    )
    assert same["positions"] == 8 * 32
    assert same["greedy"] >= 0.8
    assert same["kl"] < policy["kl"] < facts["agreement"]["kl_without_adapter"]
    assert manifest.inputs["adapter"]["manifest"]["kind"] == "adapter"
    assert "/tmp" not in manifest.to_bytes().decode()


def test_the_same_inputs_give_the_same_bytes():
    adapter = trained(tiny_llama.checkpoint(Path("base")))
    first, _ = merged(adapter)
    again, _ = merged(adapter)
    assert first.to_bytes() == again.to_bytes()


@pytest.mark.parametrize(
    "config",
    [
        *(
            {"target_modules": ["q_proj"], "modules_to_save": [name]}
            for name in ("lm_head", "embed_tokens", "norm")
        ),
        *({"target_modules": ["q_proj", name]} for name in ("lm_head", "embed_tokens")),
        {
            "target_modules": ["q_proj"],
            "modules_to_save": ["embed_tokens"],
            "ensure_weight_tying": True,
        },
        {"target_modules": ["q_proj"], "trainable_token_indices": [3, 5]},
    ],
    ids=lambda config: str(config),
)
@pytest.mark.parametrize("tied", [True, False])
def test_heads_and_embeddings_are_merged_tied_and_untied(config, tied):
    base = tiny_llama.checkpoint(Path("base"), tie_word_embeddings=tied)
    manifest, ours = merged(
        trained(base, **config), dtype="fp32"
    )  # the check itself is against PEFT's model
    assert manifest.facts["agreement"]["with_definition"]["max_logit_difference"] < 1e-3
    untied = not torch.equal(ours["lm_head.weight"], ours["model.embed_tokens.weight"])
    touched = bool(
        {"lm_head", "embed_tokens"}
        & {*config["target_modules"], *config.get("modules_to_save", [])}
    )
    assert untied == ((touched and not config.get("ensure_weight_tying")) or not tied)


@pytest.mark.parametrize(
    ("dtype", "expected"), [("bf16", "bfloat16"), ("fp16", "float16"), ("fp32", "float32")]
)
def test_weights_are_rounded_once_to_the_requested_dtype(dtype, expected):
    adapter = trained(tiny_llama.checkpoint(Path("base")))
    merged(adapter, dtype=dtype)
    ours = AutoModelForCausalLM.from_pretrained("merged", dtype="auto")
    assert str(ours.dtype) == f"torch.{expected}"
    for name, value in by_peft(adapter).items():
        assert torch.equal(ours.state_dict()[name], value.to(ours.dtype)), name


@pytest.mark.parametrize(("products", "expected"), [(True, "bf16"), (False, "fp32")])
def test_a_large_merge_is_checked_in_bf16_where_the_processor_has_it(
    monkeypatch, products, expected
):
    from countdown_rl.export import merge

    monkeypatch.setattr(merge, "MAX_FP32_PARAMETERS", 0)
    monkeypatch.setattr(merge, "device_name", lambda name: "cpu")
    monkeypatch.setattr(
        "countdown_rl.models.torch_internals.has_bf16_products", lambda device: products
    )
    manifest, _ = merged(trained(tiny_llama.checkpoint(Path("base"))))
    assert manifest.facts["agreement"]["computed_in"] == expected


def test_transformers_reads_a_sharded_merge():
    manifest, ours = merged(trained(tiny_llama.checkpoint(Path("base"), shard="60KB")))
    shards = sorted(path.name for path in Path("merged").glob("*.safetensors"))
    assert shards[0] == f"model-00001-of-{len(shards):05}.safetensors"
    assert len(shards) > 2
    assert {
        *shards,
        "model.safetensors.index.json",
        "generation_config.json",
    } <= manifest.files.keys()
    theirs = AutoModelForCausalLM.from_pretrained("merged", dtype=torch.float32).state_dict()
    assert all(torch.equal(theirs[name], value) for name, value in ours.items())
    assert (
        AutoTokenizer.from_pretrained("merged").chat_template
        == load_tokenizer(find_model("base")).chat_template
    )


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"init_lora_weights": "pissa"}, "pissa"),
        ({"peft_type": "IA3"}, "IA3"),
        ({"something_new": 7}, "something_new"),
    ],
)
def test_an_unsupported_adapter_is_refused_by_name(changes, names):
    base = tiny_llama.checkpoint(Path("base"))
    peft = tiny_llama.adapter(Path("peft"), base, reference="base")
    config = json.loads((peft / "adapter_config.json").read_text())
    (peft / "adapter_config.json").write_text(json.dumps(config | changes))
    with pytest.raises(ModelError, match=names):
        merge_adapter(find_model("peft"), Path("merged"), MergeOptions())
    with pytest.raises(ModelError, match="not an adapter"):
        merge_adapter(find_model("base"), Path("merged"), MergeOptions())
    assert not Path("merged").exists()


@pytest.mark.parametrize("dora", [False, True])
def test_every_key_of_the_adapter_must_exist_in_the_base(dora):
    peft = tiny_llama.adapter(
        Path("peft"), tiny_llama.checkpoint(Path("base")), reference="base", use_dora=dora
    )
    tensors = load_file(peft / "adapter_model.safetensors")
    renamed = {key.replace("layers.1.", "layers.9."): value for key, value in tensors.items()}
    save_file(renamed, peft / "adapter_model.safetensors")
    with pytest.raises(ModelError, match=r"layers\.[19]\..*"):
        merge_adapter(find_model("peft"), Path("merged"), MergeOptions(verify="none"))


def test_a_merge_that_differs_from_the_adapted_model_is_not_written(monkeypatch):
    from countdown_rl.models.lora import Adapter

    adapter = trained(tiny_llama.checkpoint(Path("base")))
    monkeypatch.setattr(Adapter, "_scale", lambda self, module, rank: 0.5)
    with pytest.raises(ModelError, match="differ from the adapter"):
        merge_adapter(find_model(str(adapter)), Path("merged"), MergeOptions())
    assert {path.name for path in Path().iterdir()} == {"base", "peft", "adapter"}


def test_gpt2_with_biases_and_transposed_weights_is_merged():
    gpt2 = architectures.checkpoint(Path("base"), "gpt2")
    adapter = trained(gpt2, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True, lora_bias=True)
    for base in ("original", "dequantized"):
        manifest, _ = merged(adapter, base=base, dtype="fp32")
        assert manifest.facts["agreement"]["with_definition"]["max_logit_difference"] < 1e-3


def test_an_adapter_without_a_manifest_over_a_4_bit_base_was_trained_over_nf4():
    tiny_llama.adapter(Path("peft"), tiny_llama.checkpoint(Path("full")), reference="base")
    four_bit.save_by_transformers("full", "base")
    tiny_llama.tokenizer().save_pretrained("base")
    with pytest.raises(UsageError, match=r"--base dequantized.*--base-model"):
        merged(Path("peft"))
    manifest, _ = merged(Path("peft"), base="dequantized", dtype="fp32")
    assert manifest.facts["trained_over"] == "nf4"
    assert manifest.facts["agreement"]["with_policy_as_trained"]["max_logit_difference"] < 1e-3
    # Over the unquantized weights, which it does not name.
    manifest = merge_adapter(
        find_model("peft", base_model="full"), Path("merged"), MergeOptions(trained_over="nf4")
    )
    assert (
        manifest.facts["agreement"]["with_definition"]
        != manifest.facts["agreement"]["with_policy_as_trained"]
    )


def test_the_name_of_a_4_bit_base_tells_what_an_adapter_was_trained_over():
    base = tiny_llama.checkpoint(Path("full"))
    tiny_llama.adapter(Path("peft"), base, reference="unsloth/Qwen3-0.6B-unsloth-bnb-4bit")
    ref = find_model("peft", base_model="full")
    assert load_model(ref).storage == "dequantized-nf4"
    manifest = merge_adapter(ref, Path("merged"), MergeOptions(base="dequantized"))
    assert manifest.facts["trained_over"] == "nf4"


def test_an_option_tells_what_an_adapter_was_trained_over():
    peft = tiny_llama.adapter(Path("peft"), tiny_llama.checkpoint(Path("base")), reference="base")
    with pytest.raises(UsageError, match="--trained-over nf4"):
        merged(peft, base="dequantized")
    manifest, _ = merged(peft, base="dequantized", trained_over="nf4")
    assert (manifest.facts["base"], manifest.facts["trained_over"]) == ("dequantized", "nf4")
    adapter = trained(Path("base"), precision="bf16")
    with pytest.raises(UsageError, match="bf16"):
        merged(adapter, trained_over="nf4")


@pytest.mark.parametrize("config", [{}, {"target_modules": ["q_proj", "embed_tokens"]}], ids=str)
def test_an_adapter_that_changes_nothing_is_told(config, monkeypatch, capsys):
    peft = tiny_llama.adapter(
        Path("peft"), tiny_llama.checkpoint(Path("base")), reference="base", **config
    )
    file = peft / "adapter_model.safetensors"
    trained = load_file(file)  # before its first step an adapter has B = 0
    save_file(
        {name: value * ("_B" not in name) for name, value in trained.items()},
        file,
        {"format": "pt"},
    )
    assert merged(peft)[0].facts["changes_nothing"] is True
    assert command.status(monkeypatch, "merge", "--adapter", peft, "--out", "again") == 0
    assert "warning: peft changes nothing" in capsys.readouterr().err


@pytest.mark.parametrize(
    "family", ["llama-3.1", "qwen3"]
)  # untied, and tied with a list of types of layers
def test_repeated_layers_are_merged_each_with_its_own_change(family):
    base = standins.checkpoint(Path("base"), family)
    adapter = trained(
        base, target_modules=["q_proj", "up_proj"], layer_replication=[[0, 2], [1, 2]]
    )
    manifest, ours = merged(adapter, dtype="fp32")
    assert manifest.facts["agreement"]["with_definition"]["max_logit_difference"] < 1e-3
    name = "self_attn.q_proj.weight"
    assert not torch.equal(ours[f"model.layers.1.{name}"], ours[f"model.layers.2.{name}"])


@pytest.mark.parametrize("kept", ["both", "head"])
def test_a_head_of_its_own_beside_a_tied_configuration_is_merged(kept):
    base = tiny_llama.checkpoint(Path("base"))
    tensors = load_file(base / "model.safetensors")
    tensors["lm_head.weight"] = torch.randn_like(tensors["model.embed_tokens.weight"])
    if kept == "head":  # tied under the name of the head
        del tensors["model.embed_tokens.weight"]
    save_file(tensors, base / "model.safetensors", {"format": "pt"})
    _, ours = merged(trained(base), verify="sample")
    assert torch.equal(ours["lm_head.weight"], tensors["lm_head.weight"].float())
    assert torch.equal(ours["lm_head.weight"], ours["model.embed_tokens.weight"]) == (
        kept == "head"
    )
    assert json.loads(Path("merged/config.json").read_text())["tie_word_embeddings"] == (
        kept == "head"
    )
