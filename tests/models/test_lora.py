"""Adapters in PEFT, as they lie, and those of other programs: loaded as they are stored, or refused by name."""

import json

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from countdown_rl.core.errors import ModelError
from countdown_rl.inference.generate import Decoding, Generator
from countdown_rl.models import load, lora, reference, shape
from tests.support import tiny_llama
from tests.support.runs import files


def changed(tmp_path, old="", new="", config=(), tensors=(), **lora_config):
    """A base, and an adapter over it with other names, tensors or settings.

    Tensors whose name holds *old* are renamed, or left out if *new* is "".
    """
    base = tiny_llama.checkpoint(tmp_path / "base")
    path = tiny_llama.adapter(tmp_path / "peft", base, **lora_config)
    stored = dict(tensors)
    for name, value in load_file(path / "adapter_model.safetensors").items():
        if new or not old or old not in name:
            stored[name.replace(old, new)] = value
    save_file(stored, path / "adapter_model.safetensors")
    settings = json.loads((path / "adapter_config.json").read_text()) | dict(config)
    (path / "adapter_config.json").write_text(json.dumps(settings))
    return path


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"old": ".layers.", "new": ".blocks."}, "blocks"),
        ({"old": "0.mlp.up_proj.lora_A"}, "layers.0.mlp.up_proj.lora_A"),
        ({"tensors": {"base_model.model.score.weight": torch.ones(2, 64)}}, "score"),
        ({"config": {"r": 8}}, r"be \(8, 128.*is \(4, 128"),
        ({"config": {"something_new": 7}}, "something_new"),
        ({"config": {"target_modules": ["qq_proj"]}}, "qq_proj"),
        ({"config": {"init_lora_weights": "pissa"}}, "pissa"),
        ({"old": "magnitude", "use_dora": True}, "magnitude"),
        ({"alora_invocation_tokens": [5, 6]}, "alora"),
        ({"config": {"layer_replication": [[0, 2], [0, 2]]}}, "replication"),
    ],
)
def test_tensors_that_the_model_does_not_take_or_lacks_are_named(tmp_path, changes, word):
    path = changed(tmp_path, **changes)
    ref = reference.find_model(str(path))
    with pytest.raises(ModelError, match=word):
        load.load_model(ref)
    with pytest.raises(ModelError, match=word):  # as --check does, without weights
        lora.attach(shape.skeleton(shape.read_config(tmp_path / "base")), path)


def test_tokens_beyond_the_embeddings_are_refused_before_generation(tmp_path):
    model = load.load_model(reference.find_model(str(tiny_llama.checkpoint(tmp_path))))
    generator = Generator(model, Decoding(4))
    assert generator.complete([[5, 6, 7], [5]])
    with pytest.raises(ModelError, match=r"329.*320 rows"):
        generator.complete([[5, 329]])


@pytest.mark.parametrize(
    "config",
    [
        {"modules_to_save": ["norm", "input_layernorm"]},
        {"target_modules": ["q_proj", "embed_tokens"]},
        {"use_dora": True},
        {"trainable_token_indices": [5, 6]},
    ],
    ids=str,
)
def test_an_adapter_computes_as_it_does_in_peft(tmp_path, config):
    base = tiny_llama.checkpoint(tmp_path / "base")
    path = tiny_llama.adapter(tmp_path / "peft", base, **{"target_modules": ["q_proj"]} | config)
    loaded = load.load_model(reference.find_model(str(path)), precision="fp32")
    plain = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    ids = torch.tensor([[5, 6, 7, 3]])
    with torch.inference_mode():
        expected = peft.PeftModel.from_pretrained(plain, path)(ids).logits
        torch.testing.assert_close(loaded.model(ids).logits, expected)


def test_an_adapter_is_written_in_the_same_bytes_and_read_back(tmp_path):
    base = tiny_llama.checkpoint(tmp_path / "base")
    path = tiny_llama.adapter(tmp_path / "peft", base)
    model = load.load_model(reference.find_model(str(path)), precision="fp32").model
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        lora.save(model, tmp_path / name, base=str(base))
    assert files(tmp_path / "first") == files(tmp_path / "second")
    again = load.load_model(reference.find_model(str(tmp_path / "first")), precision="fp32").model
    ids = torch.arange(5, 15)[None]
    with torch.inference_mode():
        assert torch.equal(again(ids).logits, model(ids).logits)
