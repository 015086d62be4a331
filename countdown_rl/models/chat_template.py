"""From a conversation to the text a model continues."""

from collections.abc import Mapping, Sequence
from typing import Any

#: Llama 3 templates print today's date unless told one; a prompt must not depend on the day.
_FIXED = {"date_string": "26 Jul 2024"}

OPEN_THINK = "<think>"


def render(tokenizer: Any, messages: Sequence[Mapping[str, str]]) -> str:
    """The prompt for *messages* by the tokenizer's own chat template, special tokens included.

    A final assistant turn is one that the model goes on with: it comes out exactly as written, at the
    very end. It is put after the template's generation prompt rather than through the template, because
    templates trim such a turn (Llama 3), put an empty thinking block in front of it (Qwen3) or close it.
    A template that knows no system turn gets that text at the head of the user turn. Encode the result
    with ``add_special_tokens=False``.
    """
    turns = [dict(message) for message in messages]
    begun = turns.pop()["content"] if turns[-1]["role"] == "assistant" else ""
    if not tokenizer.chat_template:
        return (tokenizer.bos_token or "") + "\n\n".join([*(turn["content"] for turn in turns), begun])
    text = _apply(tokenizer, turns)
    # Reasoning models open <think> in the generation prompt; a begun turn that opens it again says it twice.
    if OPEN_THINK in begun and text.rstrip().endswith(OPEN_THINK):
        text = text.rstrip().removesuffix(OPEN_THINK)
    return text + begun


def _apply(tokenizer: Any, turns: list[dict[str, str]]) -> str:
    import jinja2

    system = turns[0]["content"] if turns[0]["role"] == "system" else None
    try:
        text = _template(tokenizer, turns)
        if system is None or system.strip() in text:
            return text
    except jinja2.TemplateError:  # how a template says "System role not supported"
        if system is None:
            raise
    head, first, *rest = turns
    return _template(tokenizer, [{**first, "content": f"{head['content']}\n\n{first['content']}"}, *rest])


def _template(tokenizer: Any, turns: list[dict[str, str]]) -> str:
    return tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True, **_FIXED)
