"""Decoding in bf16 gives what the model itself would give, within what bf16 tells apart."""

import pytest
import torch

from countdown_rl.inference import cpu_decoder_bf16, generate
from countdown_rl.inference.cpu_decoder import (
    Decoder,
    Stop,
)
from countdown_rl.inference.cpu_decoder_bf16 import Bf16Decoder
from countdown_rl.models import load
from countdown_rl.models.reference import ModelRef
from tests.support import tiny_llama

pytestmark = pytest.mark.skipif(not cpu_decoder_bf16.supported(), reason="oneDNN has no bf16 on this processor")

TEXTS = ("Numbers: 3 7", "Numbers: 3 7 50 Target: 46", "50", "Numbers: 3 7")


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_llama.tokenizer()


@pytest.fixture(scope="module", params=["plain", "lora"])
def model(request):
    import peft

    # With tied embeddings a random model says its last token again and again.
    base = tiny_llama.model(tie_word_embeddings=False, initializer_range=0.2).eval()
    if request.param == "plain":
        return base
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", init_lora_weights=False)
    return peft.get_peft_model(base, config, autocast_adapter_dtype=True).eval()


def given(tokenizer):
    return [tokenizer.encode(text, add_special_tokens=False) for text in TEXTS]


def test_greedy_tokens_are_the_models_own_likeliest_or_as_good_as_that(model, tokenizer):
    stop = Stop(tokenizer, model, "</answer>")
    prompts = given(tokenizer)
    for prompt, ids in zip(prompts, Bf16Decoder(model).decode(prompts, max_new_tokens=24, stop=stop), strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1].float()
        assert len(set(ids)) > 3
        short = logits.max(-1).values - logits.gather(1, torch.tensor(ids)[:, None])[:, 0]
        assert float(short.max()) < 0.05 * float(logits.std())


@torch.inference_mode()
def test_a_step_gives_what_fp32_attention_gives_over_a_padded_cache(model, tokenizer):
    hidden = []
    for decoder in (Decoder(model, torch.bfloat16), Bf16Decoder(model)):
        keys, values, _, lengths, padding = decoder._prefill(given(tokenizer), 4)
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
            assert (decoder._threads is None) == (threads == 1)
            written.append(decoder.decode(given(tokenizer), max_new_tokens=16, stop=stop))
    finally:
        torch.set_num_threads(before)
    assert written[0] == written[1]


def test_a_cache_of_half_the_size_lets_more_rows_in(tokenizer):
    def rows(model):
        held = load.Loaded(model, tokenizer, ModelRef("x", "directory", None), "bf16", "cpu", "plain")
        return generate.max_rows(held, 8_192)

    assert rows(tiny_llama.model()) > rows(tiny_llama.model().float())


def test_evaluation_takes_it_for_a_model_in_bf16_and_for_no_other(tokenizer):
    def decoder(model):
        held = load.Loaded(model, tokenizer, ModelRef("x", "directory", None), "bf16", "cpu", "plain")
        return type(generate.Generator(held, generate.Decoding(4))._decoder)

    assert decoder(tiny_llama.model()) is Bf16Decoder
    assert decoder(tiny_llama.model().float()) is Decoder
