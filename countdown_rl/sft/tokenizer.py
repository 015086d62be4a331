"""A small tokenizer for a small model: numbers in pairs of digits, whole phrases of the prompts as single tokens.

Byte-level BPE that is allowed to merge across spaces (as in SuperBPE, arXiv:2503.13423), so the fixed
wording of a prompt costs a handful of tokens, while any other text still has an encoding.
"""

import re
from collections.abc import Iterable
from typing import Any

#: Tags that are one token each, and that decoding keeps.
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


def build(corpus: Iterable[str], vocab_size: int) -> Any:
    """Train a tokenizer on *corpus*.

    Returns:
        A ``PreTrainedTokenizerFast`` of at most *vocab_size* tokens with a chat template (system, user
        and assistant turns, the last of which may be begun), left padding, and ``<|end|>`` as its end.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\d{1,2}"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(TAGS),
        special_tokens=[AddedToken(token, normalized=False, special=True) for token in SPECIAL],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator((part for text in corpus for part in re.split("|".join(TAGS), text)), trainer)
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
