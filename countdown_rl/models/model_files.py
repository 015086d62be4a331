"""Readers of a model's JSON files and GGUF header, and the one call by which transformers loads from them."""

import json
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from countdown_rl.core import typed_json
from countdown_rl.core.errors import ModelError
from countdown_rl.models import gguf_header, transformers_internals

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
GENERATION = "generation_config.json"

#: Files of a tokenizer.
TOKENIZER = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("tokenizer.model", "vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json"),
)

#: Names of sizes in a configuration or a GGUF header, and their largest values. A larger model would take minutes to
#: build, or all memory.
_SIZES = (
    (r"n(um)?_(\w+_)?(layers?|blocks?|experts?)|(\w+_)?(block|expert)_(\w+_)?count", 4_096),
    (r"\w*(hidden|intermediate|vocab|embed|ffn)\w*_(size|dim)|head_dim|n_embd|n_inner", 1 << 24),
    (r"(\w+_)?(embedding|forward|key|value)_length(_\w+)?|dimension_count", 1 << 24),
    (r"n(um)?_(\w+_)?heads?|head_count(_\w+)?", 1 << 16),
)


class Config(TypedDict, total=False):
    """Fields of ``config.json`` whose types are checked; those of sizes are checked by ``_SIZES``."""

    model_type: str
    architectures: list[str] | None
    quantization_config: dict[str, Any] | None
    text_config: dict[str, Any] | None
    rope_parameters: dict[str, Any] | None
    rope_scaling: dict[str, Any] | None
    tie_word_embeddings: bool | None
    max_position_embeddings: int | None
    eos_token_id: int | list[int] | None
    rms_norm_eps: float
    rope_theta: float | None


class AdapterConfig(TypedDict, total=False):
    """Fields of PEFT's ``adapter_config.json`` that are read here."""

    peft_type: str
    base_model_name_or_path: str | None
    revision: str | None
    r: int
    lora_alpha: float
    lora_dropout: float
    rank_pattern: dict[str, int] | None
    alpha_pattern: dict[str, float] | None
    target_modules: str | list[str] | None
    modules_to_save: list[str] | None
    use_rslora: bool
    use_dora: bool
    fan_in_fan_out: bool


class GenerationConfig(TypedDict, total=False):
    """Fields of ``generation_config.json`` that are read here."""

    eos_token_id: int | list[int] | None
    pad_token_id: int | None


class _Index(TypedDict):
    weight_map: dict[str, str]


def config(directory: Path) -> dict[str, Any]:
    """Return the ``config.json`` of the checkpoint in *directory*."""
    file = directory / "config.json"
    values = typed_json.read(file, Config)
    if "transformers_weights" in values:
        raise ModelError(f"{file} names a file of weights (transformers_weights), which is not supported; remove it.")
    _check_sizes(file, values)
    return values


def adapter_config(directory: Path) -> dict[str, Any]:
    """Return the ``adapter_config.json`` of the adapter in *directory*."""
    return typed_json.read(directory / "adapter_config.json", AdapterConfig)


def generation_config(directory: Path) -> dict[str, Any]:
    """Return the ``generation_config.json`` of the checkpoint in *directory*; empty where it has none."""
    file = directory / GENERATION
    return typed_json.read(file, GenerationConfig) if file.is_file() else {}


def gguf_config(file: Path) -> dict[str, Any]:
    """Return the fields in the header of the GGUF *file*; see :func:`gguf_header.read`."""
    values = gguf_header.read(file)
    _check_sizes(file, values)
    return values


def copy(directory: Path, out: Path, names: Iterable[str] = TOKENIZER) -> None:
    """Copy the files *names* from *directory* to *out*, as far as they exist."""
    for name in names:
        if (directory / name).is_file():
            shutil.copyfile(directory / name, out / name)


def write_config(directory: Path, out: Path, **changes: Any) -> None:
    """Write the ``config.json`` of *directory* with *changes* to *out*."""
    values = config(directory) | changes
    if "dtype" in changes:
        values.pop("torch_dtype", None)  # its older name
    (out / "config.json").write_text(json.dumps(values, indent=2, sort_keys=True) + "\n")


def shards(directory: Path) -> list[Path]:
    """Return the safetensors files of the checkpoint or adapter in *directory*."""
    index = directory / INDEX
    if not index.is_file():
        return [directory / WEIGHTS] if (directory / WEIGHTS).is_file() else sorted(directory.glob("*.safetensors"))
    names = sorted(set(typed_json.read(index, _Index)["weight_map"].values()))
    for name in names:
        if not re.fullmatch(r"[^/\\\0]+\.safetensors", name):
            raise ModelError(f"{index} names {name}, and only safetensors files beside it are read; remove it.")
    if WEIGHTS not in names and (directory / WEIGHTS).exists():  # which transformers would read instead
        raise ModelError(f"{directory} holds {WEIGHTS} and an index of other files; remove one of the two.")
    return [directory / name for name in names]


def check_files(directory: Path) -> None:
    """Check all files that are read here of the checkpoint in *directory*."""
    config(directory)
    generation_config(directory)
    shards(directory)
    if (directory / "adapter_config.json").is_file():  # transformers would load the base that it names instead
        raise ModelError(f"{directory} holds a model and an adapter; move one of them to a directory of its own.")


def from_pretrained(kind: Any, path: Path, *, trust_remote_code: bool, **options: Any) -> Any:
    """Load *kind*, an ``Auto`` class of transformers, from a directory or GGUF file after its files were checked.

    All loading by transformers goes through here. Without an explicit False it asks on the terminal whether to run
    code of the model.
    """
    if path.is_file():
        transformers_internals.read_gguf_headers_once()
        options, path = {"gguf_file": path.name} | options, path.parent
    elif (path / "config.json").is_file():
        check_files(path)
    try:
        return kind.from_pretrained(path, trust_remote_code=bool(trust_remote_code), local_files_only=True, **options)
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise ModelError(
            f"{path} needs code of its own; read that code, then give --trust-remote-code where a command has it."
        ) from error


def _check_sizes(file: Path, values: dict[str, Any]) -> None:
    for name, value in values.items():
        if isinstance(value, dict):
            _check_sizes(file, value)
            continue
        key = name.rpartition(".")[2]  # in a GGUF header they begin with the architecture
        largest = next((largest for pattern, largest in _SIZES if re.fullmatch(pattern, key)), None)
        for size in value if isinstance(value, list | tuple) else [value]:
            if largest is None or size is None:
                continue
            if not isinstance(size, int) or not 0 <= size <= largest:
                raise ModelError(f"{file}: {name} should be a whole number up to {largest}, not {size!r:.40}.")
