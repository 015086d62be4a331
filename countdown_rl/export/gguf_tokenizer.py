"""The tokenizer of a GGUF file: tokens, merges, special tokens, chat template and pre-tokenizer."""

import json
from collections.abc import Mapping, Sequence

import gguf

from countdown_rl.core.errors import ModelError
from countdown_rl.core.formatting import plural
from countdown_rl.models import chat_template, ends
from countdown_rl.models.protocols import Tokenizer

Conversation = Sequence[Mapping[str, str]]
CONVERTER = "llama.cpp's convert_hf_to_gguf.py"

_ENDINGS = "'s|'t|'re|'ve|'m|'ll|'d"
_GPT2 = _ENDINGS + r"| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_LLAMA3 = r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = f"(?i:{_ENDINGS}){_LLAMA3}"
#: llama.cpp's pre-tokenizers by name, with the patterns they split by in turn (llama-vocab.cpp).
PRE_TOKENIZERS = {
    "gpt-2": (_GPT2,),
    "smollm": (r"\p{N}", _GPT2),
    "llama-bpe": (_LLAMA3,),
    "qwen2": (_LLAMA3.replace("{1,3}", ""),),
    "superbpe": (r"\p{N}+", r"(?=(\d{3})+(?!\d))"),  # splits digits only
}
#: Text that tells the pre-tokenizers apart: digits, cases, contractions, blanks, symbols, scripts.
PROBE = "Don't I'LL 12345 a1b22  x   y\n\n  z\t!?.. (3*4)+50=62 naïve Straße 数字 ١٢٣ 🙂\r\nend  "


def write(
    writer: gguf.GGUFWriter,
    stops: Sequence[int],
    tokenizer: Tokenizer,
    size: int,
    conversations: Sequence[Conversation],
) -> None:
    """Write *tokenizer* to the GGUF file of *writer*.

    Args:
        writer: of the file.
        stops: ids of the tokens that end a completion.
        tokenizer: a byte-level BPE tokenizer; ModelError if it is of another kind.
        size: number of embeddings, to which the tokens are padded.
        conversations: prompts that llama.cpp has to split into the same tokens.
    """
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    model = backend["model"]
    if model["type"] != "BPE" or model.get("byte_fallback"):
        raise ModelError(
            f"only byte-level BPE tokenizers are written as GGUF here; use {CONVERTER}."
        )
    texts = {index: (token, gguf.TokenType.NORMAL) for token, index in model["vocab"].items()}
    for added in backend["added_tokens"]:
        kind = gguf.TokenType.CONTROL if added["special"] else gguf.TokenType.USER_DEFINED
        texts[added["id"]] = (added["content"], kind)
    largest = max(texts)
    if largest >= size:
        raise ModelError(
            f"the tokenizer has token id {largest:,}, and the embeddings {plural(size, 'row')}; "
            "use that of the weights."
        )
    padded = [texts.get(index, (f"[PAD{index}]", gguf.TokenType.UNUSED)) for index in range(size)]
    tokens, types = zip(*padded, strict=True)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre_tokenizer(tokenizer, conversations))
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    writer.add_token_merges(merges)

    ids = {name: getattr(tokenizer, f"{name}_token_id") for name in ("bos", "unk", "pad")}
    # Three of the tokens that end a completion have names of their own; llama.cpp knows further ones
    # by their text.
    stops = sorted(stops, key=[tokenizer.eos_token_id, ends.turn_token(tokenizer), *stops].index)
    ids |= dict(zip(("eos", "eot", "eom"), stops, strict=False))
    for name, index in ids.items():
        if index is not None:
            getattr(writer, f"add_{name}_token_id")(index)
    # Where prompts begin with the begin-of-text token, llama.cpp adds it, once.
    begins = False
    if tokenizer.bos_token is not None:
        prompt = chat_template.render(tokenizer, [{"role": "user", "content": "a"}])
        begins = tokenizer("a")["input_ids"][0] == ids["bos"]
        begins |= prompt.startswith(tokenizer.bos_token)
    writer.add_add_bos_token(begins)
    writer.add_add_eos_token(False)
    if tokenizer.chat_template:
        writer.add_chat_template(tokenizer.chat_template)


def pre_tokenizer(tokenizer: Tokenizer, conversations: Sequence[Conversation]) -> str:
    """Return the name of the pre-tokenizer of llama.cpp that leads to the tokens of *tokenizer*.

    If none does so for all text, one that does so for *conversations* is enough: some models have a
    small vocabulary.
    """
    from tokenizers import Regex, Tokenizer, pre_tokenizers

    prompts = [chat_template.render(tokenizer, conversation) for conversation in conversations]
    original = tokenizer.backend_tokenizer
    candidate = Tokenizer.from_str(original.to_str())
    candidate.no_truncation()
    bytes_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for texts in ([PROBE, *prompts], prompts):
        expected = [original.encode(text, add_special_tokens=False).ids for text in texts]
        for name, patterns in PRE_TOKENIZERS.items():
            splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
            candidate.pre_tokenizer = pre_tokenizers.Sequence([*splits, bytes_level])
            if [candidate.encode(text, add_special_tokens=False).ids for text in texts] == expected:
                return name
    raise ModelError(
        "llama.cpp has no pre-tokenizer like that of this tokenizer; "
        f"use {CONVERTER}, or publish the weights in another format."
    )
