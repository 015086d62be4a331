"""The memory estimate, against real models and against itself."""

from types import SimpleNamespace

import peft
import pytest
import torch
import transformers

from countdown_rl.models import nf4, shape
from countdown_rl.training import memory, weights
from countdown_rl.training.options import SftOptions
from tests.support import standins

LLAMA_8B = {
    "vocab_size": 128_256,
    "hidden_size": 4_096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
}
LLAMA_8B |= {"num_attention_heads": 32, "num_key_value_heads": 8}


def big(**changes):
    """A skeleton of the shape of Llama-3.1-8B."""
    family = standins.FAMILIES["llama-3.1"]
    return shape.skeleton(standins.config(family, standins.tokenizer(family), **LLAMA_8B | changes))


def trained(model, options):
    ref = SimpleNamespace(base=None, source="model")
    adapted = weights.adapted(ref, model, options)
    return sum(parameter.numel() for parameter in adapted.parameters() if parameter.requires_grad)


def estimate(model, options=None, **changes):
    sizes = {"device": "cuda", "in_4_bits": False, "width": 2, "length": 356, "scored": 256}
    options = options or SftOptions()
    return memory.estimate(model, options, trained(model, options), **sizes | changes)


def test_an_8b_adapter_of_rank_8_has_the_published_count_of_parameters():
    model = big()
    count = trained(model, SftOptions(lora_r=8))
    assert count == 20_971_520
    assert model.num_parameters() + count == 8_051_232_768


def test_4_bit_weights_are_counted_in_stored_bytes():
    model = big(num_hidden_layers=1, hidden_size=1_024, intermediate_size=2_048)
    stored = 2 * model.num_parameters()
    for name, layer in nf4.linears(model).items():
        parts = nf4.pack(name, torch.ones(layer.weight.shape))
        stored += sum(part.nbytes for part in parts.values()) - 2 * layer.weight.numel()
    assert estimate(model, in_4_bits=True).weights == pytest.approx(stored, rel=1e-4)


def saved_bytes(model):
    """Bytes per token that autograd keeps of a forward pass of *model*, and its base."""
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


@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        *(
            (name, SftOptions(lora_r=4, lora_dropout=dropout))
            for name in standins.FAMILIES
            for dropout in (0.0, 0.05)
        ),
        *((name, SftOptions(tune="all")) for name in ("llama-3.1", "qwen3")),
    ],
)
def test_activations_of_a_block_are_those_that_autograd_keeps(name, options, width):
    family, whole = standins.FAMILIES[name], options.tune == "all"

    def kept_by(layers):
        changes = {"num_hidden_layers": layers} | ({} if whole else {"tie_word_embeddings": False})
        config = standins.config(family, standins.tokenizer(family), **changes)
        model = getattr(transformers, f"{family.architecture}ForCausalLM")(config)
        if not whole:
            lora = {"r": 4, "target_modules": "all-linear", "lora_dropout": options.lora_dropout}
            lora = peft.LoraConfig(**lora, task_type="CAUSAL_LM")
            model = peft.get_peft_model(
                model.to({2: torch.bfloat16, 4: torch.float32}[width]), lora
            )
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=whole and width == 2):
            kept, base = saved_bytes(model.train())
        copies = sum(
            parameter.numel() for parameter in base.model.layers.parameters() if parameter.ndim == 2
        )
        return kept - (
            2 * copies / 200 if whole and width == 2 else 0
        ), base  # copies of weights are no activations

    (one, model), (three, _) = kept_by(1), kept_by(3)
    estimated = memory.kept_by_block(model, options, width, 50, autocast=whole)
    assert estimated == pytest.approx((three - one) / 2, rel=0.1)


def test_a_run_fits_with_a_margin_of_a_tenth_and_a_gibibyte():
    estimates = [memory.Estimate("cuda", 10 << 30, 0, 0, 0, 0, 0)]
    fits = [memory.Memory(1, estimates, available).fits for available in (None, 11 << 30, 12 << 30)]
    assert fits == [None, False, True]


def test_memory_depends_on_batch_length_precision_and_checkpointing():
    model, count = (
        big(num_hidden_layers=2, vocab_size=1_000),
        trained(big(num_hidden_layers=2), SftOptions()),
    )
    plain = estimate(model, sequences=16)
    assert (plain.adapter, plain.gradients, plain.optimiser) == (4 * count, 4 * count, 8 * count)
    assert estimate(model, SftOptions(gradient_checkpointing=True)).loss < plain.loss
    assert estimate(model, SftOptions(micro_batch=4)).loss < plain.loss
    assert estimate(model, in_4_bits=True).weights < plain.weights / 2
    assert estimate(model, sequences=8).generation * 2 == plain.generation
    assert plain.peak == plain.weights + 16 * count + max(plain.generation, plain.loss)


def test_reading_prompts_needs_205_kb_a_token_and_its_cache(monkeypatch):
    model = big()
    sizes = {"sequences": 128, "length": 384, "scored": 128, "prompts": 32}
    assert (
        estimate(model, **sizes).generation == 128 * (384 * 131_072 * 3 // 2 + (16 + 2) * 128_256)
    )  # prompts of a group are read once; logits are in bf16 and fp32, beside three tensors of sampling
    monkeypatch.setattr(memory.graph_decoder, "supports", lambda model: False)
    assert estimate(model, **sizes).generation == 128 * 256 * (131_072 + 204_800)  # 11.0 GB


def test_the_decoder_of_a_cpu_has_a_copy_of_the_layers():
    model = big(num_hidden_layers=2)
    there, here = (
        estimate(model, sequences=8, device=device, width=4) for device in ("cuda", "cpu")
    )
    layers = sum(layer.weight.numel() for layer in nf4.linears(model).values())
    assert here.generation - there.generation == 4 * layers
    assert estimate(model, device="cpu").generation == 0


@pytest.mark.parametrize(
    ("available", "vllm", "plain"),
    [(18, None, False), (40, None, True), (40, 0.6, False), (80, 0.3, True)],
)
def test_nf4_values_are_held_plainly_where_the_planned_memory_fits(
    monkeypatch, available, vllm, plain
):
    model = big()
    options = SftOptions(micro_batch=1, gradient_checkpointing=True)
    monkeypatch.setattr(memory.load, "device_name", lambda name: "cuda:0")
    monkeypatch.setattr(memory, "_device_memory", lambda device: available << 30)
    adapted = weights.adapted(SimpleNamespace(base=None, source="model"), model, options)
    planned = memory.plan(model, adapted, options, "nf4", vllm=vllm, length=356, scored=256)
    (held,) = planned.estimates
    assert (planned.plain, planned.fits) == (plain, True)
    assert (held.weights > model.num_parameters()) == plain
    assert held.engine == int((vllm or 0) * (available << 30))


@pytest.mark.parametrize(
    ("engine", "variable", "settings"),
    [
        (0, None, ["expandable_segments:True", "expandable_segments:False"]),
        *((1, None, []), (0, "PYTORCH_ALLOC_CONF", []), (0, "PYTORCH_CUDA_ALLOC_CONF", [])),
    ],
)
def test_segments_of_a_gpu_grow_unless_vllm_shares_the_process(
    monkeypatch, engine, variable, settings
):
    given, loads = [], []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", given.append)
    monkeypatch.setattr(
        weights.load,
        "load_model",
        lambda *_, **given: loads.append(given["plain"]) or SimpleNamespace(device="cuda:0"),
    )
    if variable:
        monkeypatch.setenv(variable, "max_split_size_mb:64")
    planned = memory.Memory(
        1, [memory.Estimate("cuda", 0, 0, 0, 0, 0, 0, engine)], None, plain=True
    )
    weights.load_model(SimpleNamespace(base=None), SftOptions(), planned)
    assert (given, loads) == (settings, [True])


@pytest.mark.parametrize(
    ("available", "given", "size"), [(80, 0, 32), (24, 0, 8), (80, 4, 4), (10, 0, 0)]
)
def test_a_micro_batch_that_is_left_open_is_the_largest_that_fits_a_gpu(
    monkeypatch, available, given, size
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    def plan(options):
        need = 16 + options.per_device_batch / 2
        return "", memory.Memory(
            1, [memory.Estimate("cuda", int(need * 2**30), 0, 0, 0, 0, 0)], available << 30
        )

    options = SftOptions(batch_size=64, micro_batch=given)
    assert memory.with_micro_batch(options, 2, plan).micro_batch == size
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert memory.with_micro_batch(options, 2, plan) == options
