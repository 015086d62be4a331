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

needs_bf16 = pytest.mark.skipif(
    not torch_internals.has_bf16_products(), reason="oneDNN has no bf16 on this processor"
)


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_llama.tokenizer()


def make_model(kind, dtype):
    # With tied embeddings a random model repeats its last token.
    base = tiny_llama.model(tie_word_embeddings=False, initializer_range=0.2).to(dtype).eval()
    if kind == "plain":
        return base
    config = peft.LoraConfig(
        r=4, lora_alpha=8, target_modules="all-linear", init_lora_weights=False
    )
    return peft.get_peft_model(base, config).eval()


@pytest.fixture(scope="module", params=["plain", "lora"])
def model(request):
    return make_model(request.param, torch.float32)


@pytest.fixture(scope="module", params=["plain", "lora"])
def bf16_model(request):
    return make_model(request.param, torch.bfloat16)


def prompts(tokenizer, *texts):
    return [tokenizer.encode(text, add_special_tokens=False) for text in texts]


TEXTS = ("Numbers: 3 7", "Numbers: 3 7 50 Target: 46", "50", "Numbers: 3 7")


@pytest.mark.parametrize("compiled_rows", [1, 100], ids=["numba", "torch"])
@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.bfloat16, marks=needs_bf16)], ids=str
)
@pytest.mark.parametrize("kind", ["plain", "lora"])
def test_greedy_tokens_have_the_models_largest_logits(
    kind, dtype, tokenizer, monkeypatch, compiled_rows
):
    monkeypatch.setattr(cpu_attention, "COMPILED_ROWS", compiled_rows)
    model = make_model(kind, dtype)
    stop = Stop(tokenizer, model, "</answer>")
    assert supports(model)
    encoded = prompts(tokenizer, *TEXTS)
    for prompt, ids in zip(
        encoded, Decoder(model, dtype).decode(encoded, Decoding(24), stop), strict=True
    ):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1].float()
        assert len(set(ids)) > 3
        short = logits.max(-1).values - logits.gather(1, torch.tensor(ids)[:, None])[:, 0]
        assert float(short.max()) < (1e-4 if dtype == torch.float32 else 0.05 * float(logits.std()))


def test_prompts_are_read_once_each_in_chunks(model, tokenizer, monkeypatch):
    stop = Stop(tokenizer, model, "</answer>")
    encoded = prompts(tokenizer, *TEXTS)
    read = []
    original = Decoder._read

    def noting(self, ids, padding):
        read.append(len(ids))
        return original(self, ids, padding)

    monkeypatch.setattr(Decoder, "_read", noting)
    whole = Decoder(model).decode(encoded, Decoding(16), stop)
    monkeypatch.setattr(cpu_decoder, "_CHUNK_VALUES", 1)
    assert Decoder(model).decode(encoded, Decoding(16), stop) == whole
    assert read == [3, 1, 1, 1]  # two of the four are the same


def test_a_completion_does_not_depend_on_the_other_rows_of_its_batch(model, tokenizer):
    class Early(Stop):
        def __call__(self, ids):
            return len(ids) == 3 + ids[0] % 9  # rows end at different steps

    stop = Early(tokenizer, model, "</answer>")
    encoded = prompts(tokenizer, *TEXTS)
    decoder = Decoder(model)
    together = decoder.decode(encoded, Decoding(16), stop)
    assert together == [decoder.decode([prompt], Decoding(16), stop)[0] for prompt in encoded]
    assert len({len(ids) for ids in together}) > 1


def test_a_completion_is_cut_at_the_stop_text_and_at_the_end_token(tokenizer):
    stop = Stop(tokenizer, tiny_llama.model(), "</answer>")
    text = tokenizer.encode("5 </answer> and more", add_special_tokens=False)
    assert tokenizer.decode(stop.cut(text)).endswith("</answer>")
    assert stop(stop.cut(text))
    assert stop.cut([9, tokenizer.eos_token_id, 9]) == [9, tokenizer.eos_token_id]
    assert stop.cut([9, 9, 9]) == [9, 9, 9]
    assert not stop([9, 9, 9])


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 1.0, "top_p": 0.7},
        {"temperature": 0.6, "top_p": 0.95, "top_k": 3},
        {"temperature": 1.0, "min_p": 0.25},
        {"temperature": 2.0, "top_k": 9, "top_p": 0.9, "min_p": 0.5},
    ],
)
def test_tokens_are_drawn_from_the_distribution_of_transformers(settings):
    warpers = {
        "temperature": generation.TemperatureLogitsWarper,
        "top_k": generation.TopKLogitsWarper,
    }
    warpers |= {"top_p": generation.TopPLogitsWarper, "min_p": generation.MinPLogitsWarper}
    logits = torch.log(torch.tensor([[0.4, 0.3, 0.15, 0.08, 0.05, 0.02]]))
    expected = logits
    for name, warper in warpers.items():
        if name in settings:
            expected = warper(min(settings[name], 6))(None, expected)
    drawn = sample(
        logits.repeat(4000, 1), Decoding(1, **settings), torch.Generator().manual_seed(0)
    )
    counts = torch.bincount(drawn, minlength=6) / 4000
    torch.testing.assert_close(counts, expected.softmax(-1)[0], atol=0.03, rtol=0)
    assert ((counts == 0) == (expected[0] == float("-inf"))).all()


@pytest.mark.parametrize(
    "changes",
    [
        *({"target_modules": ["q_proj", name]} for name in ("lm_head", "embed_tokens")),
        *({"modules_to_save": ["lm_head"]}, {"trainable_token_indices": [1]}),
        *({"target_modules": ["o_proj"], name: True} for name in ("use_dora", "lora_bias")),
    ],
    ids=str,
)
def test_an_adapter_of_anything_but_the_weights_of_the_blocks_is_not_supported(changes):
    base = tiny_llama.model(tie_word_embeddings=False, attention_bias=True)
    assert supports(base)
    config = peft.LoraConfig(**{"target_modules": ["q_proj"], "task_type": "CAUSAL_LM"} | changes)
    assert not supports(peft.get_peft_model(base, config))


@needs_bf16
def test_more_threads_give_the_same_bytes(bf16_model, tokenizer):
    stop = Stop(tokenizer, bf16_model, "</answer>")
    before = torch.get_num_threads()
    completions = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            decoder = Decoder(bf16_model, torch.bfloat16)
            completions.append(decoder.decode(prompts(tokenizer, *TEXTS), Decoding(16), stop))
            assert numba.get_num_threads() == min(threads, numba.config.NUMBA_NUM_THREADS)
    finally:
        torch.set_num_threads(before)
    assert completions[0] == completions[1]
