"""The memory estimate, against real models and against itself."""

from types import SimpleNamespace

import pytest

from countdown_rl.models import shape
from countdown_rl.models.nf4 import linears
from countdown_rl.training import memory, weights
from countdown_rl.training.config import SftOptions
from tests.support import standins

LLAMA_8B = {
    "vocab_size": 128_256,
    "hidden_size": 4_096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}


def big(**changes):
    """A skeleton of the shape of Llama-3.1-8B."""
    family = standins.FAMILIES["llama-3.1"]
    return shape.skeleton(standins.config(family, standins.tokenizer(family), **LLAMA_8B | changes))


def trained(model, options):
    ref = SimpleNamespace(base=None, source="model")
    adapted = weights.adapted(ref, model, options)
    return sum(parameter.numel() for parameter in adapted.parameters() if parameter.requires_grad)


def estimate(model, options=None, **changes):
    sizes = {"device": "cuda", "nf4": False, "width": 2, "length": 356, "scored": 256}
    options = options or SftOptions()
    return memory.estimate(model, options, trained(model, options), **sizes | changes)


def test_an_8b_adapter_of_rank_8_has_the_published_count_of_parameters():
    model = big()
    count = trained(model, SftOptions(lora_r=8))
    assert count == 20_971_520
    assert model.num_parameters() + count == 8_051_232_768


def test_4_bit_weights_are_counted_in_stored_bytes():
    import torch

    from countdown_rl.models import nf4

    model = big(num_hidden_layers=1, hidden_size=1_024, intermediate_size=2_048)
    stored = 2 * model.num_parameters()
    for name, layer in nf4.linears(model).items():
        parts = nf4.pack(name, torch.ones(layer.weight.shape))
        stored += sum(part.nbytes for part in parts.values()) - 2 * layer.weight.numel()
    assert estimate(model, nf4=True).weights == pytest.approx(stored, rel=1e-4)


def test_an_adapter_over_4_bit_weights_is_counted_in_fp32():
    model = big(num_hidden_layers=1)
    found = estimate(model, nf4=True)
    count = trained(model, SftOptions(lora_r=16))
    assert (found.adapter, found.gradients, found.optimiser) == (4 * count, 4 * count, 8 * count)


def kept(family, layers, dtype, dropout):
    """Bytes that the forward pass of a real stand-in keeps, per token."""
    import peft
    import transformers

    config = standins.config(family, standins.tokenizer(family), num_hidden_layers=layers, tie_word_embeddings=False)
    model = getattr(transformers, f"{family.architecture}ForCausalLM")(config).to(dtype)
    lora = peft.LoraConfig(r=4, target_modules="all-linear", lora_dropout=dropout, task_type="CAUSAL_LM")
    return saved_bytes(peft.get_peft_model(model, lora).train())


def saved_bytes(model):
    """Bytes per token that autograd keeps of a forward pass of *model*, and its base."""
    import torch

    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    alive, found = [], {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            alive.append(tensor)  # so that no later one gets the same address
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    ids = torch.arange(200).view(4, 50)
    padded = (ids % 50 < 49).long()  # by a token, so that attention has a mask
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        base = model.get_base_model() if hasattr(model, "peft_config") else model
        hidden = base.model(input_ids=ids, attention_mask=padded).last_hidden_state
    assert hidden.requires_grad
    return sum(found.values()) / ids.numel(), base


@pytest.mark.parametrize("dropout", [0.0, 0.05])
@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize("name", standins.FAMILIES)
def test_activations_of_a_block_are_those_that_autograd_keeps(name, width, dropout):
    import torch

    dtype = {2: torch.bfloat16, 4: torch.float32}[width]
    (one, model), (three, _) = (kept(standins.FAMILIES[name], layers, dtype, dropout) for layers in (1, 3))
    reckoned = memory.kept_by_block(model, SftOptions(lora_dropout=dropout), width, 50, autocast=False)
    assert reckoned == pytest.approx((three - one) / 2, rel=0.1)


@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize("name", ["llama-3.1", "qwen3"])
def test_all_weights_are_counted_with_fp32_states_and_the_inputs_of_layers(name, width):
    import torch
    import transformers

    from tests.support import tiny_llama

    family = standins.FAMILIES[name]

    def kept_by(layers):
        config = standins.config(family, standins.tokenizer(family), num_hidden_layers=layers)
        model = getattr(transformers, f"{family.architecture}ForCausalLM")(config).train()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=width == 2):
            kept, base = saved_bytes(model)
        copies = sum(parameter.numel() for parameter in model.model.layers.parameters() if parameter.ndim == 2)
        return kept - (2 * copies / 200 if width == 2 else 0), base  # copies of weights are no activations

    (one, model), (three, _) = kept_by(1), kept_by(3)
    reckoned = memory.kept_by_block(model, SftOptions(tune="all"), width, 50, autocast=True)
    assert reckoned == pytest.approx((three - one) / 2, rel=0.02)
    found = estimate(tiny_llama.model(), SftOptions(tune="all"), device="cpu", width=4)
    count = tiny_llama.model().num_parameters()
    assert (found.weights, found.adapter, found.gradients, found.optimiser) == (4 * count, 0, 4 * count, 8 * count)


def test_a_run_fits_with_a_margin_of_a_tenth_and_a_gibibyte():
    estimates = [memory.Estimate("cuda", 10 << 30, 0, 0, 0, 0, 0)]
    fits = [memory.Memory(1, estimates, available).fits for available in (None, 11 << 30, 12 << 30)]
    assert fits == [None, False, True]


def test_memory_depends_on_batch_length_precision_and_checkpointing():
    model = big(num_hidden_layers=2, vocab_size=1_000)
    plain = estimate(model, sequences=16)
    assert estimate(model, SftOptions(gradient_checkpointing=True)).loss < plain.loss
    assert estimate(model, SftOptions(micro_batch=4)).loss < plain.loss
    assert estimate(model, nf4=True).weights < plain.weights / 2
    assert estimate(model, sequences=8).generation * 2 == plain.generation
    assert estimate(model, sequences=16, length=1100).generation > plain.generation
    parts = plain.weights + plain.adapter + plain.gradients + plain.optimiser
    assert plain.peak == parts + max(plain.generation, plain.loss)


def test_states_of_zero_are_counted():
    model = big(num_hidden_layers=1)
    count = model.num_parameters()
    whole = SftOptions(tune="all")
    zero = estimate(model, whole, zero=2)  # weights and gradients in bf16; fp32 weights and two states
    assert (zero.weights, zero.gradients, zero.optimiser) == (2 * count, 2 * count, 12 * count)


def test_the_decoder_of_a_cpu_has_a_copy_of_the_layers():
    model = big(num_hidden_layers=2)
    there, here = (estimate(model, sequences=8, device=device) for device in ("cuda", "cpu"))
    layers = sum(layer.weight.numel() for layer in linears(model).values())
    assert here.generation - there.generation == 2 * layers
    assert estimate(model, device="cpu").generation == 0
