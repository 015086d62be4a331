"""A tokenizer as GGUF holds it: tokens, merges, special tokens, chat template, and how text is split."""

import json
from pathlib import Path
from typing import Any

import gguf

from countdown_rl.errors import ModelError
from countdown_rl.export import agreement
from countdown_rl.models import chat_template

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
#: llama.cpp's name of a way to split text, and the patterns it splits by, one after the other (llama-vocab.cpp).
SPLITS = {
    "gpt-2": (_GPT2,),
    "smollm": (r"\p{N}", _GPT2),
    "llama-bpe": (_LLAMA3,),
    "qwen2": (_LLAMA3.replace("{1,3}", ""),),
    "superbpe": (r"\p{N}+", r"(?=(\d{3})+(?!\d))"),  # not at all, but for digits
}
#: What tells the ways apart: digits, cases, contractions, runs of blanks, signs, other scripts.
PROBE = "Don't I'LL 12345 a1b22  x   y\n\n  z\t!?.. (3*4)+50=62 naïve Straße 数字 ١٢٣ 🙂\r\nend  "


def describe(writer: Any, directory: Path, tokenizer: Any, size: int) -> None:
    """Put the *tokenizer*, whose files are in *directory*, into *writer*, filled up to *size* tokens.

    Raises:
        ModelError: it is no byte-level BPE, or llama.cpp has no way to split text as it does.
    """
    held = json.loads(tokenizer.backend_tokenizer.to_str())
    model = held["model"]
    if model["type"] != "BPE" or model.get("byte_fallback"):
        raise ModelError(
            "only byte-level BPE tokenizers are written as GGUF here; use llama.cpp's convert_hf_to_gguf.py."
        )
    tokens = [f"[PAD{number}]" for number in range(size)]
    kinds = [gguf.TokenType.UNUSED] * size
    for token, number in model["vocab"].items():
        tokens[number], kinds[number] = token, gguf.TokenType.NORMAL
    for added in held["added_tokens"]:
        tokens[added["id"]] = added["content"]
        kinds[added["id"]] = gguf.TokenType.CONTROL if added["special"] else gguf.TokenType.USER_DEFINED
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(split_of(tokenizer))
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]])
    for name in ("bos", "eos", "unk", "pad"):
        number = getattr(tokenizer, f"{name}_token_id")
        if number is not None:
            getattr(writer, f"add_{name}_token_id")(number)
    ends = _ends(directory) - {tokenizer.eos_token_id}
    if ends:
        writer.add_eot_token_id(min(ends))
    writer.add_add_bos_token(begins(tokenizer))
    writer.add_add_eos_token(False)
    if tokenizer.chat_template:
        writer.add_chat_template(tokenizer.chat_template)


def begins(tokenizer: Any) -> bool:
    """Whether what the model reads begins with its begin-of-text token. llama.cpp then puts it there once,
    whether the chat template does so too or not."""
    if tokenizer.bos_token_id is None:
        return False
    if tokenizer("a")["input_ids"][0] == tokenizer.bos_token_id:
        return True
    return chat_template.render(tokenizer, [{"role": "user", "content": "a"}]).startswith(tokenizer.bos_token)


def split_of(tokenizer: Any) -> str:
    """The way of llama.cpp to split text under which *tokenizer* gives the ids that it gives by itself.

    Where there is none for every text, one that serves for the puzzles: what a model of their own small
    vocabulary reads.
    """
    from tokenizers import Regex, Tokenizer, pre_tokenizers

    from countdown_rl.tasks.task import parse_row

    puzzles = [chat_template.render(tokenizer, parse_row(row).messages()) for row in agreement.puzzles(16)]
    tried = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    tried.no_truncation()
    own = tokenizer.backend_tokenizer
    for probes in ([PROBE, *puzzles], puzzles):
        wanted = [own.encode(text, add_special_tokens=False).ids for text in probes]
        for name, patterns in SPLITS.items():
            tried.pre_tokenizer = pre_tokenizers.Sequence(
                [
                    *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns),
                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
                ]
            )
            if [tried.encode(text, add_special_tokens=False).ids for text in probes] == wanted:
                return name
    raise ModelError("llama.cpp splits text in none of the ways that this tokenizer does, so GGUF cannot carry it.")


def _ends(directory: Path) -> set[int]:
    file = directory / "generation_config.json"
    said = json.loads(file.read_bytes()).get("eos_token_id") if file.is_file() else None
    return set(said) if isinstance(said, list) else {said} if isinstance(said, int) else set()
