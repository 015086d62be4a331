"""Small random checkpoints for tests: a two-layer Llama with a real tokenizer, made in milliseconds."""

from pathlib import Path
from typing import Any

TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2}


def tokenizer(template: str | None = TEMPLATE, *, pad: str | None = "<|pad|>") -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    special = ["<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=special, initial_alphabet=letters, show_progress=False
    )
    text = "Numbers: 3 7 50 Target: 46 <think> </think> <answer> </answer>"
    core.train_from_iterator([text], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<|end|>", pad_token=pad, chat_template=template
    )


def model(seed: int = 0, **changes: Any) -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    settings = SIZES | {"vocab_size": 320, "max_position_embeddings": 512, "pad_token_id": 0}
    settings |= {"bos_token_id": None, "eos_token_id": 1}
    settings |= {"tie_word_embeddings": True, "initializer_range": 0.1}
    return LlamaForCausalLM(LlamaConfig(**settings | changes)).to(torch.bfloat16)


def checkpoint(path: Path, *, seed: int = 0, shard: str = "5GB", **changes: Any) -> Path:
    """A complete checkpoint at *path*: config, safetensors, tokenizer, chat template."""
    model(seed, **changes).save_pretrained(path, max_shard_size=shard)
    tokenizer().save_pretrained(path)
    return path


def adapter(
    path: Path, base: Path, *, seed: int = 1, reference: str | None = None, **config: Any
) -> Path:
    """A PEFT LoRA adapter over *base* whose weights are not zero."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    settings = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}
    model = AutoModelForCausalLM.from_pretrained(base)
    adapted = get_peft_model(model, LoraConfig(**settings | config))
    with torch.no_grad():
        for name, value in adapted.named_parameters():
            if "lora_B" in name:
                value.normal_(std=0.05)
            elif value.requires_grad and "lora_A" not in name:
                value.add_(torch.randn_like(value) * 0.02)
    adapted.peft_config["default"].base_model_name_or_path = reference or str(base)
    adapted.save_pretrained(path, save_embedding_layers=False)
    tokenizer().save_pretrained(path)
    return path
