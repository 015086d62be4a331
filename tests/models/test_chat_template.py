"""Prompts through chat templates in the style of well-known model families."""

import pytest

from countdown_rl.core.errors import InputError, ModelError
from countdown_rl.models import load
from countdown_rl.models.chat_template import (
    CHAT_ARGUMENTS,
    MARK,
    Rendered,
    complete_user_turn,
    render,
    token_ids,
)
from countdown_rl.models.reference import ModelRef
from countdown_rl.tasks.response_format import STYLES
from tests.support import tiny_llama

SYSTEM, USER, BEGUN = "Reason first.", "Numbers: 3 7 50", "Let me see. \n<think>\n"
CHAT = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": USER}]
BEGUN_CHAT = [*CHAT, {"role": "assistant", "content": BEGUN}]

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TRIMS = (
    "{% if not date_string is defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}"
    "Today: {{ date_string }}\n"
    "{% for m in messages %}<|start|>{{ m.role }}\n\n{{ m.content | trim }}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n\n{% endif %}"
)
THINKS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}{% set c = m.content.split('</think>')[-1] %}"
    "<think>\n\n</think>\n\n{{ c.lstrip('\n') }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
OPENS = CHATML.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}<turn>{{ m.role }}\n{{ m.content | trim }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}<turn>model\n{% endif %}"
)
DROPS_SYSTEM = "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% endif %}{% endfor %}"


@pytest.mark.parametrize("template", [CHATML, TRIMS, THINKS, OPENS, NO_SYSTEM, DROPS_SYSTEM, None])
def test_a_prefill_ends_the_prompt_exactly_as_written(template):
    tokenizer = tiny_llama.tokenizer(template)
    text = render(tokenizer, BEGUN_CHAT)
    if template == CHATML:
        options = {"tokenize": False, "continue_final_message": True}
        assert text == tokenizer.apply_chat_template(BEGUN_CHAT, **options)
    assert text.endswith(BEGUN)
    assert text.count("<think>") == 1
    assert "</think>" not in text
    assert text.index(SYSTEM) < text.index(USER) < text.index(BEGUN)


@pytest.mark.parametrize(
    "template",
    # The last two hold the mark already.
    [CHATML, TRIMS, THINKS, NO_SYSTEM, DROPS_SYSTEM, None, CHATML + MARK, MARK + CHATML + MARK],
)
def test_a_completed_template_gives_the_prompt_of_training_for_a_user_turn_alone(template):
    tokenizer = tiny_llama.tokenizer(template)
    expected = render(tokenizer, BEGUN_CHAT)
    for _ in range(2):  # training further completes it again
        complete_user_turn(tokenizer, BEGUN_CHAT)
        assert render(tokenizer, CHAT[1:], CHAT_ARGUMENTS) == expected
        assert render(tokenizer, BEGUN_CHAT) == expected  # in an evaluation nothing is there twice
        assert tokenizer.chat_template.count(MARK) == 2


def test_a_system_turn_of_the_users_own_replaces_that_of_training():
    tokenizer = tiny_llama.tokenizer(CHATML)
    complete_user_turn(tokenizer, BEGUN_CHAT)
    text = render(tokenizer, [{"role": "system", "content": "Be brief."}, CHAT[1]], CHAT_ARGUMENTS)
    assert "Be brief." in text
    assert SYSTEM not in text
    assert text.endswith(BEGUN)


@pytest.mark.parametrize(
    "shown",
    [
        "{{ m.content | e | upper }}",
        "{{ m.content }}{{ m.content }}",
        "{% generation %}{{ m.content }}{% endgeneration %}",
    ],
)
def test_a_template_that_shows_the_prompt_in_its_own_way_is_used(shown):
    text = render(tiny_llama.tokenizer(CHATML.replace("{{ m.content }}", shown)), BEGUN_CHAT)
    assert USER.lower() in text.lower()
    assert SYSTEM.lower() in text.lower()
    assert text.endswith(BEGUN)


@pytest.mark.parametrize(
    "shown",
    [
        "{% if m.role == 'system' %}{{ m.content }}{% endif %}",
        "{{ m.content | truncate(12, leeway=0) }}",
        "{{ m.content | replace(':', '') }}",
    ],
)
def test_a_template_that_leaves_the_puzzle_out_is_refused(shown):
    with pytest.raises(InputError, match="does not show the whole prompt"):
        render(tiny_llama.tokenizer(CHATML.replace("{{ m.content }}", shown)), CHAT)


EMPTY = CHATML.replace("assistant\n{% endif %}", "assistant\n<think>\n\n</think>\n\n{% endif %}")


@pytest.mark.parametrize("prefill", ["Well.\n<think>", "<think>\n", "<think>\n\n</think>\n"])
@pytest.mark.parametrize("template", [CHATML, OPENS, EMPTY])
def test_thinking_is_opened_once(template, prefill):
    text = render(
        tiny_llama.tokenizer(template), [*CHAT, {"role": "assistant", "content": prefill}]
    )
    assert text.endswith(f"assistant\n{prefill}")


@pytest.mark.parametrize(
    ("template", "prefill", "style", "written", "completion"),
    [
        (OPENS, "", "model_opens", "a</think>", "<think>\na</think>"),
        (OPENS, "", "model_opens", "<think>\na</think>", "<think>\na</think>"),  # repeated
        (OPENS, "", "direct", "3 + 4", "3 + 4"),
        (OPENS, "Well.\n<think>", "prefilled", "a</think>", "a</think>"),
        (CHATML, "", "model_opens", "a</think>", "a</think>"),
        (CHATML, "<think>\nI need ", "model_opens", "a</think>", "<think>\nI need a</think>"),
        (EMPTY, "", "model_opens", "a</think>", "a</think>"),
        (OPENS.replace("think", "thinking"), "", "lines", "a", "<thinking>\na"),
    ],
)
def test_a_completion_has_the_opening_tag_where_its_style_asks_the_model_for_it(
    template, prefill, style, written, completion
):
    turns = [*CHAT, {"role": "assistant", "content": prefill}] if prefill else CHAT
    prompt = Rendered(render(tiny_llama.tokenizer(template), turns), prefill)
    assert STYLES[style].joined(prompt.answer, written) == completion


@pytest.mark.parametrize(
    ("prompt", "completion", "continuation"),
    [
        (Rendered("a<think>"), "<think>\nb", "\nb"),
        (Rendered("a<think>\n"), "<think>\nb", "b"),
        (Rendered("a<think>\n"), "<think>b", "b"),
        (Rendered("a<think>\n"), "b", "b"),
        (Rendered("a<think>\n"), "\n<think>\n\nb", "\nb"),
        (Rendered("aWell.\n<think>", "Well.\n<think>"), "Well.\n<think>\nb", "\nb"),
        (Rendered("a<thinking>\n"), "<thinking>\nb", "b"),
        (Rendered("a<think>\n\n</think>\n\n"), "<think>b", "<think>b"),
        (Rendered("aWell:", "Well:"), "Well: b", "Well: b"),
    ],
)
def test_what_the_prompt_has_begun_is_not_learned_again(prompt, completion, continuation):
    assert prompt.continuation(completion) == continuation


def test_text_that_the_tokenizer_has_no_tokens_for_is_refused():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.WordLevel({"<unk>": 0, "Target": 1, ":": 2}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>")
    assert token_ids(tokenizer, ["Target:", "<unk>"]) == [[1, 2], [0]]
    with pytest.raises(InputError, match="46"):
        token_ids(tokenizer, ["Target: 46"])


@pytest.mark.parametrize(
    ("template", "end"),
    [
        (OPENS, "<think>\n"),
        # The system turn opens the user turn.
        (NO_SYSTEM, f"<turn>user\n{SYSTEM}\n\n{USER}<end>\n<turn>model\n"),
        (TRIMS, "assistant\n\n"),
        (CHATML + "{{ strftime_now('%d %b %Y') }}", "26 Jul 2024"),
    ],
)
def test_a_prompt_without_prefill_ends_in_the_generation_prompt_of_every_day(template, end):
    text = render(tiny_llama.tokenizer(template), CHAT)
    assert text.endswith(end)
    assert ("Today: 26 Jul 2024" in text) == (template == TRIMS)


def test_half_a_surrogate_pair_is_one_sentence():
    with pytest.raises(InputError, match="surrogate"):
        render(tiny_llama.tokenizer(CHATML), [{"role": "user", "content": "\ud83d"}])


@pytest.mark.parametrize("name", ["default", "rag"])
def test_of_several_templates_the_default_is_used(tmp_path, name):
    tokenizer = tiny_llama.tokenizer()
    tokenizer.chat_template = {name: CHATML, "tool_use": "tools"}
    tokenizer.save_pretrained(tmp_path)
    ref = ModelRef("m", "directory", tmp_path)
    if name == "default":
        assert load.load_tokenizer(ref).chat_template == CHATML
    else:
        with pytest.raises(ModelError, match="default"):
            load.load_tokenizer(ref)
