"""Batched completions: the CPU decoder against transformers, stopping, and batch sizes."""

from types import SimpleNamespace

import pytest
import torch
import transformers

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


def test_the_decoder_and_transformers_give_the_same_greedy_tokens(llama, monkeypatch):
    fast = Generator(llama, Decoding(24)).complete(prompts(llama))
    monkeypatch.setattr(cpu_decoder, "supports", lambda model: False)
    assert Generator(llama, Decoding(24)).complete(prompts(llama)) == fast
    assert (
        len({completion.text for completion in fast}) == 3
    )  # two of the four prompts are the same
    assert len(set(fast[1].text)) > 5


@pytest.mark.parametrize("fast", [True, False])
def test_sampling_is_reproducible_by_seed_and_batch_number(llama, fast, request):
    if not fast:
        request.getfixturevalue("by_transformers")

    def sampled(seed, number):
        return Generator(llama, Decoding(12, temperature=1.0, top_p=0.9, seed=seed)).complete(
            prompts(llama), number
        )

    torch.manual_seed(7)
    first = sampled(1, 0)
    torch.manual_seed(8)
    assert sampled(1, 0) == first
    assert first[0] != first[3]  # of the same prompt
    assert sampled(1, 1) != first != sampled(2, 0)
    assert sampled(10**18, 3) == sampled(10**18, 3)


def scripted(loaded, *texts):
    """*loaded*, patched to generate each of *texts* and then one token for ever."""
    scripts = [loaded.tokenizer.encode(text, add_special_tokens=False) for text in texts]
    forward = loaded.model.forward
    steps: list[int] = []

    def forward_script(
        input_ids=None, attention_mask=None, **kwargs
    ):  # by these names generate knows what to pass
        out = forward(input_ids=input_ids, attention_mask=attention_mask, **kwargs)
        step = len(steps)
        steps.append(step)
        for row, script in enumerate(scripts):
            token = script[step] if step < len(script) else 40
            out.logits[row, -1] = torch.nn.functional.one_hot(torch.tensor(token), 320) * 100.0
        return out

    loaded.model.forward = forward_script
    return loaded


def test_generation_stops_after_an_answer_of_several_tokens(llama, by_transformers):
    answers = (
        "1 + 2</think>\n<answer>3 * 4</answer>",
        "<answer>5</answer>\nand",
        "no answer at all, for long",
    )
    loaded = scripted(llama, *answers)
    limit = max(len(loaded.tokenizer.encode(text)) for text in answers) + 4
    prompt = loaded.tokenizer.encode("</answer>")  # whose end is not that of a completion
    written = Generator(loaded, Decoding(limit)).complete([prompt, [9, 9, 9, 9], [9]])
    assert written[0].text == answers[0]
    assert written[1].text.startswith("<answer>5</answer>")
    assert len(written[1].text) <= len("<answer>5</answer>\n")
    assert [completion.ended for completion in written] == [True, True, False]
    assert [completion.tokens for completion in written][2] == limit
    assert written[0].tokens == len(loaded.tokenizer.encode(answers[0]))


def test_batches_hold_every_row_once_with_rows_of_similar_length():
    lengths = [5, 1, 9, 1, 7, 3, 3]
    result = list(batches(lengths, lambda length: 3))
    assert result == [[1, 3, 5], [6, 0, 4], [2]]
    # A batch ends before the row whose length would not let so many in.
    assert list(batches(lengths, lambda length: max(1, 12 // length))) == [
        [1, 3, 5, 6],
        [0],
        [4],
        [2],
    ]
    assert list(batches([], lambda length: 3)) == []


def test_longer_rows_give_smaller_batches_of_at_least_one(llama):
    rows = [Generator(llama, Decoding(1)).max_rows(length) for length in (16, 4_096, 65_536, 10**9)]
    assert rows[0] == generate.MAX_ROWS
    assert rows == sorted(rows, reverse=True)
    assert rows[-1] == 1


def test_a_gpu_takes_rows_by_their_cache(monkeypatch):
    sizes = {
        "hidden_size": 2_048,
        "intermediate_size": 11_008,
        "num_hidden_layers": 36,
        "vocab_size": 151_936,
    }
    config = transformers.Qwen2Config(
        **sizes, num_attention_heads=16, num_key_value_heads=2
    )  # Qwen2.5-3B
    weights = torch.empty(3_085_938_688, dtype=torch.bfloat16, device="meta")
    engine = Limited(1)
    engine._loaded.model = SimpleNamespace(
        config=config,
        dtype=torch.bfloat16,
        device=torch.device("cuda:0"),
        parameters=lambda: [weights],
    )
    card = SimpleNamespace(total_memory=80 << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    rows = engine.max_rows(150 + 4_096)
    cache = 2 * 2 * 36 * 2 * 128 * (150 + 4_096)
    assert rows >= 200
    assert rows * cache < (80 << 30) - 2 * weights.numel()


class Limited(Generator):
    """An engine whose memory has place for *most* rows; beyond that it raises *error*."""

    def __init__(self, most, error=MemoryError):
        self.most, self.error, self.calls = most, error, []
        self._loaded = SimpleNamespace(model=SimpleNamespace(dtype=None))

    def _complete(self, prompts, number):
        self.calls.append((len(prompts), number))
        if len(prompts) > self.most:
            if self.error is None:
                torch.empty(1 << 60)  # more than there is
            raise self.error
        return [Completion(str(prompt[0]), 1, True) for prompt in prompts]


@pytest.fixture
def _quick(monkeypatch):
    monkeypatch.setattr(
        "accelerate.utils.memory.clear_device_cache", lambda **_: None
    )  # which takes a second


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


@pytest.mark.parametrize(("error", "raised", "word"), [(MemoryError, "ModelError", "--max-new-tokens"),
                                                       (RuntimeError("shapes"), "RuntimeError", "shapes")])  # fmt: skip
@pytest.mark.usefixtures("_quick")
def test_one_row_that_does_not_fit_is_reported_and_other_errors_are_raised(error, raised, word):
    with pytest.raises(Exception, match=word) as caught:
        Limited(0, error).complete([[1], [2]])
    assert caught.type.__name__ == raised
