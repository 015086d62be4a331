"""The bf16 CPU decoder against the model's own forward pass, within bf16 rounding."""

import numba
import pytest
import torch

from countdown_rl.inference import generate
from countdown_rl.inference.cpu_decoder import Decoder
from countdown_rl.inference.cpu_decoder_bf16 import Bf16Decoder
from countdown_rl.inference.stop import Stop
from countdown_rl.models import load
from countdown_rl.models.reference import ModelRef
from countdown_rl.models.torch_internals import has_bf16_products
from tests.support import tiny_llama

pytestmark = pytest.mark.skipif(not has_bf16_products(), reason="oneDNN has no bf16 on this processor")

TEXTS = ("Numbers: 3 7", "Numbers: 3 7 50 Target: 46", "50", "Numbers: 3 7")


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_llama.tokenizer()


@pytest.fixture(scope="module", params=["plain", "lora"])
def model(request):
    import peft

    # With tied embeddings a random model repeats its last token.
    base = tiny_llama.model(tie_word_embeddings=False, initializer_range=0.2).eval()
    if request.param == "plain":
        return base
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", init_lora_weights=False)
    return peft.get_peft_model(base, config, autocast_adapter_dtype=True).eval()


def encode(tokenizer):
    return [tokenizer.encode(text, add_special_tokens=False) for text in TEXTS]


def test_greedy_tokens_have_nearly_the_models_largest_logits(model, tokenizer):
    stop = Stop(tokenizer, model, "</answer>")
    prompts = encode(tokenizer)
    for prompt, ids in zip(prompts, Bf16Decoder(model).decode(prompts, max_new_tokens=24, stop=stop), strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1].float()
        assert len(set(ids)) > 3
        short = logits.max(-1).values - logits.gather(1, torch.tensor(ids)[:, None])[:, 0]
        assert float(short.max()) < 0.05 * float(logits.std())


@torch.inference_mode()
def test_a_step_over_a_padded_cache_equals_fp32_attention_within_rounding(model, tokenizer):
    hidden = []
    for decoder in (Decoder(model, torch.bfloat16), Bf16Decoder(model)):
        keys, values, _, lengths, padding = decoder._prefill(encode(tokenizer), 4)
        assert padding.any()
        start = padding.size(1)
        for step, token in enumerate((7, 11, 13)):
            tokens = torch.full((len(lengths),), token)
            last = decoder._step(tokens, lengths + step, keys, values, padding, start + step)
        hidden.append(last)
    # The cache is rounded to 8 bits of mantissa.
    assert float((hidden[0] - hidden[1]).abs().max()) < 0.03 * float(hidden[0].abs().max())


def test_more_threads_give_the_same_bytes(model, tokenizer):
    stop = Stop(tokenizer, model, "</answer>")
    before = torch.get_num_threads()
    written = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            decoder = Bf16Decoder(model)
            written.append(decoder.decode(encode(tokenizer), max_new_tokens=16, stop=stop))
            assert numba.get_num_threads() == min(threads, numba.config.NUMBA_NUM_THREADS)
    finally:
        torch.set_num_threads(before)
    assert written[0] == written[1]


def test_a_bf16_cache_allows_larger_batches(tokenizer):
    def rows(model):
        loaded = load.Loaded(model, tokenizer, ModelRef("x", "directory", None), "bf16", "cpu", "plain")
        return generate.Generator(loaded, generate.Decoding(4)).max_rows(4_096, 4_096)

    assert rows(tiny_llama.model()) > rows(tiny_llama.model().float())


def test_the_bf16_decoder_is_used_for_bf16_models_only(tokenizer):
    def decoder(model):
        loaded = load.Loaded(model, tokenizer, ModelRef("x", "directory", None), "bf16", "cpu", "plain")
        return type(generate.Generator(loaded, generate.Decoding(4))._decoder)

    assert decoder(tiny_llama.model()) is Bf16Decoder
    assert decoder(tiny_llama.model().float()) is Decoder
