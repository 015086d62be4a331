"""Prompts through chat templates in the style of well-known model families."""

from importlib.resources import files
from pathlib import Path

import pytest

from countdown_rl.errors import InputError
from countdown_rl.models import load
from countdown_rl.models.chat_template import CHAT_ARGUMENTS, apply, complete_user_turn, render
from countdown_rl.models.reference import ModelRef
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
    text = render(tiny_llama.tokenizer(template), BEGUN_CHAT)
    assert text.endswith(BEGUN)
    assert text.count("<think>") == 1
    assert "</think>" not in text
    assert text.index(SYSTEM) < text.index(USER) < text.index(BEGUN)


def test_a_prefill_equals_continue_final_message_on_an_ordinary_template():
    tokenizer = tiny_llama.tokenizer(CHATML)
    expected = tokenizer.apply_chat_template(BEGUN_CHAT, tokenize=False, continue_final_message=True)
    assert render(tokenizer, BEGUN_CHAT) == expected


REAL = sorted(Path(str(files("trl"))).glob("chat_templates/*.jinja"))


@pytest.mark.parametrize("file", [file for file in REAL if "llava" not in file.stem], ids=lambda file: file.stem)
def test_the_text_of_a_real_template_is_that_of_transformers(file):
    tokenizer = tiny_llama.tokenizer(file.read_text("utf-8"))
    tokenizer.bos_token = "<|pad|>"
    for turns in (CHAT[1:], [*CHAT[1:], {"role": "assistant", "content": "<think>\nA.\n</think>\n\nB."}]):
        for options in (CHAT_ARGUMENTS, CHAT_ARGUMENTS | {"add_generation_prompt": True}):
            text = apply(tokenizer, turns, **options)  # first, as it settles the day for both
            assert text == tokenizer.apply_chat_template(turns, tokenize=False, **options)


def test_a_template_that_adds_a_megabyte_is_refused_by_its_file(tmp_path):
    tiny_llama.tokenizer(CHATML + "{{ '7 x ' * 200000 }}").save_pretrained(tmp_path)
    tokenizer = load.load_tokenizer(ModelRef("m", "directory", tmp_path))
    with pytest.raises(InputError, match=rf"{tmp_path}/chat_template\.jinja fails: it adds more than"):
        render(tokenizer, CHAT)


def test_without_a_prefill_the_prompt_ends_in_the_generation_prompt():
    assert render(tiny_llama.tokenizer(CHATML), CHAT).endswith("<|im_start|>assistant\n")
    assert render(tiny_llama.tokenizer(OPENS), CHAT).endswith("<think>\n")


def test_a_system_turn_that_the_template_rejects_opens_the_user_turn():
    assert f"<turn>user\n{SYSTEM}\n\n{USER}<end>" in render(tiny_llama.tokenizer(NO_SYSTEM), CHAT)


def test_the_prompt_does_not_depend_on_the_date():
    assert "Today: 26 Jul 2024" in render(tiny_llama.tokenizer(TRIMS), CHAT)


@pytest.mark.parametrize("template", [CHATML, TRIMS, THINKS, NO_SYSTEM, DROPS_SYSTEM, None])
def test_a_completed_template_gives_the_prompt_of_training_for_a_user_turn_alone(template):
    tokenizer = tiny_llama.tokenizer(template)
    expected = render(tokenizer, BEGUN_CHAT)
    for _ in range(2):  # training further completes it again
        complete_user_turn(tokenizer, BEGUN_CHAT)
        assert render(tokenizer, CHAT[1:], CHAT_ARGUMENTS) == expected
        assert render(tokenizer, BEGUN_CHAT) == expected  # in an evaluation nothing is there twice


def test_a_system_turn_of_the_users_own_replaces_that_of_training():
    tokenizer = tiny_llama.tokenizer(CHATML)
    complete_user_turn(tokenizer, BEGUN_CHAT)
    text = render(tokenizer, [{"role": "system", "content": "Be brief."}, CHAT[1]], CHAT_ARGUMENTS)
    assert "Be brief." in text
    assert SYSTEM not in text
    assert text.endswith(BEGUN)


def test_a_template_whose_generation_prompt_opens_the_thinking_is_left_as_it_is():
    tokenizer = tiny_llama.tokenizer(OPENS)
    complete_user_turn(tokenizer, BEGUN_CHAT)
    assert tokenizer.chat_template == OPENS
