"""Weights as one GGUF file, for llama.cpp and what is built on it (llama-cli, Ollama, LM Studio).

Values are quantized by the ``gguf`` package of llama.cpp (f16, q8_0, q4_0) and, for the k-quants, by the
ggml library itself (``libggml-python``). Which tensor gets which type follows ``llama-quantize``: the
q4_k_m mixture, norms in f32, and for rows that a type cannot hold the type that it falls back to.
"""

import ctypes
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type

from countdown_rl.errors import ModelError
from countdown_rl.export import gguf_tokenizer
from countdown_rl.models import chat_template
from countdown_rl.models.checkpoint import Checkpoint

#: What each type is called in a file: llama.cpp's number for the mixture.
FILE_TYPES = {
    "f16": gguf.LlamaFileType.MOSTLY_F16,
    "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
    "q4_0": gguf.LlamaFileType.MOSTLY_Q4_0,
    "q4_k_m": gguf.LlamaFileType.MOSTLY_Q4_K_M,
}
_PLAIN = {"f16": Type.F16, "q8_0": Type.Q8_0, "q4_0": Type.Q4_0, "q4_k_m": Type.Q4_K}
#: What llama-quantize takes where a row is no multiple of the type's block.
_FALLBACK = {Type.Q4_K: Type.Q5_0, Type.Q6_K: Type.Q8_0}

#: transformers' name of an architecture, and GGUF's. Those in `_INTERLEAVED` want the rotated halves of
#: queries and keys side by side.
ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "mistral": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
}
_INTERLEAVED = {gguf.MODEL_ARCH.LLAMA}

#: Values quantized at once: a table of embeddings in fp32 would be the largest thing in memory by far.
_PIECE = 1 << 22


@dataclass(frozen=True)
class Place:
    """Where a tensor of the checkpoint goes: its name in the file, its type, and how many heads to interleave."""

    name: str
    type: Type
    shape: tuple[int, ...]
    heads: int = 0


def write(source: Checkpoint, directory: Path, out: Path, *, name: str, kind: str, tokenizer: Any) -> dict[str, int]:
    """Write *source*, the checkpoint in *directory*, as the GGUF file *out* of type *kind*, a tensor at a time.

    Returns:
        How many tensors there are of each type.

    Raises:
        ModelError: GGUF has no place for this architecture, one of its tensors, or its tokenizer; or
            *kind* needs a library that is not installed.
    """
    config = json.loads((directory / "config.json").read_bytes())
    arch = ARCHITECTURES.get(config.get("model_type"))
    if arch is None:
        raise ModelError(
            f"GGUF is written here for {', '.join(ARCHITECTURES)}, and this is {config.get('model_type')}; "
            "convert it with llama.cpp's convert_hf_to_gguf.py."
        )
    if kind == "q4_k_m":
        _library()
    plan = _plan(source, config, arch, kind)
    writer = gguf.GGUFWriter(None, gguf.MODEL_ARCH_NAMES[arch])
    _describe(writer, directory, config, name, kind, source)
    gguf_tokenizer.describe(writer, directory, tokenizer, config["vocab_size"])
    frequencies = _frequencies(config)
    if frequencies is not None:
        writer.add_tensor_info("rope_freqs.weight", frequencies.shape, frequencies.dtype, frequencies.nbytes)
    for place in plan.values():
        width = gguf.quant_shape_to_byte_shape(place.shape, place.type) if _packed(place.type) else place.shape
        dtype = np.dtype(np.uint8 if _packed(place.type) else np.float16 if place.type == Type.F16 else np.float32)
        nbytes = int(np.prod(width)) * dtype.itemsize
        writer.add_tensor_info(place.name, width, dtype, nbytes, raw_dtype=place.type)
    writer.write_header_to_file(out)
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    if frequencies is not None:
        writer.write_tensor_data(frequencies)
    for original, place in plan.items():
        weight = source.read(original)
        if place.heads:
            weight = _interleaved(weight, place.heads)
        writer.write_tensor_data(_values(weight, place.type))
    writer.close()
    counts: dict[str, int] = {}
    for place in plan.values():
        counts[place.type.name] = counts.get(place.type.name, 0) + 1
    return dict(sorted(counts.items()))


def modelfile(file: str, tokenizer: Any, context: int) -> str:
    """An Ollama Modelfile for the GGUF *file*: the chat template in Ollama's own language, and where to stop."""
    system, user = "%SYSTEM%", "%USER%"
    alone = chat_template.render(tokenizer, [{"role": "user", "content": user}])
    both = chat_template.render(tokenizer, [{"role": "system", "content": system}, {"role": "user", "content": user}])
    bos = tokenizer.bos_token or ""  # the runtime puts it first by itself
    before, after = (part.removeprefix(bos) for part in alone.split(user))
    opening, rest = both.split(system)
    template = (
        "{{ if .System }}"
        + opening.removeprefix(bos)
        + "{{ .System }}"
        + rest.split(user)[0]
        + "{{ else }}"
        + before
        + "{{ end }}{{ .Prompt }}"
        + after
        + "{{ .Response }}"
    )
    lines = [f"FROM ./{file}", f'TEMPLATE """{template}"""', "PARAMETER temperature 0", f"PARAMETER num_ctx {context}"]
    lines += [f'PARAMETER stop "{token}"' for token in [tokenizer.eos_token] if token]
    return "\n".join(lines) + "\n"


def _plan(source: Checkpoint, config: Mapping[str, Any], arch: Any, kind: str) -> dict[str, Place]:
    layers = config["num_hidden_layers"]
    names = gguf.get_tensor_name_map(arch, layers)
    tied = config.get("tie_word_embeddings", False) or "lm_head.weight" not in source.slots
    plan = {}
    for original, slot in source.slots.items():
        if tied and original == "lm_head.weight":
            continue
        name = names.get_name(original, try_suffixes=(".weight", ".bias"))
        if name is None:
            raise ModelError(f"GGUF has no place for {original}, so this model cannot be written as GGUF.")
        wanted = Type.F32 if len(slot.shape) < 2 else _type(name, kind, layers, tied)
        heads = 0
        if arch in _INTERLEAVED and ".attn_q." in name:
            heads = config["num_attention_heads"]
        elif arch in _INTERLEAVED and ".attn_k." in name:
            heads = config.get("num_key_value_heads") or config["num_attention_heads"]
        plan[original] = Place(name, _fitting(wanted, slot.shape), slot.shape, heads)
    return plan


def _type(name: str, kind: str, layers: int, tied: bool) -> Type:
    """The type that llama-quantize gives the tensor called *name* in the mixture *kind*."""
    if name.startswith("output.") or (tied and name.startswith("token_embd.")):
        # Logits are spoilt first. llama-quantize takes Q6_K for q4_0 too; Q8_0 needs no other library.
        return {"q4_k_m": Type.Q6_K, "q4_0": Type.Q8_0}.get(kind, _PLAIN[kind])
    if kind == "q4_k_m" and (".attn_v." in name or ".ffn_down." in name):
        layer, eighth = int(name.split(".")[1]), layers // 8
        if layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2:
            return Type.Q6_K
    return _PLAIN[kind]


def _fitting(wanted: Type, shape: tuple[int, ...]) -> Type:
    if shape[-1] % gguf.GGML_QUANT_SIZES[wanted][0]:
        wanted = _FALLBACK.get(wanted, Type.F16)
    return Type.F16 if shape[-1] % gguf.GGML_QUANT_SIZES[wanted][0] else wanted


def _packed(kind: Type) -> bool:
    return kind not in (Type.F16, Type.F32)


def _interleaved(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of each head in the order 0, h/2, 1, h/2 + 1, ... where transformers keeps the halves apart."""
    return (
        weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)
    )


def _values(weight: torch.Tensor, kind: Type) -> np.ndarray:
    if weight.dim() < 2:
        return weight.float().numpy()
    rows = max(1, _PIECE // weight.shape[1])
    return np.concatenate([_quantized(piece.float().numpy(), kind) for piece in weight.split(rows)])


def _quantized(values: np.ndarray, kind: Type) -> np.ndarray:
    if kind not in (Type.Q4_K, Type.Q6_K):
        return gguf.quantize(values, kind)
    values = np.ascontiguousarray(values)
    rows, width = values.shape
    out = np.empty(gguf.quant_shape_to_byte_shape(values.shape, kind), np.uint8)
    floats, void = ctypes.POINTER(ctypes.c_float), ctypes.c_void_p
    done = _library().ggml_quantize_chunk(
        int(kind), values.ctypes.data_as(floats), out.ctypes.data_as(void), 0, rows, width, None
    )
    if done != out.nbytes:
        raise ModelError(f"ggml wrote {done} bytes where {out.nbytes} were due; update libggml-python.")
    return out


@cache
def _library() -> ctypes.CDLL:
    """ggml, from the wheel that carries it."""
    try:
        import libggml
    except ImportError as error:
        raise ModelError(
            "q4_k_m needs the ggml library: `pip install 'countdown-rl[llama-cpp]'`, or give --gguf-type q8_0 or q4_0."
        ) from error
    found = sorted(path for path in Path(libggml.__file__).parent.rglob("libggml-base.*") if path.is_file())
    found += sorted(path for path in Path(libggml.__file__).parent.rglob("ggml-base.dll"))
    if not found:
        raise ModelError("libggml-python is installed without its library; install it again.")
    library = ctypes.CDLL(str(found[0]))
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    library.ggml_quantize_chunk.argtypes = [
        *(ctypes.c_int, ctypes.POINTER(ctypes.c_float), ctypes.c_void_p),
        *(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p),
    ]
    return library


def _rope(config: Mapping[str, Any]) -> dict[str, Any]:
    rope = dict(config.get("rope_scaling") or {}) | dict(config.get("rope_parameters") or {})
    rope.setdefault("rope_theta", config.get("rope_theta", 10_000.0))
    rope.setdefault("rope_type", rope.get("type", "default"))
    return rope


def _frequencies(config: Mapping[str, Any]) -> np.ndarray | None:
    """The divisors of the rotary frequencies of Llama 3.1 and later, which GGUF holds as a tensor."""
    rope = _rope(config)
    if rope["rope_type"] == "default":
        return None
    if rope["rope_type"] != "llama3":
        raise ModelError(f"rotary scaling of type {rope['rope_type']} is not written as GGUF here.")
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    waves = 2 * np.pi * rope["rope_theta"] ** (np.arange(0, width, 2, dtype=np.float64) / width)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    ratio = rope["original_max_position_embeddings"] / waves
    smooth = np.clip((ratio - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / rope["factor"] + smooth)).astype(np.float32)


def _describe(
    writer: Any, directory: Path, config: Mapping[str, Any], name: str, kind: str, source: Checkpoint
) -> None:
    heads = config["num_attention_heads"]
    width = config.get("head_dim") or config["hidden_size"] // heads
    parameters = sum(slot.size // slot.dtype.itemsize for slot in source.slots.values())
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(name)
    writer.add_size_label(
        gguf.utility.size_label(parameters, 0, 0, 0) if parameters >= 1e6 else f"{parameters // 1000}K"
    )
    writer.add_file_type(FILE_TYPES[kind])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.get("num_key_value_heads") or heads)
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_rope_dimension_count(width)
    writer.add_rope_freq_base(float(_rope(config)["rope_theta"]))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    for key, value in _sampling(directory):
        getattr(writer, f"add_sampling_{key}")(value)


def _sampling(directory: Path) -> Iterator[tuple[str, Any]]:
    """What the model's own generation config says of sampling, which llama.cpp takes as its defaults."""
    file = directory / "generation_config.json"
    said = json.loads(file.read_bytes()) if file.is_file() else {}
    for key, ours, kind in (("temperature", "temp", float), ("top_k", "top_k", int), ("top_p", "top_p", float)):
        if said.get(key) is not None:
            yield ours, kind(said[key])
