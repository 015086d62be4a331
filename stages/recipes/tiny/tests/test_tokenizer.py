import pytest

from countdown_rl.tasks.countdown import task as countdown
from stages.recipes.tiny import tokenizer

ROW = countdown.CountdownRow({"nums": [19, 36, 55, 7], "target": 65})


@pytest.fixture(scope="module")
def tokens():
    corpus = [turn["content"] for turn in ROW.messages()] * 50
    return tokenizer.build([*corpus, *["36 + 55 = 91, 91 - 7 = 84 no\n(3 * 4) / 2"] * 50], 3_264)


def test_any_text_comes_back_as_it_was(tokens):
    for text in [
        "36 + 55 = 91",
        "<think>\n×÷−·</think>\n<answer>1</answer>",
        "Grüße, 世界 \n\t 0042",
        " a  b ",
    ]:
        ids = tokens(text, add_special_tokens=False)["input_ids"]
        assert tokens.decode(ids) == text


def test_arithmetic_is_three_tokens_a_step_and_tags_are_one_token(tokens):
    line = "17. 55 - 7 = 48, 148 + 36 = 184, 999 / 3 = 333 no\n"
    pieces = [
        "17. ",
        "55",
        " - 7 = ",
        "48, ",
        "148",
        " + 36 = ",
        "184, ",
        "999",
        " / 3",
        " = ",
        "333",
    ]
    split = [
        tokens.decode([token]) for token in tokens(line, add_special_tokens=False)["input_ids"]
    ]
    assert split[: len(pieces)] == pieces
    assert "".join(split) == line
    refused = tokens("3. 55 / 7 no\n", add_special_tokens=False)["input_ids"]
    assert [tokens.decode([token]) for token in refused][:3] == ["3. ", "55", " / 7"]
    for tag in tokenizer.TAGS:
        assert len(tokens(tag, add_special_tokens=False)["input_ids"]) == 1
        assert (
            tokens.decode(
                tokens(tag, add_special_tokens=False)["input_ids"], skip_special_tokens=True
            )
            == tag
        )
