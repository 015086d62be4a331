import pytest

from countdown_rl.sft import tokenizer
from countdown_rl.tasks import countdown

ROW = countdown.CountdownRow({"nums": [19, 36, 55, 7], "target": 65})


@pytest.fixture(scope="module")
def tokens():
    corpus = [turn["content"] for turn in ROW.messages()] * 50
    return tokenizer.build([*corpus, *["36 + 55 = 91, 91 - 7 = 84 no\n(3 * 4) / 2"] * 50], 512)


def prompt(tokens):
    return tokens.apply_chat_template(ROW.messages(), tokenize=False, continue_final_message=True)


def test_any_text_comes_back_as_it_was(tokens):
    for text in ["36 + 55 = 91", "<think>\n×÷−·</think>\n<answer>1</answer>", "Grüße, 世界 \n\t 0042", " a  b "]:
        ids = tokens(text, add_special_tokens=False)["input_ids"]
        assert tokens.decode(ids) == text


def test_a_token_holds_no_more_than_two_digits_and_tags_are_one_token(tokens):
    assert tokens.tokenize("36", add_special_tokens=False) == ["36"]
    assert tokens.tokenize("3684", add_special_tokens=False) == ["36", "84"]
    for tag in tokenizer.TAGS:
        assert len(tokens(tag, add_special_tokens=False)["input_ids"]) == 1
        assert tokens.decode(tokens(tag, add_special_tokens=False)["input_ids"], skip_special_tokens=True) == tag


def test_a_prompt_is_cheap_and_ends_in_the_begun_turn(tokens):
    text = prompt(tokens)
    assert text.endswith(countdown.BEGUN)
    assert len(tokens(text, add_special_tokens=False)["input_ids"]) < 40


def test_a_finished_assistant_turn_is_closed(tokens):
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    closed = tokens.apply_chat_template([*turns, turns[0]], tokenize=False, add_generation_prompt=True)
    assert closed == "<|begin|><|user|>a<|end|><|assistant|>b<|end|><|user|>a<|end|><|assistant|>"


def test_pads_on_the_left_and_ends_with_its_own_token(tokens, tmp_path):
    tokens.save_pretrained(tmp_path)
    from transformers import AutoTokenizer

    again = AutoTokenizer.from_pretrained(tmp_path)
    assert (again.padding_side, again.eos_token, again.pad_token) == ("left", "<|end|>", "<|pad|>")
    assert again(prompt(tokens), add_special_tokens=False) == tokens(prompt(tokens), add_special_tokens=False)
