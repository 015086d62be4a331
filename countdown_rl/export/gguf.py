"""Export to one GGUF file, for llama.cpp and programs built on it (llama-cli, Ollama, LM Studio).

The ``gguf`` package of llama.cpp quantizes f16, q8_0 and q4_0; ``llama-quantize`` makes other types
of an f16 file. Norms are in f32, rows that are not a multiple of a type's block in f16.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type

from countdown_rl.core.errors import ModelError
from countdown_rl.core.manifest import provenance_chain
from countdown_rl.core.types import JsonObject, Record
from countdown_rl.export import gguf_tokenizer, llama_cpp
from countdown_rl.export.config import QuantizeOptions
from countdown_rl.export.source import Source
from countdown_rl.models import ends
from countdown_rl.models.chat_template import CHAT_ARGUMENTS, render
from countdown_rl.models.checkpoint import Checkpoint
from countdown_rl.models.protocols import Tokenizer
from countdown_rl.models.shape import ModelShape, read_config
from countdown_rl.tasks import probe

if TYPE_CHECKING:
    from transformers import PretrainedConfig

#: The type of most tensors of each ``--gguf-type``.
_MAIN_TYPES = {"f16": Type.F16, "q8_0": Type.Q8_0, "q4_0": Type.Q4_0}
#: transformers' names of supported architectures, and GGUF's.
_ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
#: Text no chat template may write into a Modelfile: ends of a string, Ollama's actions, lines before
#: an instruction.
_INSTRUCTIONS = (
    "FROM|PARAMETER|TEMPLATE|SYSTEM|ADAPTER|LICENSE|MESSAGE|RENDERER|PARSER|REQUIRES|DRAFT"
)
_SPECIAL = re.compile(
    rf'"{{3}}|{{+|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029](?=\s*({_INSTRUCTIONS})\s)', re.IGNORECASE
)
#: Prompts of the check by llama.cpp.
PROMPTS = 16
#: Values quantized at once, which bounds the memory of a large embedding table in fp32.
_CHUNK = 1 << 22


class _Tensor(NamedTuple):
    """A tensor of the file. ``heads`` is the number of heads whose rows are interleaved, or 0."""

    name: str
    type: Type
    heads: int = 0


def write(source: Source, out: Path, options: QuantizeOptions) -> JsonObject:
    """Write a GGUF file, one tensor at a time, and an Ollama Modelfile.

    Args:
        source: the full-precision model.
        out: directory of the two files.
        options: the type of the weights.

    Returns:
        Facts about the file for a manifest.

    Raises:
        ModelError: GGUF does not support the model.
    """
    ref, directory, checkpoint, tokenizer, model = source
    kind = options.gguf_type
    config = read_config(directory)
    shape = ModelShape.of(config)
    arch = architecture(config)
    conversations = probe.conversations(ref.as_input(), PROMPTS)
    stops = ends.of_checkpoint(tokenizer, directory)
    file = out / f"model-{kind.upper()}.gguf"
    untied = checkpoint.drop_tied(model.all_tied_weights_keys)
    tensors = _plan(checkpoint, shape, arch, kind, tied=config.tie_word_embeddings and not untied)
    frequencies = _rope_frequencies(config.rope_parameters, shape.head_dim)

    writer = gguf.GGUFWriter(None, arch)
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(probe.model_name(provenance_chain(ref.as_input())))
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{kind.upper()}"])
    _write_config(writer, config, shape)
    gguf_tokenizer.write(writer, stops, tokenizer, shape.vocab_size, conversations)
    _write_tensors(writer, file, checkpoint, tensors, frequencies)
    if tokenizer.chat_template:
        text = modelfile(file.name, tokenizer, context_length(config), stops)
        if text:
            (out / "Modelfile").write_text(text, "utf-8")

    types = Counter(tensor.type.name for tensor in tensors.values())
    facts: JsonObject = {
        "gguf_type": kind,
        "file": file.name,
        "tensors": dict(sorted(types.items())),
        "bytes": file.stat().st_size,
    }
    if find_spec("xllamacpp"):
        facts["llama_cpp"] = llama_cpp.check_round_trip(file, tokenizer, conversations)
    return facts


def _write_tensors(
    writer: gguf.GGUFWriter,
    file: Path,
    source: Checkpoint,
    tensors: Mapping[str, _Tensor],
    frequencies: np.ndarray | None,
) -> None:
    fp32 = np.dtype(np.float32)
    if frequencies is not None:
        writer.add_tensor_info("rope_freqs.weight", frequencies.shape, fp32, frequencies.nbytes)
    for original, tensor in tensors.items():
        spec = source.specs[original]
        block, block_bytes = gguf.GGML_QUANT_SIZES[tensor.type]
        nbytes = spec.numel() // block * block_bytes
        writer.add_tensor_info(tensor.name, tuple(spec.shape), fp32, nbytes, raw_dtype=tensor.type)
    writer.write_header_to_file(file)
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    if frequencies is not None:
        writer.write_tensor_data(frequencies)
    for original, tensor in tensors.items():
        writer.write_tensor_data(_values(source.read(original), tensor))
    writer.close()


def architecture(config: "PretrainedConfig") -> str:
    """Return GGUF's name for the architecture of *config*; ModelError if it is not supported."""
    activation = getattr(config, "hidden_act", None)
    if config.model_type not in _ARCHITECTURES or activation != "silu":
        supported = ", ".join(_ARCHITECTURES)
        raise ModelError(
            f"GGUF export supports {supported} with silu, not {config.model_type} with "
            f"{activation}; use {gguf_tokenizer.CONVERTER}."
        )
    return _ARCHITECTURES[config.model_type]


def context_length(config: "PretrainedConfig") -> int | None:
    """Return the number of tokens that llama.cpp reads as the model of *config* does.

    It is at most a sliding window, which llama.cpp ignores.
    """
    lengths = ModelShape.of(config).context_length, getattr(config, "sliding_window", None)
    return min(filter(None, lengths), default=None)


def modelfile(
    file: str, tokenizer: Tokenizer, context: int | None, stops: Sequence[int] = ()
) -> str | None:
    """Return an Ollama Modelfile, with the chat template in Ollama's language.

    Args:
        file: name of the GGUF file.
        tokenizer: has the chat template.
        context: context length in tokens.
        stops: ids of the tokens that end a completion.

    Returns:
        The text; None where the chat template changes the turns, which Ollama's language cannot.
    """
    system, user = "%OLLAMASYSTEM%", "%OLLAMAUSER%"
    turn = {"role": "user", "content": user}
    bos = tokenizer.bos_token or ""  # Ollama adds it by itself

    def shown(*turns: Mapping[str, str]) -> str:
        return render(tokenizer, turns, CHAT_ARGUMENTS).removeprefix(bos)

    without_system = shown(turn)
    with_system = shown({"role": "system", "content": system}, turn)
    if system not in with_system or user not in with_system or user not in without_system:
        return None

    def literal(text: str) -> str:  # in Ollama's template language, within three quotes
        text = _SPECIAL.sub(lambda match: f"{{{{ {json.dumps(match[0])} }}}}", text)
        return text.replace(system, "{{ .System }}").replace(user, "{{ .Prompt }}")

    # The chat template may show a turn more than once; the answer follows the last user turn.
    before, _, after = map(literal, without_system.rpartition(user))
    before_system, _, _ = map(literal, with_system.rpartition(user))
    lines = [
        f"FROM ./{file}",
        f'TEMPLATE """{{{{ if .System }}}}{before_system}{{{{ else }}}}{before}{{{{ end }}}}'
        f'{{{{ .Prompt }}}}{after}{{{{ .Response }}}}"""',
        "PARAMETER temperature 0",
        f"PARAMETER num_ctx {min(context or 8192, 8192)}",
    ]
    ends = [token for token in tokenizer.convert_ids_to_tokens(stops) if '"' not in token]
    lines += [f'PARAMETER stop "{token}"' for token in ends if token.isprintable()]
    return "\n".join(lines) + "\n"


def _plan(
    source: Checkpoint, shape: ModelShape, arch: str, kind: str, *, tied: bool
) -> dict[str, _Tensor]:
    """Return the tensors of the file, by their names in *source*."""
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[arch.upper()], shape.num_layers)
    # GGUF stores the rotated halves of queries and keys of this architecture interleaved.
    heads = {"attn_q": shape.num_heads, "attn_k": shape.num_kv_heads} if arch == "llama" else {}
    plan = {}
    for original, spec in source.specs.items():
        if original.endswith("rotary_emb.inv_freq"):
            continue  # in older checkpoints; the configuration has them
        name = names.get_name(original, try_suffixes=(".weight", ".bias"))
        if tied and name == "output.weight":  # stored under the name of the head alone
            name = "token_embd.weight"
        if name is None or (name.endswith(".bias") and arch != "qwen2"):
            raise ModelError(
                f"GGUF has no name for {original}, so this model cannot be written as GGUF."
            )
        type = _MAIN_TYPES[kind]
        if len(spec.shape) < 2:
            type = Type.F32
        elif kind == "q4_0" and name == ("token_embd.weight" if tied else "output.weight"):
            # Logits lose most. llama-quantize uses Q6_K, which needs another library.
            type = Type.Q8_0
        if spec.shape[-1] % gguf.GGML_QUANT_SIZES[type][0]:
            type = Type.F16
        plan[original] = _Tensor(name, type, heads.get(name.split(".")[-2], 0))
    return plan


def _values(weight: torch.Tensor, tensor: _Tensor) -> np.ndarray:
    if tensor.heads:  # from halves apart to the order 0, h/2, 1, h/2 + 1, ... within each head
        halves = weight.unflatten(0, (tensor.heads, 2, -1))
        weight = halves.swapaxes(1, 2).reshape(weight.shape)
    if weight.dim() < 2:
        return weight.float().numpy()
    chunks = weight.split(max(1, _CHUNK // weight.shape[1]))
    arrays = [chunk.float().contiguous().numpy() for chunk in chunks]
    return np.concatenate([gguf.quantize(array, tensor.type) for array in arrays])


def _rope_frequencies(rope: Record, width: int) -> np.ndarray | None:
    """Return the divisors of the rotary frequencies of Llama 3.1 and later; else None."""
    if rope["rope_type"] == "default":
        return None
    if rope["rope_type"] != "llama3":
        raise ModelError(
            f"rotary scaling of type {rope['rope_type']} is not supported in GGUF export."
        )
    exponents = np.arange(0, width, 2, dtype=np.float64) / width
    wavelengths = 2 * np.pi * rope["rope_theta"] ** exponents
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    ratio = rope["original_max_position_embeddings"] / wavelengths
    smooth = np.clip((ratio - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / rope["factor"] + smooth)).astype(np.float32)


def _write_config(writer: gguf.GGUFWriter, config: "PretrainedConfig", shape: ModelShape) -> None:
    """Write the dimensions of the model, and greedy decoding as llama.cpp's default for it."""
    fields = {
        "quantization_version": gguf.GGML_QUANT_VERSION,
        "vocab_size": shape.vocab_size,
        "context_length": context_length(config),
        "embedding_length": shape.hidden_size,
        "block_count": shape.num_layers,
        "feed_forward_length": shape.intermediate_size,
        "head_count": shape.num_heads,
        "head_count_kv": shape.num_kv_heads,
        "key_length": shape.head_dim,
        "value_length": shape.head_dim,
        "rope_dimension_count": shape.head_dim,
        "rope_freq_base": float(config.rope_parameters["rope_theta"]),
        "layer_norm_rms_eps": config.rms_norm_eps,
        "sampling_temp": 0.0,
    }
    for name, field in fields.items():
        getattr(writer, f"add_{name}")(field)
