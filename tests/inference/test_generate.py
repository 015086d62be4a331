"""Batched completions: sampling, stopping, and batch sizes."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from countdown_rl.inference import cpu_decoder, generate
from countdown_rl.inference.engine import Completion, batches
from countdown_rl.inference.generate import Decoding, Generator
from countdown_rl.models.load import Loaded
from countdown_rl.models.reference import ModelRef
from tests.support import tiny_llama

TEXTS = ("Numbers: 3 7", "Numbers: 3 7 50 Target: 46", "50", "Numbers: 3 7")


@pytest.fixture
def llama():
    tokenizer = tiny_llama.tokenizer()
    tokenizer.padding_side = "left"
    model = tiny_llama.model(tie_word_embeddings=False, initializer_range=0.2).float().eval()
    return Loaded(model, tokenizer, ModelRef("x", "directory", None), "fp32", "cpu", "plain")


@pytest.fixture
def by_transformers(monkeypatch):
    monkeypatch.setattr(cpu_decoder, "supports", lambda model: False)


def prompts(loaded):
    return [loaded.tokenizer.encode(text, add_special_tokens=False) for text in TEXTS]


@pytest.mark.parametrize("fast", [True, False])
def test_sampling_is_reproducible_by_seed_and_batch_number(llama, fast, request):
    if not fast:
        request.getfixturevalue("by_transformers")

    def sampled(seed, number):
        decoding = Decoding(12, temperature=1.0, top_p=0.9, seed=seed)
        return Generator(llama, decoding).complete(prompts(llama), number)

    torch.manual_seed(7)
    first = sampled(1, 0)
    torch.manual_seed(8)
    assert sampled(1, 0) == first
    assert first[0] != first[3]  # of the same prompt
    assert sampled(1, 1) != first != sampled(2, 0)
    assert sampled(10**18, 3) == sampled(10**18, 3)


def test_generation_stops_after_an_answer_of_several_tokens(llama, by_transformers):
    answers = (
        "1 + 2</think>\n<answer>3 * 4</answer>",
        "<answer>5</answer>\nand",
        "no answer at all, for long",
    )
    scripts = [llama.tokenizer.encode(text) for text in answers]
    limit = max(map(len, scripts)) + 4
    forward = llama.model.forward
    steps = []

    # By these names generate knows what to pass.
    def scripted(input_ids=None, attention_mask=None, **options):
        out = forward(input_ids=input_ids, attention_mask=attention_mask, **options)
        for row, script in enumerate(scripts):
            token = [*script, *[40] * limit][len(steps)]
            out.logits[row, -1] = torch.nn.functional.one_hot(torch.tensor(token), 320) * 100.0
        steps.append(input_ids)
        return out

    llama.model.forward = scripted
    prompt = llama.tokenizer.encode("</answer>")  # whose end is not that of a completion
    first, second, third = Generator(llama, Decoding(limit)).complete([prompt, [9] * 4, [9]])
    assert first == Completion(answers[0], len(scripts[0]), True)
    assert second.text in ("<answer>5</answer>", "<answer>5</answer>\n")
    assert second.ended
    assert (third.tokens, third.ended) == (limit, False)


@given(st.lists(st.integers(1, 20)), st.integers(1, 60))
def test_batches_hold_every_row_once_with_rows_of_similar_length(lengths, memory):
    def capacity(length):
        return max(1, memory // length)

    result = list(batches(lengths, capacity))
    rows = [row for batch in result for row in batch]
    assert rows == sorted(range(len(lengths)), key=lambda row: (lengths[row], row))
    assert all(len(batch) <= capacity(lengths[batch[-1]]) for batch in result)


def test_longer_rows_give_smaller_batches_of_at_least_one_and_a_gpu_takes_more(llama, monkeypatch):
    engine = Generator(llama, Decoding(1))
    lengths = (16, 4_096, 65_536, 10**9)
    on_cpu = [engine.max_rows(length) for length in lengths]
    card = SimpleNamespace(total_memory=80 << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    monkeypatch.setattr(type(llama.model), "device", torch.device("cuda:0"))
    on_gpu = [engine.max_rows(length) for length in lengths]
    assert (on_cpu[0], on_gpu[0]) == (generate.MAX_ROWS, generate.MAX_GPU_ROWS)
    for rows in (on_cpu, on_gpu):
        assert rows == sorted(rows, reverse=True)
        assert rows[-1] == 1
    assert on_gpu[2] > on_cpu[2]


class Limited(Generator):
    """An engine whose memory has place for *most* rows; beyond that it raises *error*."""

    def __init__(self, most, error=MemoryError):
        self.most, self.error, self.calls = most, error, []

    def _complete(self, prompts, number):
        self.calls.append((len(prompts), number))
        if len(prompts) > self.most:
            if self.error is None:
                torch.empty(1 << 60)  # more than there is
            raise self.error
        return [Completion(str(prompt[0]), 1, True) for prompt in prompts]


@pytest.fixture
def _quick(monkeypatch):
    # It takes a second.
    monkeypatch.setattr("accelerate.utils.memory.clear_device_cache", lambda **_: None)


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError(), None]
)
@pytest.mark.usefixtures("_quick")
def test_a_batch_that_does_not_fit_in_memory_is_halved_with_random_numbers_for_each_half(error):
    engine = Limited(1, error)
    completions = engine.complete([[k] for k in range(5)], 9)
    assert [completion.text for completion in completions] == [str(k) for k in range(5)]
    assert [size for size, _ in engine.calls] == [5, 3, 2, 1, 1, 1, 2, 1, 1]
    assert len({number for size, number in engine.calls if size == 1}) == 5


@pytest.mark.parametrize(
    ("error", "raised", "word"),
    [
        (MemoryError, "ModelError", "--max-new-tokens"),
        (RuntimeError("shapes"), "RuntimeError", "shapes"),
    ],
)
@pytest.mark.usefixtures("_quick")
def test_one_row_that_does_not_fit_is_reported_and_other_errors_are_raised(error, raised, word):
    with pytest.raises(Exception, match=word) as caught:
        Limited(0, error).complete([[1], [2]])
    assert caught.type.__name__ == raised
