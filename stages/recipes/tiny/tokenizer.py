"""Tokenizer of the small model: one token per number, per operator with its operand, and per phrase
of the prompt.

A step ``55 - 7 = 48, `` is three tokens: ``55``, `` - 7 = `` and ``48, ``, a division one more; the
number of a line with its full stop is one, and so is the end of a line. Such pieces of arithmetic
are split off by a pattern (:data:`PIECES`) and have merges of their own. All other text is
byte-level BPE whose merges may cross spaces (as in SuperBPE, arXiv:2503.13423), so the fixed
wording of the prompt is a few tokens, and any text can be encoded.
"""

import re
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

#: Tags of one token each, which decoding keeps.
TAGS = ("<think>", "</think>", "<answer>", "</answer>")
BEGIN, SYSTEM, USER, ASSISTANT, END, PAD = SPECIAL = (
    "<|begin|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|end|>",
    "<|pad|>",
)

CHAT_TEMPLATE = (
    "{{- '<|begin|>' -}}"
    "{%- for message in messages -%}"
    "{{- '<|' + message['role'] + '|>' + message['content'] -}}"
    "{%- if not (loop.last and message['role'] == 'assistant' and not add_generation_prompt) -%}"
    "{{- '<|end|>' -}}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)

#: Pieces of arithmetic: an operator with a second operand of up to two digits, or a number with its
#: punctuation.
PIECES = r" [-+*/] \d{1,2}(?!\d)(?: = )?|\d{1,3}(?:, |\. )?"
#: Maxima: of a number in one token, of an operand in one token with its operator, of the number of
#: a line.
MAX_NUMBER, MAX_OPERAND, MAX_LINE = 999, 99, 99
#: A number in the text of a token.
NUMBER = re.compile(r"\d+")

Merge = tuple[str, str]


def build(corpus: Iterable[str], vocab_size: int) -> Any:
    """Build a tokenizer; its merges outside arithmetic are learned from *corpus*.

    Returns:
        A ``PreTrainedTokenizerFast`` of at most *vocab_size* tokens with a chat template (system,
        user and assistant turns, the last of which may be begun), left padding, and ``<|end|>`` as
        its end.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = re.compile(PIECES)
    chunks: Counter[str] = Counter()
    for text in corpus:
        for part in re.split("|".join(TAGS), text):
            for chunk in pieces.split(part):
                chunks[chunk] += 1
    words = {
        byte_level.pre_tokenize_str(chunk)[0][0]: count for chunk, count in chunks.items() if chunk
    }
    merges = _arithmetic_merges()
    count = vocab_size - len(SPECIAL) - len(TAGS) - len(_tokens(alphabet, merges))
    merges += _learned_merges(words, merges, count)
    vocab = {token: index for index, token in enumerate([*SPECIAL, *_tokens(alphabet, merges)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(PIECES), "isolated"), byte_level]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in SPECIAL]
    )
    tokenizer.add_tokens([AddedToken(tag, normalized=False) for tag in TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BEGIN,
        eos_token=END,
        pad_token=PAD,
        padding_side="left",
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def _tokens(alphabet: Iterable[str], merges: Iterable[Merge]) -> list[str]:
    return list(dict.fromkeys([*alphabet, *(left + right for left, right in merges)]))


def _arithmetic_merges() -> list[Merge]:
    """Merges of the pieces of arithmetic; a space is ``Ġ``, as in every byte-level BPE."""
    merges = [(first, second) for first in "123456789" for second in "0123456789"]
    # Of a number of three digits, either pair may be merged first.
    for number in map(str, range(100, MAX_NUMBER + 1)):
        merges.append((number[:2], number[2]))
        if number[1] != "0":
            merges.append((number[0], number[1:]))
    merges += [(",", "Ġ"), (".", "Ġ"), ("Ġ", "="), ("Ġ=", "Ġ")]
    merges += [pair for operator in "+-*/" for pair in (("Ġ", operator), (f"Ġ{operator}", "Ġ"))]
    merges += [(str(number), ",Ġ") for number in range(MAX_NUMBER + 1)]
    merges += [(str(number), ".Ġ") for number in range(1, MAX_LINE + 1)]
    for operator in "+-*/":
        merges += [(f"Ġ{operator}Ġ", str(number)) for number in range(1, MAX_OPERAND + 1)]
    for operator in "+-*":
        merges += [(f"Ġ{operator}Ġ{number}", "Ġ=Ġ") for number in range(1, MAX_OPERAND + 1)]
    return merges


def _learned_merges(words: dict[str, int], merges: list[Merge], count: int) -> list[Merge]:
    """Up to *count* merges after *merges*, each of the most frequent pair of neighbours in *words*
    (with counts).
    """
    pieces = {word: list(word) for word in words}
    for pair in merges:
        _merge(pieces, pair)
    learned: list[Merge] = []
    for _ in range(count):
        pairs: Counter[Merge] = Counter()
        for word, parts in pieces.items():
            for pair in pairwise(parts):
                pairs[pair] += words[word]
        if not pairs:
            break
        learned.append(min(pairs, key=lambda pair: (-pairs[pair], pair)))
        _merge(pieces, learned[-1])
    return learned


def _merge(pieces: dict[str, list[str]], pair: Merge) -> None:
    for word, parts in pieces.items():
        if pair[0] not in parts or pair[1] not in parts:
            continue
        merged, index = [], 0
        while index < len(parts):
            width = 2 if tuple(parts[index : index + 2]) == pair else 1
            merged.append("".join(parts[index : index + width]))
            index += width
        pieces[word] = merged


def number_of(token: str) -> tuple[int, str] | None:
    """Return the number in a token of arithmetic and the text around it, as (7, "Ġ-Ġ{}Ġ=Ġ"); None
    for other tokens.
    """
    match = NUMBER.search(token)
    if match is None or not re.fullmatch(r"(?:Ġ[-+*/]Ġ)?\d+(?:Ġ=Ġ|,Ġ)?", token):
        return None
    return int(match[0]), token[: match.start()] + "{}" + token[match.end() :]
