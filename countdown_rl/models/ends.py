"""The end tokens of a model: read here from its files, tokenizer and chat template, and written beside its weights."""

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from countdown_rl.core.errors import InputError
from countdown_rl.models import chat_template, model_files

#: Text that templates which change letters leave as it is.
_MARK = "?!7531!?"


def end_of_turn(tokenizer: Any) -> str:
    """The text by which the chat template ends a turn of the assistant; the end-of-text token where it has none."""
    end = tokenizer.eos_token or ""
    if not tokenizer.chat_template:
        return end
    turns = [{"role": role, "content": _MARK} for role in ("user", "assistant")]
    with suppress(InputError):  # of a template that renders prompts alone
        _, shown, rest = chat_template.apply(tokenizer, turns).rpartition(_MARK)
        if shown:
            return rest.strip() or end
    return end


def learned_end(tokenizer: Any) -> str:
    """The text that ends a demonstration: the end of its turn, and after one that is not a token the end of text."""
    return end_of_turn(tokenizer) + (
        tokenizer.eos_token or "" if turn_token(tokenizer) is None else ""
    )


def token_ids(tokenizer: Any, named: int | Iterable[int] | None, size: int) -> list[int]:
    """The ids of all tokens that end a completion, in order.

    They are those that the model's configuration *named*, the tokenizer's end-of-text token, and the one that ends a
    turn in the chat template. Some checkpoints name one outside their vocabulary of *size* tokens; it is left out.
    """
    ids = {named} if isinstance(named, int) else set[int | None](named or ())
    ids |= {tokenizer.eos_token_id, turn_token(tokenizer)}
    return sorted(index for index in ids if index is not None and 0 <= index < size)


def of_checkpoint(tokenizer: Any, directory: Path) -> list[int]:
    """The ids of :func:`token_ids` for the checkpoint in *directory*."""
    config = model_files.config(directory)
    text = config | (config.get("text_config") or {})
    named = (model_files.generation_config(directory) or text).get("eos_token_id")
    return token_ids(tokenizer, named, text.get("vocab_size") or len(tokenizer))


def write(directory: Path, ids: int | list[int] | None, pad: int | None) -> None:
    """Write the ``generation_config.json`` of *directory*: end tokens and padding. Sampling settings of the base model
    are left out: no evaluation applies them."""
    values = {
        "eos_token_id": ids[0] if isinstance(ids, list) and len(ids) == 1 else ids,
        "pad_token_id": pad,
    }
    values = {name: value for name, value in values.items() if value not in (None, [])}
    (directory / model_files.GENERATION).write_text(
        json.dumps(values, indent=2, sort_keys=True) + "\n"
    )


def turn_token(tokenizer: Any) -> int | None:
    """The id of the token by which the chat template ends a turn of the assistant; None where it is no single token."""
    text = end_of_turn(tokenizer)
    added = ((token.content, index) for index, token in tokenizer.added_tokens_decoder.items())
    return max(
        ((len(token), index) for token, index in added if text.startswith(token)), default=(0, None)
    )[1]
