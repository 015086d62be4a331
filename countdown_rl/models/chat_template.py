"""Chat templates: rendering a conversation as the prompt that a model continues."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from html import unescape
from pathlib import Path
from typing import NamedTuple

from countdown_rl.core.errors import InputError, first_line
from countdown_rl.models.protocols import Tokenizer
from countdown_rl.tasks.response_format import STYLES

#: The turns of a chat, each with a role and its content.
Conversation = Sequence[Mapping[str, str]]

#: The date that Llama 3 templates print by default; a prompt must not depend on today.
DAY = "26 Jul 2024"
_ON_DAY = "{%- macro strftime_now(format) -%}" + DAY + "{%- endmacro -%}"
#: Arguments of every template.
CHAT_ARGUMENTS = {"date_string": DAY}
#: Those of a prompt in full; ``bare`` leaves out what :func:`complete_user_turn` adds.
TEMPLATE_ARGUMENTS: Mapping[str, object] = CHAT_ARGUMENTS | {"bare": True}

#: The template of a model that has none: texts with an empty line between them.
PLAIN = (
    "{{ bos_token }}{% for message in messages %}{{ message['content'] + '\\n\\n' }}{% endfor %}"
)

#: Stands on both sides of the original template in one that :func:`complete_user_turn` made.
MARK = "{#- task prompt -#}"
#: The default system turn, for templates that have one, and for those that do not.
_SYSTEM = (
    "{% if bare is not defined and messages[0]['role'] != 'system' %}"
    "{% set messages = [{'role': 'system', 'content': SYSTEM}] + messages %}{% endif %}",
    "{% if bare is not defined and messages[0]['role'] != 'system' %}"
    "{% set messages = [{'role': 'user', 'content': SYSTEM + '\\n\\n' + messages[0]['content']}]"
    " + messages[1:] %}{% endif %}",
)
_PREFILL = "{% if bare is not defined and add_generation_prompt %}{{ PREFILL }}{% endif %}"

_OPENS = re.compile(rf"<({'|'.join({style.tag for style in STYLES.values()})})>")
#: The thinking that a generation prompt opens, or leaves empty.
_OPENED = re.compile(rf"{_OPENS.pattern}\s*(?:</\1>\s*)?\Z")


class Rendered(NamedTuple):
    """A prompt as the text that a model continues; it ends in *prefill*."""

    text: str
    prefill: str = ""

    @property
    def answer(self) -> str:
        """The beginning of the answer: thinking that the template opens, and the prefill."""
        opened = _OPENED.search(self.text.removesuffix(self.prefill))
        return opened[0] + self.prefill if opened else self.prefill

    def continuation(self, completion: str) -> str:
        """Return *completion* without the beginning of the answer, which this prompt may hold."""
        text = completion.lstrip()
        for style in STYLES.values():
            opened = style.opened(self.answer)
            if not opened:
                continue
            for beginning in (self.answer, opened, f"<{style.tag}>"):
                if text.startswith(beginning.strip()):
                    rest = text.removeprefix(beginning.strip())
                    return rest.removeprefix(beginning[len(beginning.rstrip()) :])
        return completion


def render(
    tokenizer: Tokenizer,
    messages: Conversation,
    arguments: Mapping[str, object] = TEMPLATE_ARGUMENTS,
) -> str:
    """Return the prompt for *messages* by the tokenizer's chat template.

    A final assistant turn is a prefill that the model continues. It follows the template's
    generation prompt exactly as written, because templates trim such a turn (Llama 3), put an empty
    thinking block before it (Qwen3) or close it. If a template supports no system turn, that text
    opens the user turn.

    Args:
        tokenizer: its template renders all other turns.
        messages: the conversation.
        arguments: of the template; with ``CHAT_ARGUMENTS`` the result is the prompt of a program
            that does not know the task.

    Returns:
        The text with special tokens, to encode with ``add_special_tokens=False``.

    Raises:
        InputError: the template fails or does not show the turns.
    """
    prefill = ""
    if messages[-1]["role"] == "assistant":
        *messages, turn = messages
        prefill = turn["content"]
    text = _apply(tokenizer, messages, arguments)

    # The generation prompt of a reasoning model may open its thinking, or leave it empty: the
    # prefill does so instead.
    if _OPENS.search(prefill):
        text = _OPENED.sub("", text)
    text += prefill
    if re.search("[\ud800-\udfff]", text):
        raise InputError(f"{_place(tokenizer)} or a turn has half of a surrogate pair.")
    return text


def note(tokenizer: Tokenizer) -> str:
    """Return a sentence about a *tokenizer* without a chat template; "" if it has one."""
    if tokenizer.chat_template:
        return ""
    return (
        f"{_model(tokenizer)} has no chat template: its prompts are plain text, with an empty line "
        "after each turn."
    )


def encode(tokenizer: Tokenizer, conversations: Iterable[Conversation]) -> list[list[int]]:
    """Return the token ids of the prompts for *conversations*."""
    return token_ids(tokenizer, [render(tokenizer, messages) for messages in conversations])


def token_ids(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Return the token ids of rendered *texts*.

    Raises InputError if *tokenizer* has no tokens for a part of one.
    """
    if not texts:
        return []
    rows: list[list[int]] = tokenizer(texts, add_special_tokens=False)["input_ids"]
    unknown = tokenizer.unk_token_id
    for text, ids in zip(texts, rows, strict=True):
        lacks_some = unknown is not None and ids.count(unknown) > text.count(tokenizer.unk_token)
        if lacks_some or not ids:
            raise InputError(
                f"{_model(tokenizer)} has no tokens for a part of {text!r:.200}; use another model."
            )
    return rows


def complete_user_turn(tokenizer: Tokenizer, messages: Conversation) -> None:
    """Change the chat template of *tokenizer* so that a user turn gives the prompt of training.

    The system turn of *messages*, a prompt of the training data, becomes the default one, and their
    prefill ends the generation prompt: a program that only knows chat turns (``ollama run``) asks
    as the model was trained. A template that cannot be changed in this way stays.
    """
    expected = render(tokenizer, messages)
    original = tokenizer.chat_template or PLAIN
    sections = original.split(MARK)
    # Three: it was completed already.
    original = sections[1] if len(sections) == 3 else "{#- -#}".join(sections)

    texts = {turn["role"]: json.dumps(turn["content"], ensure_ascii=False) for turn in messages}
    user = [turn for turn in messages if turn["role"] == "user"]
    tail = ""
    if "assistant" in texts:
        tail = _PREFILL.replace("PREFILL", texts["assistant"])
    for system in _SYSTEM if "system" in texts else ("",):
        head = system.replace("SYSTEM", texts.get("system", ""))
        tokenizer.chat_template = MARK.join((head, original.removesuffix("\n"), tail))
        with suppress(InputError):
            if render(tokenizer, user, CHAT_ARGUMENTS) == expected:
                return
    tokenizer.chat_template = original


def apply(tokenizer: Tokenizer, turns: Conversation, **arguments: object) -> str:
    """Return the text of *turns* by the chat template, rendered by transformers, on ``DAY``.

    Raises InputError if the template fails.
    """
    template = _ON_DAY + (tokenizer.chat_template or PLAIN)
    try:
        return tokenizer.apply_chat_template(
            turns, chat_template=template, tokenize=False, **arguments
        )
    except Exception as error:  # a template is a program
        raise InputError(f"{_place(tokenizer)} fails: {first_line(error)}.") from error


def _apply(tokenizer: Tokenizer, turns: Conversation, arguments: Mapping[str, object]) -> str:
    """Return the prompt for *turns*: with a system turn, or with its text in the user turn."""
    conversations: list[Conversation] = [turns]
    if turns[0]["role"] == "system" and len(turns) > 1:
        system, first, *rest = turns
        merged = {**first, "content": f"{system['content']}\n\n{first['content']}"}
        conversations.append([merged, *rest])
    asked = _words(" ".join(turn["content"] for turn in turns if turn["role"] != "assistant"))
    failure = None
    for conversation in conversations:
        try:
            text = apply(tokenizer, conversation, add_generation_prompt=True, **arguments)
        except InputError as error:  # such as one of templates without a system role
            failure = error
            continue
        if asked <= _words(text):
            return text
    raise failure or InputError(f"{_place(tokenizer)} does not show the whole prompt; replace it.")


def _words(text: str) -> Counter[str]:
    """Return the words and signs of *text*, whatever their case and spacing."""
    return Counter(re.findall(r"\w+|[^\w\s]", unescape(text).casefold()))


def _place(tokenizer: Tokenizer) -> str:
    return f"the chat template of {_model(tokenizer)}"


def _model(tokenizer: Tokenizer) -> Path:
    return Path(tokenizer.name_or_path or "the model")
