"""LoRA gradients equal the formula for every precision of the base, before and after generation."""

import pytest
import torch

from countdown_rl.inference.cpu_decoder import Decoder, supports
from countdown_rl.inference.sampling import Decoding, Stop
from countdown_rl.models.load import load_model
from countdown_rl.models.reference import find_model
from tests.support import tiny_llama

RANK, ALPHA = 4, 8
GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
PATHS = [
    ("fp32", "cpu", "plain", 1e-4),
    ("bf16", "cpu", "plain", 0.1),
    ("nf4", "cpu", "dequantized-nf4", 1e-4),
    *(
        pytest.param("nf4", "cuda", path, 0.1, marks=GPU)
        for path in ("bitsandbytes-nf4", "dequantized-nf4")
    ),
]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tiny_llama.checkpoint(tmp_path_factory.mktemp("model") / "base")


def batch():
    return torch.randint(5, 300, (3, 24), generator=torch.Generator().manual_seed(3))


def loss(logits, ids):
    return torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten()
    )


def held(weight, precision):
    """The values of *weight* that a base of that precision computes with, by bitsandbytes' own kernels."""
    if precision != "nf4":
        return weight.float()
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    packed, state = quantize_4bit(weight, blocksize=64, compress_statistics=True, quant_type="nf4")
    return dequantize_4bit(packed, state).float()


def by_formula(base, precision, lora):
    """Gradients of W + (alpha / r) B A with respect to A and B, in fp32, without PEFT."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16)
    values = {name: value.detach().float() for name, value in model.named_parameters()}
    leaves = {name: value.clone().requires_grad_() for name, value in lora.items()}
    for name in {name.rsplit(".lora_", 1)[0] for name in lora}:
        low, high = leaves[f"{name}.lora_A"], leaves[f"{name}.lora_B"]
        weight = held(model.get_submodule(name).weight.detach(), precision)
        values[f"{name}.weight"] = weight + ALPHA / RANK * high @ low
    ids = batch()
    logits = torch.func.functional_call(model.float(), values, (ids,)).logits
    loss(logits, ids).backward()
    return {name: leaf.grad for name, leaf in leaves.items()}


def parts(model):
    """The LoRA parameters of *model*, by the name that their layer has in the base."""
    return {
        name.removeprefix("base_model.model.").replace(".default.weight", ""): value
        for name, value in model.named_parameters()
        if ".lora_" in name
    }


def gradients(model):
    model.train()
    model.zero_grad()
    ids = batch().to(model.device)
    loss(model(ids).logits, ids).backward()
    return {name: value.grad.float().cpu().clone() for name, value in parts(model).items()}


def evaluate(model, tokenizer):
    """Everything a run does with its model between two steps of training."""
    model.eval()
    ids = batch()[:, :8].to(model.device)
    with torch.no_grad():
        model(ids)
        model.generate(input_ids=ids, max_new_tokens=4, do_sample=False)
    if supports(model):
        stop = Stop(tokenizer, model, "</answer>")
        Decoder(model).decode(ids.tolist(), Decoding(4), stop)


@pytest.mark.parametrize(("precision", "device", "path", "tolerance"), PATHS)
def test_lora_gradients_equal_the_formula_before_and_after_generation(
    base, precision, device, path, tolerance
):
    import peft

    plain = False if path == "bitsandbytes-nf4" else None
    loaded = load_model(find_model(str(base)), precision=precision, device=device, plain=plain)
    assert loaded.storage == path
    torch.manual_seed(0)
    config = peft.LoraConfig(
        r=RANK, lora_alpha=ALPHA, target_modules="all-linear", init_lora_weights=False
    )
    model = peft.get_peft_model(loaded.model, config)
    expected = by_formula(
        base,
        precision,
        {name: value.detach().float().cpu() for name, value in parts(model).items()},
    )
    assert len(expected) == 2 * 2 * 7
    for when in ("before", "after"):
        for name, found in gradients(model).items():
            off = (found - expected[name]).norm() / expected[name].norm()
            assert off < tolerance, (when, name, off)
        evaluate(model, loaded.tokenizer)
