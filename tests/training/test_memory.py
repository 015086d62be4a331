"""The memory of a run by arithmetic."""

from types import SimpleNamespace

import pytest
import torch

from countdown_rl.models import nf4, shape
from countdown_rl.training import memory, weights
from countdown_rl.training.options import SftOptions
from tests.support import standins

LLAMA_8B = {"vocab_size": 128_256, "hidden_size": 4_096, "intermediate_size": 14_336}
LLAMA_8B |= {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8}


def of_run(precision, options=None, sequences=0, **changes):
    """The memory of a run on a skeleton of the shape of Llama-3.1-8B, and the skeleton."""
    family = standins.FAMILIES["llama-3.1"]
    config = standins.config(family, standins.tokenizer(family), **LLAMA_8B | changes)
    model = shape.skeleton(config)
    ref = SimpleNamespace(base=None, source="model")
    adapted = weights.adapted(ref, model, options or SftOptions(lora_r=8))
    loaded = SimpleNamespace(model=model, precision=precision)
    return memory.of_run(loaded, adapted, sequences=sequences, length=384), model


def test_an_8b_adapter_of_rank_8_has_the_published_count_of_parameters():
    found, model = of_run("bf16", sequences=128)
    assert found.trainable == 20_971_520
    assert model.num_parameters() + found.trainable == 8_051_232_768
    assert found.weights == 2 * model.num_parameters()
    assert (found.states, found.checkpoint) == (16 * 20_971_520, 12 * 20_971_520)
    assert found.cache == 128 * 384 * 131_072  # 128 KiB for a token
    assert found.total == found.weights + found.states + found.cache


def test_4_bit_weights_are_counted_in_stored_bytes_on_a_gpu(monkeypatch):
    monkeypatch.setattr(memory.load, "device_name", lambda name: "cuda:0")
    monkeypatch.setattr(memory.load, "compute_dtype", lambda *_: torch.bfloat16)
    monkeypatch.setattr(memory, "_device_memory", lambda device: 24 << 30)
    found, model = of_run("nf4", num_hidden_layers=1)
    stored = 2 * model.num_parameters()
    for layer in nf4.linears(model).values():
        stored += round(layer.weight.numel() * (memory.NF4_BYTES - 2))
    assert found.weights == pytest.approx(stored, rel=1e-6)


def test_all_weights_have_states_of_16_bytes():
    found, model = of_run("fp32", SftOptions(tune="all"), num_hidden_layers=1, hidden_size=64)
    assert found.states == 16 * model.num_parameters()
