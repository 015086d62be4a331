"""Adapters in PEFT, as they lie, and those of other programs: loaded as they are stored, or refused by name."""

import json

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from countdown_rl.core.errors import ModelError
from countdown_rl.export.config import MergeOptions
from countdown_rl.export.merge import merge_adapter
from countdown_rl.inference.generate import Decoding, Generator
from countdown_rl.models import load, lora, reference, shape
from tests.support import tiny_llama

PREFIX = "base_model.model."


def changed(
    tmp_path, rename=lambda name: name, keep=lambda name: True, config=(), tensors=(), **lora_config
):
    """A base, and an adapter over it with other names, tensors or settings."""
    base = tiny_llama.checkpoint(tmp_path / "base")
    path = tiny_llama.adapter(tmp_path / "peft", base, **lora_config)
    stored = load_file(path / "adapter_model.safetensors")
    stored = {rename(name): value for name, value in stored.items() if keep(name)} | dict(tensors)
    save_file(stored, path / "adapter_model.safetensors")
    settings = json.loads((path / "adapter_config.json").read_text()) | dict(config)
    (path / "adapter_config.json").write_text(json.dumps(settings))
    return path


def logits(path):
    loaded = load.load_model(reference.find_model(str(path)), precision="fp32")
    with torch.inference_mode():
        return loaded.model(torch.arange(5, 15)[None]).logits


def renamed(old, new):
    return lambda name: name.replace(old, new)


@pytest.mark.parametrize(
    "rename",
    [
        *(renamed(PREFIX, f"{PREFIX}{wrapper}.") for wrapper in ("_orig_mod", "module")),
        *(renamed(PREFIX, f"{wrapper}.{PREFIX}") for wrapper in ("_orig_mod", "module")),
        renamed("layers.1.", "layers.1._fsdp_wrapped_module._checkpoint_wrapped_module."),
        *(renamed(".weight", ".default.weight"), renamed(PREFIX, "")),
        renamed(f"{PREFIX}model.", f"{PREFIX}model.language_model."),
        renamed(f"{PREFIX}model.", f"{PREFIX}language_model.model."),
    ],
)
def test_names_that_wrappers_left_are_read_as_pefts(tmp_path, rename):
    expected = logits(changed(tmp_path / "as PEFT"))
    path = changed(tmp_path / "renamed", rename, config={"something_new": False, "another": None})
    torch.testing.assert_close(logits(path), expected)
    manifest = merge_adapter(
        reference.find_model(str(path)), tmp_path / "merged", MergeOptions(dtype="fp32")
    )
    assert manifest.facts["agreement"]["with_definition"]["max_logit_difference"] < 1e-3


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"rename": renamed(".layers.", ".blocks.")}, "blocks"),
        ({"keep": lambda name: "layers.1" not in name}, "layers.1"),
        ({"keep": lambda name: "0.mlp.up_proj.lora_A" not in name}, "layers.0.mlp.up_proj.lora_A"),
        ({"tensors": {f"{PREFIX}score.weight": torch.ones(2, 64)}}, "score"),
        ({"config": {"r": 8}}, "8, 64"),
        ({"config": {"something_new": 7}}, "something_new"),
        ({"config": {"peft_type": "IA3"}}, "IA3"),
        ({"config": {"target_modules": ["qq_proj"]}}, "qq_proj"),
        (
            {"config": {"init_lora_weights": "loftq", "loftq_config": {"loftq_bits": 4}}},
            "does not fit",
        ),
        ({"keep": lambda name: "magnitude" not in name, "use_dora": True}, "magnitude"),
        ({"keep": lambda name: "norm" not in name, "modules_to_save": ["norm"]}, "norm"),
        (
            {"keep": lambda name: "token" not in name, "trainable_token_indices": [3, 5]},
            "trainable_tokens",
        ),
        (
            {"config": {"trainable_token_indices": [3, 900]}, "trainable_token_indices": [3, 5]},
            "900",
        ),
        ({"alora_invocation_tokens": [5, 6]}, "activated"),
    ],
)
def test_tensors_that_the_model_does_not_take_or_lacks_are_named(tmp_path, changes, word):
    path = changed(tmp_path, **changes)
    ref = reference.find_model(str(path))
    with pytest.raises(ModelError, match=word):
        load.load_model(ref)
    with pytest.raises(ModelError, match=word):  # as --check does, without weights
        lora.Adapter(path).attach(shape.skeleton(shape.read_config(tmp_path / "base")))


def enlarged(path, tied, *, rows=330, save="auto", **config):
    """A base, an adapter that PEFT saved after its embeddings were given *rows*, and its logits."""
    base = tiny_llama.checkpoint(path / "base", tie_word_embeddings=tied)
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    model.resize_token_embeddings(rows)
    settings = {
        "target_modules": "all-linear",
        "task_type": "CAUSAL_LM",
        "init_lora_weights": False,
    } | config
    model = peft.get_peft_model(model, peft.LoraConfig(**settings))
    with torch.no_grad():
        for name, value in model.named_parameters():
            if value.requires_grad and "lora_" not in name:
                value.add_(torch.randn_like(value) * 0.05)
    model.save_pretrained(path / "peft", save_embedding_layers=save)
    tokenizer = tiny_llama.tokenizer()
    tokenizer.add_tokens([f"<t{index}>" for index in range(rows - 320)], special_tokens=True)
    tokenizer.save_pretrained(path / "peft")
    with torch.no_grad():
        return path / "peft", model.float().eval()(torch.tensor([[5, 6, 7, rows - 1]])).logits


ENLARGED = {
    "saved whole": {},
    "with LoRA": {"target_modules": ["q_proj", "embed_tokens"]},
    "trained in full": {"modules_to_save": ["embed_tokens", "lm_head"]},
    "only the new tokens": {"trainable_token_indices": list(range(320, 330))},
    "only the new tokens, one by one": {
        "save": False,
        "trainable_token_indices": list(range(320, 330)),
    },
    "fewer": {"rows": 300},
}


@pytest.mark.parametrize(
    ("kind", "tied"),
    # Without a tied head two of them have none for the new tokens.
    [
        (kind, tied)
        for kind in ENLARGED
        for tied in (True, False)
        if tied or not kind.endswith(("LoRA", "by one"))
    ],
)
def test_embeddings_of_added_tokens_are_those_that_peft_saved(tmp_path, kind, tied):
    path, expected = enlarged(tmp_path, tied, **ENLARGED[kind])
    loaded = load.load_model(reference.find_model(str(path)), precision="fp32")
    rows = expected.shape[-1]
    with torch.inference_mode():
        torch.testing.assert_close(
            loaded.model(torch.tensor([[5, 6, 7, rows - 1]])).logits, expected
        )
    # Those of an adapter that is trained further are kept.
    (tmp_path / "again").mkdir()
    further = lora.Adapter(path).specs
    lora.save(loaded.model, tmp_path / "again", base=str(tmp_path / "base"), further=further)
    assert torch.equal(logits(tmp_path / "again"), logits(path))
    manifest = merge_adapter(
        reference.find_model(str(path)), tmp_path / "merged", MergeOptions(dtype="fp32")
    )
    assert manifest.facts["agreement"]["with_definition"]["max_logit_difference"] < 1e-3


@pytest.mark.parametrize(
    ("tied", "config", "words"),
    [
        (False, {"save": False, "modules_to_save": ["embed_tokens"]}, "330.*320"),
        (False, ENLARGED["with LoRA"], "330.*320"),
        (
            True,
            {"save": False, "modules_to_save": ["embed_tokens"]},
            "330.*320",
        ),  # the head's new rows are lost
        (True, {"save": False, "target_modules": ["q_proj", "embed_tokens"]}, "320.*330"),
        (True, {"save": False, "trainable_token_indices": [3, 329]}, "329.*320"),
    ],
)
def test_rows_of_added_tokens_that_were_not_saved_are_named(tmp_path, tied, config, words):
    path, _ = enlarged(tmp_path, tied, **config)
    with pytest.raises(ModelError, match=words):
        load.load_model(reference.find_model(str(path)))


def test_tokens_beyond_the_embeddings_are_refused_before_generation(tmp_path):
    path, _ = enlarged(tmp_path, True, save=False)
    generator = Generator(load.load_model(reference.find_model(str(path))), Decoding(4))
    assert generator.complete([[5, 6, 7], [5]])
    with pytest.raises(ModelError, match=r"329.*320 rows"):
        generator.complete([[5, 329]])


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    "config",
    [
        {"target_modules": ["q_proj"], "layer_replication": [[0, 2], [0, 2]]},
        {"target_modules": ["q_proj"], "modules_to_save": ["norm", "input_layernorm"]},
    ],
    ids=str,
)
def test_adapters_outside_of_the_linear_layers_complete_as_their_logits_say(tmp_path, config, tied):
    base = tiny_llama.checkpoint(tmp_path / "base", tie_word_embeddings=tied)
    path = tiny_llama.adapter(tmp_path / "peft", base, **config)
    loaded = load.load_model(reference.find_model(str(path)), precision="fp32")
    ids = [5, 6, 7, 3]
    with torch.inference_mode():
        likeliest = int(loaded.model(torch.tensor([ids])).logits[0, -1].argmax())
    [completion] = Generator(loaded, Decoding(1)).complete([ids])
    assert completion.text == loaded.tokenizer.decode([likeliest], skip_special_tokens=True)
