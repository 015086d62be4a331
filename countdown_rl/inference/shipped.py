"""The shipped model for the CPU decoder, without transformers, whose import takes longer than an answer.

Its files are those of the package, which :func:`countdown_rl.models.reference.resolve` has checked; so are the
classes here those parts of ``LlamaForCausalLM`` and of its tokenizer that the decoder, :class:`Stop` and chat
templates use. A test compares the completions.
"""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer as Backend
from torch import Tensor, nn

from countdown_rl.models import load, model_files
from countdown_rl.models.load import Loaded
from countdown_rl.models.reference import ModelRef, local_path
from countdown_rl.models.shape import ModelShape


def supports(ref: ModelRef, *, precision: str, device: str) -> bool:
    """Return True if *ref* is the shipped model, to be run in fp32 on a CPU."""
    return ref.kind == "shipped" and precision in ("auto", "fp32") and load.device_name(device) == "cpu"


def load_model(ref: ModelRef) -> Loaded:
    """Load the shipped model *ref*."""
    path = local_path(ref)
    return Loaded(_Llama(path), _Tokenizer(path), ref, "fp32", "cpu", "plain")


class _Config(SimpleNamespace):
    def get_text_config(self) -> "_Config":
        return self


class _Llama(nn.Module):
    device, dtype = torch.device("cpu"), torch.float32

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.config = _Config(**model_files.config(directory))
        self.generation_config = SimpleNamespace(**model_files.generation_config(directory))
        shape = ModelShape.of(self.config)
        blocks = nn.ModuleList(_block(shape) for _ in range(shape.num_layers))
        norm, embedding = nn.RMSNorm(shape.hidden_size), nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.model = nn.ModuleDict({"embed_tokens": embedding, "layers": blocks, "norm": norm})
        self.model.rotary_emb = _rotary(shape.head_dim, self.config.rope_parameters["rope_theta"])
        self.load_state_dict(load_file(directory / model_files.WEIGHTS))  # which converts bf16 to fp32
        self.lm_head = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)
        self.lm_head.weight = embedding.weight

    def get_input_embeddings(self) -> Any:
        return self.model["embed_tokens"]

    def get_output_embeddings(self) -> Any:
        return self.lm_head


def _block(shape: ModelShape) -> nn.ModuleDict:
    hidden, inner, linear = shape.hidden_size, shape.intermediate_size, partial(nn.Linear, bias=False)
    queries, keys = (heads * shape.head_dim for heads in (shape.num_heads, shape.num_kv_heads))
    attention = {"q_proj": linear(hidden, queries), "k_proj": linear(hidden, keys), "v_proj": linear(hidden, keys)}
    mlp = {"gate_proj": linear(hidden, inner), "up_proj": linear(hidden, inner), "down_proj": linear(inner, hidden)}
    return nn.ModuleDict(
        {
            "input_layernorm": nn.RMSNorm(hidden),
            "self_attn": nn.ModuleDict(attention | {"o_proj": linear(queries, hidden)}),
            "post_attention_layernorm": nn.RMSNorm(hidden),
            "mlp": nn.ModuleDict(mlp),
        }
    )


def _rotary(size: int, theta: float) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """``LlamaRotaryEmbedding`` of the default type: cosines and sines (B, P, D) of positions (B, P)."""
    frequencies = 1.0 / (theta ** (torch.arange(0, size, 2, dtype=torch.float) / size))

    def rotary(hidden: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        angles = positions[..., None].float() * frequencies
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos(), angles.sin()

    return rotary


class _Tokenizer:
    def __init__(self, directory: Path) -> None:
        self._backend = Backend.from_file(str(directory / "tokenizer.json"))
        self.name_or_path = str(directory)
        self.chat_template = (directory / "chat_template.jinja").read_text(encoding="utf-8")
        config = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
        self.special_tokens_map = {name: config[name] for name in ("bos_token", "eos_token", "pad_token")}
        self.eos_token_id, self.pad_token_id = map(
            self._backend.token_to_id, (config["eos_token"], config["pad_token"])
        )
        self.get_vocab, self.decode = self._backend.get_vocab, self._backend.decode

    def get_chat_template(self) -> str:
        return self.chat_template

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def __call__(self, texts: str | list[str], *, add_special_tokens: bool) -> dict[str, Any]:
        if isinstance(texts, str):
            return {"input_ids": self.encode(texts, add_special_tokens=add_special_tokens)}
        return {"input_ids": [self.encode(text, add_special_tokens=add_special_tokens) for text in texts]}
