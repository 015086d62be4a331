"""JSON files of a model, and the one call by which transformers loads from them."""

import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from countdown_rl.core import artifacts, typed_json
from countdown_rl.core.errors import CountdownError, ModelError, first_line, out_of_memory
from countdown_rl.core.types import JsonObject

if TYPE_CHECKING:
    from transformers import AutoModel

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
GENERATION = "generation_config.json"
#: Ids of the puzzles that the weights were trained on, one a line; also beside the run's log.
TRAINED_IDS = "trained_ids.txt"

#: Files of a tokenizer.
TOKENIZER = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("tokenizer.model", "vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json"),
)

#: Of these, the files that hold tokens; every tokenizer has one.
VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")


def write_trained_ids(file: Path, ids: Iterable[str]) -> None:
    file.write_text("".join(f"{name}\n" for name in ids), "utf-8")


def read_trained_ids(file: Path) -> set[str]:
    return set(file.read_text("utf-8").splitlines())


def config(directory: Path) -> JsonObject:
    """Return the ``config.json`` of the checkpoint in *directory*."""
    return typed_json.read(directory / "config.json")


def quantization_config(path: Path) -> JsonObject:
    """Return the ``quantization_config`` of a checkpoint; empty if there is none."""
    if path.is_file():
        return {}
    value = config(path).get("quantization_config") or {}
    return typed_json.build(value, JsonObject, f"{path / 'config.json'}: quantization_config")


def adapter_config(directory: Path) -> JsonObject:
    """Return the ``adapter_config.json`` of the adapter in *directory*."""
    return typed_json.read(directory / "adapter_config.json")


def generation_config(directory: Path) -> JsonObject:
    """Return the ``generation_config.json`` of a checkpoint; empty if there is none."""
    path = directory / GENERATION
    return typed_json.read(path) if path.is_file() else {}


def copy(directory: Path, out: Path, names: Iterable[str] = TOKENIZER) -> None:
    """Copy the files *names* that exist in *directory* to *out*."""
    for name in names:
        if (directory / name).is_file():
            shutil.copyfile(directory / name, out / name)


def shards(directory: Path) -> list[Path]:
    """Return the safetensors files of a checkpoint, as transformers chooses them."""
    index = directory / INDEX
    if (directory / WEIGHTS).is_file() or not index.is_file():
        return [directory / WEIGHTS]
    weight_map = typed_json.read(index).get("weight_map")
    files = typed_json.build(weight_map, dict[str, str], f"{index}: weight_map")
    names = sorted(set(files.values()))
    for name in names:
        if not re.fullmatch(r"[^/\\\0]+\.safetensors", name):
            raise ModelError(f"{index} names {name}; only safetensors files beside it are read.")
    return [directory / name for name in names]


def check_files(directory: Path) -> None:
    """Check that transformers would load safetensors beside the configuration in *directory*."""
    shards(directory)
    if "transformers_weights" in config(directory):
        raise ModelError(
            f"{directory}/config.json names a file of weights (transformers_weights); remove that "
            "field."
        )


@contextmanager
def failures_of_libraries(sentence: str) -> Iterator[None]:
    """Raise exceptions of libraries, except for exhausted memory, as a ModelError.

    A damaged file, a missing tensor, an unknown architecture: each library has its own exceptions.
    *sentence* says what failed, and the library's message follows.
    """
    try:
        yield
    except CountdownError:
        raise
    except Exception as error:
        if out_of_memory(error):
            raise
        raise ModelError(f"{sentence}: {first_line(error)}.") from error


def from_pretrained(
    kind: "type[AutoModel]", path: Path, *, trust_remote_code: bool, **options: object
) -> Any:
    """Load from a directory or GGUF file, after its files were checked.

    All loading by transformers goes through here.

    Args:
        kind: an ``Auto`` class of transformers.
        path: the directory or file.
        trust_remote_code: allows code of the model; if left out, transformers asks on the terminal.
        options: of ``kind.from_pretrained``.
    """
    directory = path
    if path.is_file():
        directory = path.parent
        options = {"gguf_file": path.name} | options
    for file in directory.iterdir():
        artifacts.check_no_pointer(file, ModelError)
    if path.is_dir() and (path / "config.json").is_file():
        check_files(path)
    options |= {"trust_remote_code": trust_remote_code, "local_files_only": True}
    with failures_of_libraries(f"{path} cannot be loaded"):
        try:
            return kind.from_pretrained(directory, **options)
        except ValueError as error:
            if "trust_remote_code" not in str(error):
                raise
            raise ModelError(
                f"{directory} needs code of its own; read it, then give --trust-remote-code where "
                "a command has it."
            ) from error
