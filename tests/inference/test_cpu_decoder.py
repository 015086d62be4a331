"""The CPU decoder against the model's own forward pass."""

import numba
import peft
import pytest
import torch
from transformers import generation

from countdown_rl.inference import cpu_attention, cpu_decoder
from countdown_rl.inference.cpu_decoder import Decoder, supports
from countdown_rl.inference.sampling import Decoding, Stop, sample
from countdown_rl.models import torch_internals
from tests.support import tiny_llama

TEXTS = ("Numbers: 3 7", "Numbers: 3 7 50 Target: 46", "50", "Numbers: 3 7")
TOKENIZER = tiny_llama.tokenizer()
PROMPTS = [TOKENIZER.encode(text, add_special_tokens=False) for text in TEXTS]

needs_bf16 = pytest.mark.skipif(
    not torch_internals.has_bf16_products(), reason="oneDNN has no bf16 on this processor"
)


def make_model(kind, dtype):
    # With tied embeddings a random model repeats its last token.
    base = tiny_llama.model(tie_word_embeddings=False, initializer_range=0.2).to(dtype).eval()
    if kind == "plain":
        return base
    settings = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"}
    config = peft.LoraConfig(**settings, init_lora_weights=False)
    return peft.get_peft_model(base, config).eval()


@pytest.fixture(scope="module", params=["plain", "lora"])
def model(request):
    return make_model(request.param, torch.float32)


@pytest.mark.parametrize("compiled_rows", [1, 100], ids=["numba", "torch"])
@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.bfloat16, marks=needs_bf16)], ids=str
)
@pytest.mark.parametrize("kind", ["plain", "lora"])
def test_greedy_tokens_have_the_models_largest_logits(kind, dtype, monkeypatch, compiled_rows):
    monkeypatch.setattr(cpu_attention, "COMPILED_ROWS", compiled_rows)
    model = make_model(kind, dtype)
    stop = Stop(TOKENIZER, model, "</answer>")
    assert supports(model)
    completions = Decoder(model, dtype).decode(PROMPTS, Decoding(24), stop)
    for prompt, ids in zip(PROMPTS, completions, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1].float()
        assert len(set(ids)) > 3
        short = logits.max(-1).values - logits.gather(1, torch.tensor(ids)[:, None])[:, 0]
        assert float(short.max()) < (1e-4 if dtype == torch.float32 else 0.05 * float(logits.std()))


@pytest.mark.parametrize("chunk", [1, cpu_decoder._CHUNK_VALUES])
def test_a_completion_does_not_depend_on_the_other_rows_of_its_batch(model, monkeypatch, chunk):
    class Early(Stop):
        def __call__(self, ids):
            return len(ids) == 3 + ids[0] % 9  # rows end at different steps

    monkeypatch.setattr(cpu_decoder, "_CHUNK_VALUES", chunk)
    stop = Early(TOKENIZER, model, "</answer>")
    decoder = Decoder(model)
    together = decoder.decode(PROMPTS, Decoding(16), stop)
    assert together == [decoder.decode([prompt], Decoding(16), stop)[0] for prompt in PROMPTS]
    assert len({len(ids) for ids in together}) > 1


def test_a_completion_is_cut_at_the_stop_text_and_at_the_end_token():
    stop = Stop(TOKENIZER, tiny_llama.model(), "</answer>")
    text = TOKENIZER.encode("5 </answer> and more", add_special_tokens=False)
    assert TOKENIZER.decode(stop.cut(text)).endswith("</answer>")
    assert stop(stop.cut(text))
    assert stop.cut([9, TOKENIZER.eos_token_id, 9]) == [9, TOKENIZER.eos_token_id]
    assert stop.cut([9, 9, 9]) == [9, 9, 9]
    assert not stop([9, 9, 9])


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.6, "top_k": 3, "top_p": 0.95},
        {"temperature": 2.0, "top_k": 6, "top_p": 0.9, "min_p": 0.5},
    ],
)
def test_tokens_are_drawn_from_the_distribution_of_transformers(settings):
    warpers = {
        "temperature": generation.TemperatureLogitsWarper,
        "top_k": generation.TopKLogitsWarper,
        "top_p": generation.TopPLogitsWarper,
        "min_p": generation.MinPLogitsWarper,
    }
    logits = torch.log(torch.tensor([[0.4, 0.3, 0.15, 0.08, 0.05, 0.02]]))
    expected = logits
    for name, value in settings.items():
        expected = warpers[name](value)(None, expected)
    decoding = Decoding(1, **settings)
    tokens = sample(logits.repeat(4000, 1), decoding, torch.Generator().manual_seed(0))
    counts = torch.bincount(tokens, minlength=6) / 4000
    torch.testing.assert_close(counts, expected.softmax(-1)[0], atol=0.03, rtol=0)
    assert ((counts == 0) == (expected[0] == float("-inf"))).all()


@pytest.mark.parametrize(
    "changes",
    [
        {"target_modules": ["q_proj", "lm_head"]},
        {"target_modules": ["q_proj", "embed_tokens"]},
        {"modules_to_save": ["lm_head"]},
        {"trainable_token_indices": [1]},
        {"use_dora": True},
        {"target_modules": ["o_proj"], "lora_bias": True},
    ],
    ids=str,
)
def test_an_adapter_of_anything_but_the_weights_of_the_blocks_is_not_supported(changes):
    base = tiny_llama.model(tie_word_embeddings=False, attention_bias=True)
    assert supports(base)
    config = peft.LoraConfig(**{"target_modules": ["q_proj"], "task_type": "CAUSAL_LM"} | changes)
    assert not supports(peft.get_peft_model(base, config))


@needs_bf16
def test_more_threads_give_the_same_bytes():
    model = make_model("lora", torch.bfloat16)
    stop = Stop(TOKENIZER, model, "</answer>")
    before = torch.get_num_threads()
    completions = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            decoder = Decoder(model, torch.bfloat16)
            completions.append(decoder.decode(PROMPTS, Decoding(16), stop))
            assert numba.get_num_threads() == min(threads, numba.config.NUMBA_NUM_THREADS)
    finally:
        torch.set_num_threads(before)
    assert completions[0] == completions[1]
