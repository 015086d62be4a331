"""Readers of a model's JSON files, and the one call by which transformers loads from them."""

import json
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from countdown_rl.core import typed_json
from countdown_rl.core.errors import CountdownError, ModelError, first_line, out_of_memory
from countdown_rl.models import transformers_internals

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
GENERATION = "generation_config.json"

#: Files of a tokenizer.
TOKENIZER = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("tokenizer.model", "vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json"),
)


class Config(TypedDict, total=False):
    """Fields of ``config.json`` that are read here."""

    quantization_config: dict[str, Any] | None
    text_config: dict[str, Any] | None
    eos_token_id: int | list[int] | None
    vocab_size: int | None


class AdapterConfig(TypedDict, total=False):
    """Fields of PEFT's ``adapter_config.json`` that are read here."""

    peft_type: str
    base_model_name_or_path: str | None
    revision: str | None
    r: int
    lora_alpha: float
    rank_pattern: dict[str, int] | None
    alpha_pattern: dict[str, float] | None
    modules_to_save: list[str] | None
    use_rslora: bool


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
    return values


def quantization_config(directory: Path) -> dict[str, Any] | None:
    """Return the ``quantization_config`` of the checkpoint in *directory*; None where its weights are not quantized."""
    return config(directory).get("quantization_config")


def adapter_config(directory: Path) -> dict[str, Any]:
    """Return the ``adapter_config.json`` of the adapter in *directory*."""
    return typed_json.read(directory / "adapter_config.json", AdapterConfig)


def generation_config(directory: Path) -> dict[str, Any]:
    """Return the ``generation_config.json`` of the checkpoint in *directory*; empty where it has none."""
    file = directory / GENERATION
    return typed_json.read(file, GenerationConfig) if file.is_file() else {}


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


@contextmanager
def failures_of_libraries(sentence: str) -> Iterator[None]:
    """Raise what a library raises in this context, except for exhausted memory, as a ModelError.

    A damaged file, a missing tensor, an unknown architecture: each library has its own exceptions. *sentence* says what
    failed, and the library's message follows.
    """
    try:
        yield
    except CountdownError:
        raise
    except Exception as error:
        if out_of_memory(error):
            raise
        raise ModelError(f"{sentence}: {first_line(error)}") from error


def from_pretrained(kind: Any, path: Path, *, trust_remote_code: bool, **options: Any) -> Any:
    """Load *kind*, an ``Auto`` class of transformers, from a directory or GGUF file after its files were checked.

    All loading by transformers goes through here. Without an explicit False it asks on the terminal whether to run
    code of the model.
    """
    source = path
    if path.is_file():
        transformers_internals.read_gguf_headers_once()
        options, path = {"gguf_file": path.name} | options, path.parent
    elif (path / "config.json").is_file():
        check_files(path)
    with failures_of_libraries(f"{source} cannot be loaded"):
        try:
            return kind.from_pretrained(
                path, trust_remote_code=bool(trust_remote_code), local_files_only=True, **options
            )
        except ValueError as error:
            if "trust_remote_code" not in str(error):
                raise
            raise ModelError(
                f"{path} needs code of its own; read that code, then give --trust-remote-code where a command has it."
            ) from error
