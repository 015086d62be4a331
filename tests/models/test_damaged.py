"""Damaged checkpoints are refused in a sentence by everything that reads them."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from countdown_rl.core.errors import CountdownError, ModelError
from countdown_rl.export.config import QuantizeOptions
from countdown_rl.export.quantize import quantize_model
from countdown_rl.models.load import load_model
from countdown_rl.models.reference import find_model
from countdown_rl.tasks import jsonl
from tests.support import tiny_llama

POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 1\n"
READERS = {
    "load": lambda: load_model(find_model("model")),
    "nf4": lambda: quantize_model(find_model("model"), Path("out"), QuantizeOptions()),
    "gguf": lambda: quantize_model(
        find_model("model"), Path("out"), QuantizeOptions(format="gguf")
    ),
}


@pytest.fixture(autouse=True)
def model(here):
    tiny_llama.checkpoint(Path("model"))


def in_shards() -> list[Path]:
    shutil.rmtree("model")
    tiny_llama.checkpoint(Path("model"), shard="60KB")
    return sorted(Path("model").glob("*.safetensors"))


def not_finite() -> None:
    tensors = load_file("model/model.safetensors")
    tensors["model.embed_tokens.weight"][-1] = torch.nan
    save_file(tensors, "model/model.safetensors", {"format": "pt"})


def change(name: str, **values: object) -> None:
    path = Path("model", name)
    path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | values))


def index(weight_map: object) -> None:
    change("model.safetensors.index.json", metadata={}, weight_map=weight_map)
    Path("model/model.safetensors").rename("model/model-1.safetensors")


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda: in_shards()[1].unlink(), "00002"),
        (not_finite, "not finite"),
        (lambda: Path("model/model.safetensors").write_text(POINTER), "git lfs pull"),
        (lambda: Path("model/tokenizer.json").write_text(POINTER), "git lfs pull"),
        (lambda: Path("model/config.json").write_text(POINTER), "git lfs pull|not JSON"),
        (lambda: Path("model/config.json").write_text("[]"), "config.json"),
        (lambda: change("config.json", quantization_config="nf4"), "quantization_config"),
        (lambda: index(None), "weight_map"),
        (lambda: index({"a": 3}), "weight_map"),
        (lambda: index({"a": "b.safetensors"}), "b.safetensors"),
    ],
)
def test_a_damaged_checkpoint_is_refused(read, damage, words):
    damage()
    with pytest.raises(CountdownError, match=words):
        read()


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet", "model.gguf"])
def test_a_pointer_in_place_of_a_file_is_named(name):
    Path(name).write_text(POINTER)
    with pytest.raises(CountdownError, match="git lfs pull"):
        find_model(name) if name.endswith("gguf") else jsonl.read_rows(Path(name))


def test_a_tokenizer_larger_than_the_model_is_not_written_as_gguf():
    tiny_llama.checkpoint(Path("model"), vocab_size=250)
    with pytest.raises(ModelError, match="token id"):
        READERS["gguf"]()
