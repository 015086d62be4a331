"""Chat templates: rendering a conversation as the prompt that a model continues."""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

from countdown_rl.errors import InputError
from countdown_rl.tasks import limited
from countdown_rl.tasks.limited import LimitError

#: Arguments of every template. Llama 3 templates print today's date by default, and a prompt must not depend on it.
CHAT_ARGUMENTS = {"date_string": "26 Jul 2024"}
#: Those of a prompt in full; ``bare`` leaves out what :func:`complete_user_turn` adds.
TEMPLATE_ARGUMENTS = CHAT_ARGUMENTS | {"bare": True}

OPEN_THINK = "<think>"

#: The template of a model that has none: texts with an empty line between them.
PLAIN = "{{ bos_token }}{% for message in messages %}{{ message['content'] + '\\n\\n' }}{% endfor %}"

#: Stands on both sides of the original template in one that :func:`complete_user_turn` made.
MARK = "{#- task prompt -#}"
_WITHOUT_SYSTEM = "{% if bare is not defined and messages[0]['role'] != 'system' %}{% set messages = "
#: The default system turn, for templates that have one, and for those that do not.
_SYSTEM = (
    _WITHOUT_SYSTEM + "[{'role': 'system', 'content': SYSTEM}] + messages %}{% endif %}",
    _WITHOUT_SYSTEM
    + "[{'role': 'user', 'content': SYSTEM + '\\n\\n' + messages[0]['content']}] + messages[1:] %}{% endif %}",
)
_PREFILL = "{% if bare is not defined and add_generation_prompt %}{{ PREFILL }}{% endif %}"

#: Characters that a template may add to the turns: prompts of megabytes take minutes to encode, and all memory.
MAX_ADDED = 1 << 17
#: The function that renders for ``apply_chat_template``, and the files that hold a chat template.
_RENDER = "transformers.utils.chat_template_utils:render_jinja_template"
_FILES = ("chat_template.jinja", "tokenizer_config.json")


def render(
    tokenizer: Any, messages: Sequence[Mapping[str, str]], arguments: Mapping[str, Any] = TEMPLATE_ARGUMENTS
) -> str:
    """The prompt for *messages* by the tokenizer's chat template, special tokens included.

    A final assistant turn is a prefill that the model continues: it ends the prompt exactly as written. It is
    appended to the template's generation prompt rather than passed through the template, because templates trim it
    (Llama 3), put an empty thinking block before it (Qwen3) or close it. Where a template supports no system turn,
    that text opens the user turn. Encode the result with ``add_special_tokens=False``. With ``CHAT_ARGUMENTS`` it is
    the prompt that a program makes which knows nothing of the task.
    """
    turns = [dict(message) for message in messages]
    prefill = turns.pop()["content"] if turns[-1]["role"] == "assistant" else ""
    text = _apply(tokenizer, turns, arguments)
    # The generation prompt of a reasoning model may open <think> itself; the prefill must not open it again.
    if OPEN_THINK in prefill and text.rstrip().endswith(OPEN_THINK):
        text = text.rstrip().removesuffix(OPEN_THINK)
    return text + prefill


def encode(tokenizer: Any, conversations: Iterable[Sequence[Mapping[str, str]]]) -> list[list[int]]:
    """The token ids of the prompts for *conversations*."""
    prompts = [render(tokenizer, messages) for messages in conversations]
    ids: list[list[int]] = tokenizer(prompts, add_special_tokens=False)["input_ids"]
    return ids


def preload() -> None:
    """Start the child process that renders, so that it imports what it needs beside what this process does."""
    Thread(target=limited.call, args=(_RENDER, []), kwargs={"chat_template": ""}, daemon=True).start()


def complete_user_turn(tokenizer: Any, messages: Sequence[Mapping[str, str]]) -> None:
    """Change the chat template of *tokenizer* so that a user turn alone gives the prompt of training.

    The system turn of *messages*, a prompt of the training data, becomes the default one, and their prefill ends the
    generation prompt. A program that only knows chat turns (``ollama run``, an OpenAI-compatible server) then asks as
    the model was trained. A template that cannot be changed in this way is left as it is.
    """
    original = tokenizer.get_chat_template() if tokenizer.chat_template else PLAIN
    if MARK in original:
        _, original, _ = original.split(MARK)
    tokenizer.chat_template = original
    expected = render(tokenizer, messages)
    texts = {message["role"]: json.dumps(message["content"], ensure_ascii=False) for message in messages}
    user = [message for message in messages if message["role"] == "user"]
    tail = _PREFILL.replace("PREFILL", texts["assistant"]) if "assistant" in texts else ""
    for system in _SYSTEM if "system" in texts else ("",):
        head = system.replace("SYSTEM", texts.get("system", ""))
        tokenizer.chat_template = MARK.join((head, original.removesuffix("\n"), tail))
        with suppress(InputError):
            if render(tokenizer, user, CHAT_ARGUMENTS) == expected:
                return
    tokenizer.chat_template = original


def apply(tokenizer: Any, turns: Sequence[Mapping[str, str]], **arguments: Any) -> str:
    """The text that ``tokenizer.apply_chat_template`` makes of *turns*, rendered in a child process with limits.

    Raises:
        InputError: the template fails.
        LimitError: it takes too much time or memory.
    """
    template = tokenizer.get_chat_template() if tokenizer.chat_template else PLAIN
    arguments = {**tokenizer.special_tokens_map, **arguments}
    try:
        text: str
        (text,), _ = limited.call(_RENDER, [turns], chat_template=template, **arguments)
        if len(text) > MAX_ADDED + 2 * sum(len(turn["content"]) for turn in turns):
            raise LimitError(f"it adds more than {MAX_ADDED:,} characters; replace it")
    except (InputError, LimitError) as error:
        place = Path(tokenizer.name_or_path or "the model")
        file = next((place / name for name in _FILES if (place / name).is_file()), place)
        raise type(error)(f"the chat template of {file} fails: {str(error).rstrip('.')}.") from error
    return text


def _apply(tokenizer: Any, turns: list[dict[str, str]], arguments: Mapping[str, Any]) -> str:
    head = turns[0]
    if head["role"] == "system":
        with suppress(InputError):  # of templates without a system role
            if head["content"].strip() in (text := apply(tokenizer, turns, add_generation_prompt=True, **arguments)):
                return text
        _, first, *rest = turns
        turns = [{**first, "content": f"{head['content']}\n\n{first['content']}"}, *rest]
    return apply(tokenizer, turns, add_generation_prompt=True, **arguments)
