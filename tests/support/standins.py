"""Two-layer random models of the architectures that the recipes train, with tokenizers that fit their templates.

The chat templates are the real ones, shipped with TRL; special tokens, pre-tokenizers, pad and end tokens are those of
each family. The vocabulary has a few hundred tokens. Weights have a variance at which a training step changes the
output.
"""

from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from tests.support import tiny_llama

#: The pre-tokenizer of Llama 3 and Qwen; they differ in the digits they keep together: up to three, or one.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEXT = [
    "You are a careful solver of number puzzles. First reason inside <think> and </think>, then give the answer.",
    "Numbers: 3 7 50 Target: 46 Reach the target with + - * / and parentheses, using each number exactly once.",
    "Let me work through this step by step. <think> </think> <answer> </answer> <thinking> </thinking>",
    "You solve word problems in arithmetic. Put each tag on a line of its own. How many apples are left?",
]


@dataclass(frozen=True)
class Family:
    """Settings of one family of models, by default Qwen's. ``end`` holds the end tokens of its generation config."""

    architecture: str
    template: str
    special: tuple[str, ...] = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    eos: str = "<|im_end|>"
    pad: str | None = "<|endoftext|>"
    bos: str | None = None
    end: tuple[str, ...] = ("<|im_end|>", "<|endoftext|>")
    digits: str = ""
    added: tuple[str, ...] = ()
    tied: bool = True
    config: dict[str, Any] = field(default_factory=dict)


ROPE: dict[str, Any] = {"rope_type": "llama3", "rope_theta": 5e5}
ROPE |= {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
ROPE["original_max_position_embeddings"] = 8_192
LLAMA = (
    "<|begin_of_text|> <|end_of_text|> <|eom_id|> <|eot_id|> <|start_header_id|> <|end_header_id|> "
    "<|finetune_right_pad_id|> <|python_tag|>"
)
FAMILIES = {
    # Llama 3.1 has no pad token, a begin-of-text token, and different tokens for end of turn and end of text.
    "llama-3.1": Family(
        "Llama",
        "llama3_1",
        special=tuple(LLAMA.split()),
        bos="<|begin_of_text|>",
        eos="<|eot_id|>",
        pad=None,
        end=("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"),
        digits="{1,3}",
        tied=False,
        config={"rope_parameters": ROPE, "max_position_embeddings": 131_072},
    ),
    # Qwen3 has <think> and </think> as tokens that are not special, norms its queries and keys, and is tied.
    "qwen3": Family(
        "Qwen3",
        "qwen3",
        added=("<think>", "</think>"),
        config={"head_dim": 32, "max_position_embeddings": 40_960},
    ),
    # Qwen 2.5 has biases on q, k and v.
    "qwen2.5": Family("Qwen2", "qwen2_5", config={"max_position_embeddings": 32_768}),
}


def tokenizer(family: Family) -> Any:
    """A byte-level BPE tokenizer of *family*, as ``AutoTokenizer`` would load it."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, processors, trainers
    from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    cut = Split(Regex(SPLIT.format(digits=family.digits)), behavior="isolated")
    core.pre_tokenizer = Sequence([cut, ByteLevel(add_prefix_space=False, use_regex=False)])
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500 - len(family.special) - len(family.added),
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(TEXT, trainer)
    core.add_special_tokens(list(family.special))
    core.add_tokens([AddedToken(text, special=False, normalized=False) for text in family.added])
    if family.bos:
        ids = [(family.bos, core.token_to_id(family.bos))]
        core.post_processor = processors.TemplateProcessing(f"{family.bos} $A", None, ids)
    template = files("trl").joinpath("chat_templates", f"{family.template}.jinja").read_text()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=family.bos,
        eos_token=family.eos,
        pad_token=family.pad,
        chat_template=template,
        clean_up_tokenization_spaces=False,
    )


def config(family: Family, tokens: Any, **changes: Any) -> Any:
    """The configuration of a two-layer model of *family* over the tokenizer *tokens*."""
    import transformers

    settings = tiny_llama.SIZES | {"vocab_size": 512, "initializer_range": 0.1}
    settings["tie_word_embeddings"] = family.tied
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        settings[name] = getattr(tokens, name)
    kind = getattr(transformers, f"{family.architecture}Config")
    return kind(**settings | family.config | changes)


def checkpoint(path: Path, name: str, **changes: Any) -> Path:
    """A complete checkpoint of the family called *name* at *path*, in bf16."""
    import torch
    import transformers

    family = FAMILIES[name]
    tokens = tokenizer(family)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config(family, tokens, **changes))
    model.generation_config.eos_token_id = tokens.convert_tokens_to_ids(list(family.end))
    model.to(torch.bfloat16).save_pretrained(path)
    tokens.save_pretrained(path)
    return path


def base_checkpoint(path: Path) -> Path:
    """A checkpoint like Qwen2.5's base models: text ends with ``<|endoftext|>``, turns with ``<|im_end|>``.

    Its generation config also has settings that no evaluation applies.
    """
    import json

    from transformers import AutoTokenizer

    checkpoint(path, "qwen2.5")
    tokens = AutoTokenizer.from_pretrained(path)
    tokens.eos_token = "<|endoftext|>"
    tokens.save_pretrained(path)
    settings = {"do_sample": True, "temperature": 0.7, "top_k": 5, "suppress_tokens": [9]}
    settings |= {"repetition_penalty": 1.1, "max_length": 20}
    settings |= dict.fromkeys(("eos_token_id", "pad_token_id"), tokens.eos_token_id)
    (path / "generation_config.json").write_text(json.dumps(settings))
    return path
