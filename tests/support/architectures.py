"""Random checkpoints of many architectures: two layers or so, a hidden size of 32, and Qwen's special tokens."""

from pathlib import Path
from typing import Any

from tests.support import standins, tiny_llama

#: Names that most configurations know.
_USUAL = tiny_llama.SIZES | {"hidden_size": 32, "intermediate_size": 64}
_USUAL |= {"max_position_embeddings": 1024}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
_GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 1024}
_NO_DROPOUT = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "dropout": 0.0}
_MLA = dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 16)
_MLA |= dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"), 8)
_MLA |= {"num_key_value_heads": 4, "n_routed_experts": 4}
_MLA |= dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace"), 1)
_HYBRID = {"head_dim": 8, "layer_types": ["linear_attention", "full_attention"]}
_HYBRID |= {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
_HYBRID |= {"linear_key_head_dim": 8, "linear_value_head_dim": 8}
_JAMBA = {"num_experts": 4, "attn_layer_period": 2, "expert_layer_period": 2}
_JAMBA |= {"attn_layer_offset": 1, "expert_layer_offset": 1, "use_mamba_kernels": False}
_JAMBA |= {"mamba_d_state": 4, "mamba_dt_rank": 4}
_GEMMA = _USUAL | {"head_dim": 8, "sliding_window": 16}
_MAMBA = {"mamba_d_head": 8, "mamba_d_state": 8}
_MAMBA2 = {"num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 1}

#: Architectures without settings of their own.
PLAIN = "llama phi phi3 gpt_neox falcon starcoder2 olmo2 cohere stablelm granite smollm3"
#: The settings of each, by the name that transformers has for the architecture.
SETTINGS: dict[str, dict[str, Any]] = {
    "mistral": _USUAL | {"sliding_window": 16},
    "qwen2": _USUAL | {"tie_word_embeddings": True},
    "qwen3": _USUAL | {"head_dim": 16},
    "qwen3_moe": _USUAL | _EXPERTS | {"num_experts": 4, "head_dim": 8},
    "mixtral": _USUAL | {"num_local_experts": 4},
    "gemma": _USUAL | {"head_dim": 8},
    **dict.fromkeys(("gemma2", "gemma3_text"), _GEMMA),
    **dict.fromkeys(PLAIN.split(), _USUAL),
    "gpt2": _GPT2 | _NO_DROPOUT,
    "opt": _USUAL | {"ffn_dim": 64, "word_embed_proj_dim": 32} | _NO_DROPOUT,
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4},
    "deepseek_v3": _USUAL | _EXPERTS | _MLA,
    "gpt_oss": _GEMMA | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "jamba": _USUAL | _JAMBA,
    "falcon_h1": _USUAL | {"mamba_d_ssm": 32, "mamba_n_heads": 4} | _MAMBA,
    "mamba": {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
    "mamba2": {"hidden_size": 32, "num_hidden_layers": 2} | _MAMBA2,
    "qwen3_5_text": _USUAL | _HYBRID,
    "qwen3_next": _USUAL
    | _HYBRID
    | _EXPERTS
    | {"num_experts": 4, "shared_expert_intermediate_size": 32},
}


def checkpoint(path: Path, name: str, *, seed: int = 0, **changes: Any) -> Path:
    """A complete checkpoint of the architecture called *name* at *path*, in bf16."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    tokens = standins.tokenizer(standins.FAMILIES["qwen2.5"])
    settings = {"vocab_size": 512, "bos_token_id": None, "eos_token_id": tokens.eos_token_id}
    settings["pad_token_id"] = tokens.pad_token_id
    config = AutoConfig.for_model(name, **SETTINGS[name] | settings | changes)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            # At the usual variance all logits of a model so small are nearly equal.
            if parameter.dim() > 1:
                parameter.normal_(std=0.1)
    model.to(torch.bfloat16).save_pretrained(path)
    tokens.save_pretrained(path)
    return path
