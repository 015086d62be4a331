"""The end tokens of a model: read from its files, tokenizer and chat template, and written."""

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from countdown_rl.core.errors import InputError
from countdown_rl.core.types import JsonObject
from countdown_rl.models import chat_template, model_files
from countdown_rl.models.protocols import Tokenizer

#: Text that templates which change letters leave as it is.
_MARK = "?!7531!?"


def end_of_turn(tokenizer: Tokenizer) -> str:
    """The text by which the chat template ends an assistant turn, else the end-of-text token."""
    end = tokenizer.eos_token or ""
    if not tokenizer.chat_template:
        return end
    turns = [{"role": role, "content": _MARK} for role in ("user", "assistant")]
    with suppress(InputError):  # of a template that renders prompts alone
        _, shown, rest = chat_template.apply(tokenizer, turns).rpartition(_MARK)
        if shown:
            return rest.strip() or end
    return end


def learned_end(tokenizer: Tokenizer) -> str:
    """The text that ends a demonstration: of its turn, and if that is no token the end of text."""
    end = end_of_turn(tokenizer)
    if turn_token(tokenizer) is None:
        end += tokenizer.eos_token or ""
    return end


def token_ids(tokenizer: Tokenizer, named: int | Iterable[int] | None, size: int) -> list[int]:
    """The ids of all tokens that end a completion, in order.

    Args:
        tokenizer: its end-of-text token counts, and the one that ends a turn in its chat template.
        named: those of the model's configuration.
        size: tokens of the vocabulary; some checkpoints name a token outside of it.
    """
    ids = {named} if isinstance(named, int) else set[int | None](named or ())
    ids |= {tokenizer.eos_token_id, turn_token(tokenizer)}
    return sorted(index for index in ids if index is not None and 0 <= index < size)


def of_checkpoint(tokenizer: Tokenizer, directory: Path) -> list[int]:
    """The ids of :func:`token_ids` for the checkpoint in *directory*."""
    config = model_files.config(directory)
    text = config | (config.get("text_config") or {})
    named = (model_files.generation_config(directory) or text).get("eos_token_id")
    return token_ids(tokenizer, named, text.get("vocab_size") or len(tokenizer))


def write(directory: Path, ids: list[int], pad: int) -> None:
    """Write the ``generation_config.json`` of *directory*: end tokens *ids*, and padding.

    Sampling settings of the base model are left out: no evaluation applies them.
    """
    values: JsonObject = {"pad_token_id": pad}
    if ids:
        values["eos_token_id"] = ids[0] if len(ids) == 1 else ids
    text = json.dumps(values, indent=2, sort_keys=True)
    (directory / model_files.GENERATION).write_text(text + "\n")


def turn_token(tokenizer: Tokenizer) -> int | None:
    """The id of the token by which the chat template ends a turn of the assistant, if it is one."""
    text = end_of_turn(tokenizer)
    longest = ""
    result = None
    for index, token in tokenizer.added_tokens_decoder.items():
        if text.startswith(token.content) and len(token.content) > len(longest):
            longest = token.content
            result = index
    return result
