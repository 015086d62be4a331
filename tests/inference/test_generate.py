"""Completions in batches: the same from the fast decoder and from transformers, and over where they are over."""

import pytest
import torch

from countdown_rl.inference import (
    cpu_decoder,
    generate,
)
from countdown_rl.inference.generate import (
    Decoding,
    Generator,
    batches,
    max_rows,
)
from countdown_rl.models.load import Loaded
from countdown_rl.models.reference import ModelRef
from tests.support import tiny_llama

TEXTS = ("Numbers: 3 7", "Numbers: 3 7 50 Target: 46", "50", "Numbers: 3 7")


def held(model) -> Loaded:
    tokenizer = tiny_llama.tokenizer()
    tokenizer.padding_side = "left"
    return Loaded(model.float().eval(), tokenizer, ModelRef("x", "directory", None), "fp32", "cpu", "plain")


def other(name: str):
    from transformers import GPT2Config, GPT2LMHeadModel, Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    if name == "gpt2":
        config = GPT2Config(vocab_size=320, n_embd=64, n_layer=2, n_head=2, n_positions=128, initializer_range=0.2)
        return held(GPT2LMHeadModel(config))
    return held(
        Qwen2ForCausalLM(
            Qwen2Config(
                vocab_size=320,
                hidden_size=64,
                intermediate_size=128,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                initializer_range=0.2,
                tie_word_embeddings=False,
                eos_token_id=1,
                pad_token_id=0,
            )
        )
    )


@pytest.fixture
def llama():
    return held(tiny_llama.model(tie_word_embeddings=False, initializer_range=0.2))


@pytest.fixture
def by_transformers(monkeypatch):
    monkeypatch.setattr(cpu_decoder, "supports", lambda model: False)


def prompts(loaded):
    return [loaded.tokenizer.encode(text, add_special_tokens=False) for text in TEXTS]


def test_both_ways_write_the_same_greedy_tokens(llama, monkeypatch):
    fast = Generator(llama, Decoding(24)).complete(prompts(llama))
    monkeypatch.setattr(cpu_decoder, "supports", lambda model: False)
    assert Generator(llama, Decoding(24)).complete(prompts(llama)) == fast
    assert len({one.text for one in fast}) == 3  # two of the four prompts are the same
    assert len(set(fast[1].text)) > 5


@pytest.mark.parametrize("name", ["gpt2", "qwen2"])
def test_another_architecture_writes_too_and_padding_changes_nothing(name):
    loaded = other(name)
    generator = Generator(loaded, Decoding(16))
    together = generator.complete(prompts(loaded))
    assert together == [generator.complete([prompt])[0] for prompt in prompts(loaded)]
    assert all(1 <= one.tokens <= 16 for one in together)


@pytest.mark.parametrize("path", ["fast", "transformers"])
def test_sampling_repeats_with_its_seed_and_its_batch_number(llama, path, monkeypatch):
    if path == "transformers":
        monkeypatch.setattr(cpu_decoder, "supports", lambda model: False)

    def draw(seed, number):
        return Generator(llama, Decoding(12, temperature=1.0, top_p=0.9, seed=seed)).complete(prompts(llama), number)

    torch.manual_seed(7)
    first = draw(1, 0)
    torch.manual_seed(8)
    assert draw(1, 0) == first
    assert draw(1, 1) != first != draw(2, 0)
    assert draw(10**18, 3) == draw(10**18, 3)


def scripted(loaded, *texts):
    """*loaded*, made to write each of *texts* and then something else for ever."""
    scripts = [loaded.tokenizer.encode(text, add_special_tokens=False) for text in texts]
    forward = loaded.model.forward
    said: list[int] = []

    def say(input_ids=None, attention_mask=None, **kwargs):  # by these names generate knows what to pass
        out = forward(input_ids=input_ids, attention_mask=attention_mask, **kwargs)
        at = len(said)
        said.append(at)
        for row, script in enumerate(scripts):
            token = script[at] if at < len(script) else 40
            out.logits[row, -1] = torch.nn.functional.one_hot(torch.tensor(token), 320) * 100.0
        return out

    loaded.model.forward = say
    return loaded


def test_it_stops_behind_an_answer_of_several_tokens(llama, by_transformers):
    answers = ("1 + 2</think>\n<answer>3 * 4</answer>", "<answer>5</answer>\nand", "no answer at all, for long")
    loaded = scripted(llama, *answers)
    room = max(len(loaded.tokenizer.encode(text)) for text in answers) + 4
    written = Generator(loaded, Decoding(room)).complete([[9, 9], [9, 9, 9, 9], [9]])
    assert written[0].text == answers[0]
    assert written[1].text.startswith("<answer>5</answer>")
    assert len(written[1].text) <= len("<answer>5</answer>\n")
    assert [one.ended for one in written] == [True, True, False]
    assert [one.tokens for one in written][2] == room
    assert written[0].tokens == len(loaded.tokenizer.encode(answers[0]))


def test_a_stop_in_the_prompt_is_not_the_completions(llama, by_transformers):
    prompt = llama.tokenizer.encode("<answer>1</answer>", add_special_tokens=False)
    loaded = scripted(llama, "and more")
    written = Generator(loaded, Decoding(6)).complete([prompt])
    assert written[0].tokens == 6
    assert not written[0].ended


def test_what_a_checkpoint_would_add_to_sampling_is_left_out(by_transformers):
    plain, opinionated = other("qwen2"), other("qwen2")
    own = opinionated.model.generation_config
    own.do_sample, own.temperature, own.top_k, own.min_p = True, 0.3, 3, 0.2
    own.num_beams, own.repetition_penalty, own.no_repeat_ngram_size = 2, 1.5, 2
    for how in (Decoding(12), Decoding(12, temperature=1.0, seed=3)):
        assert Generator(opinionated, how).complete(prompts(plain)) == Generator(plain, how).complete(prompts(plain))


def test_a_second_generator_knows_the_same_ends():
    loaded = other("qwen2")
    loaded.model.generation_config.eos_token_id = [1, 77]
    first, second = (Generator(loaded, Decoding(4)) for _ in range(2))
    assert first._stop.ids == second._stop.ids == {0, 1, 77}


def test_batches_hold_every_row_once_with_rows_like_it():
    lengths = [5, 1, 9, 1, 7, 3, 3]
    found = list(batches(lengths, lambda length: 3))
    assert found == [[1, 3, 5], [6, 0, 4], [2]]
    assert sorted(row for batch in found for row in batch) == list(range(7))
    # A batch ends before the row whose length would not let so many in.
    assert list(batches(lengths, lambda length: max(1, 12 // length))) == [[1, 3, 5, 6], [0], [4], [2]]
    assert list(batches([], lambda length: 3)) == []


def test_fewer_rows_fit_the_longer_they_are_and_one_always_does(llama):
    rows = [max_rows(llama, length) for length in (16, 4_096, 65_536, 10**9)]
    assert rows[0] == generate.MAX_ROWS
    assert rows == sorted(rows, reverse=True)
    assert rows[-1] == 1
    assert max_rows(other("gpt2"), 64) > 1
