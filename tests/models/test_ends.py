"""End tokens of tokenizers and templates as they are published."""

import json

import pytest

from countdown_rl.models import ends
from tests.support import tiny_llama

TURN = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}END{% endfor %}"
#: Ends of a turn as templates write them, the tokens added for them, and the one that ends a turn.
TEMPLATES = {
    "chatml": ("<|im_end|>\n", ["<|im_end|>"], "<|im_end|>"),
    "llama-3": ("<|eot_id|>", ["<|eom_id|>", "<|eot_id|>"], "<|eot_id|>"),
    "gemma": ("<end_of_turn>\n", ["<end_of_turn>", "<end_of"], "<end_of_turn>"),
    "phi-3": ("<|stop|>\n{% if loop.last %}{{ eos_token }}{% endif %}", ["<|stop|>"], "<|stop|>"),
    "text": ("</turn>\n", [], None),
    "nothing": ("\n\n", [], "<|end|>"),
    "one turn": ("{{ raise_exception('one') if messages | length > 1 }}", [], "<|end|>"),
    "title": ("<|im_end|>", ["<|im_end|>"], "<|im_end|>"),
}


def tokenizer(name):
    end, added, _ = TEMPLATES[name]
    shown = "m.content | title" if name == "title" else "m.content"
    tokens = tiny_llama.tokenizer(TURN.replace("m.content", shown).replace("END", end))
    tokens.add_special_tokens({"additional_special_tokens": added})
    return tokens


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_token_that_ends_a_turn_ends_a_completion(name):
    tokens, expected = tokenizer(name), TEMPLATES[name][2]
    index = None if expected is None else tokens.convert_tokens_to_ids(expected)
    assert ends.turn_token(tokens) == index
    assert set(ends.token_ids(tokens, None, 400)) == {tokens.eos_token_id, index} - {None}


def test_a_demonstration_ends_with_the_end_of_text_after_a_turn_that_ends_in_plain_text():
    learned = [ends.learned_end(tokenizer(name)) for name in ("text", "chatml", "nothing")]
    assert learned == ["</turn><|end|>", "<|im_end|>", "<|end|>"]


@pytest.mark.parametrize(
    ("named", "expected"),
    [(None, [1]), (7, [1, 7]), ([7, 1, 3], [1, 3, 7]), ([7, 9999, -1], [1, 7])],
)
def test_all_end_tokens_within_the_vocabulary_count(named, expected):
    assert ends.token_ids(tokenizer("nothing"), named, 320) == expected


def test_a_tokenizer_without_an_end_leaves_the_models():
    tokens = tiny_llama.tokenizer("{{ messages[0].content }}")
    tokens.eos_token = None
    assert ends.token_ids(tokens, 5, 320) == [5]
    assert ends.learned_end(tokens) == ""


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"generation_config.json": {"eos_token_id": [3, 4]}, "config.json": {}}, [1, 3, 4]),
        ({"config.json": {"eos_token_id": 5, "vocab_size": 320}}, [1, 5]),
        ({"config.json": {"text_config": {"eos_token_id": 500, "vocab_size": 320}}}, [1]),
        ({"generation_config.json": {"do_sample": True}, "config.json": {"eos_token_id": 5}}, [1]),
    ],
)
def test_ends_are_read_as_transformers_reads_them(tmp_path, files, expected):
    for name, values in files.items():
        (tmp_path / name).write_text(json.dumps({"model_type": "llama"} | values))
    assert ends.of_checkpoint(tokenizer("nothing"), tmp_path) == expected


@pytest.mark.parametrize(("ids", "written"), [([3], 3), ([3, 4], [3, 4])])
def test_ends_and_padding_are_all_that_is_written(tmp_path, ids, written):
    ends.write(tmp_path, ids, 0)
    values = json.loads((tmp_path / "generation_config.json").read_text())
    assert values == {"eos_token_id": written, "pad_token_id": 0}
