"""Rendering a conversation as the prompt that a model continues."""

from collections.abc import Mapping, Sequence
from typing import Any

#: Arguments of every template. Llama 3 templates print today's date by default, and a prompt must not depend on it.
TEMPLATE_ARGUMENTS = {"date_string": "26 Jul 2024"}

OPEN_THINK = "<think>"


def render(tokenizer: Any, messages: Sequence[Mapping[str, str]]) -> str:
    """The prompt for *messages* by the tokenizer's chat template, special tokens included.

    A final assistant turn is a prefill that the model continues: it ends the prompt exactly as written. It is
    appended to the template's generation prompt rather than passed through the template, because templates trim it
    (Llama 3), put an empty thinking block before it (Qwen3) or close it. Where a template supports no system turn,
    that text opens the user turn. Encode the result with ``add_special_tokens=False``.
    """
    turns = [dict(message) for message in messages]
    prefill = turns.pop()["content"] if turns[-1]["role"] == "assistant" else ""
    if not tokenizer.chat_template:
        return (tokenizer.bos_token or "") + "\n\n".join([*(turn["content"] for turn in turns), prefill])
    text = _apply(tokenizer, turns)
    # The generation prompt of a reasoning model may open <think> itself; the prefill must not open it again.
    if OPEN_THINK in prefill and text.rstrip().endswith(OPEN_THINK):
        text = text.rstrip().removesuffix(OPEN_THINK)
    return text + prefill


def _apply(tokenizer: Any, turns: list[dict[str, str]]) -> str:
    import jinja2

    def apply(turns: list[dict[str, str]]) -> str:
        text: str = tokenizer.apply_chat_template(
            turns, tokenize=False, add_generation_prompt=True, **TEMPLATE_ARGUMENTS
        )
        return text

    system = turns[0]["content"] if turns[0]["role"] == "system" else None
    try:
        text = apply(turns)
        if system is None or system.strip() in text:
            return text
    except jinja2.TemplateError:  # raised by templates without a system role
        if system is None:
            raise
    head, first, *rest = turns
    return apply([{**first, "content": f"{head['content']}\n\n{first['content']}"}, *rest])
