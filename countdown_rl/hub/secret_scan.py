"""Scan of a release for tokens of the Hub, and of its metadata for local paths."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from countdown_rl import artifacts
from countdown_rl.errors import ArtifactError

#: Format of every token of the Hub.
TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{16,}")

_BINARY = (".safetensors", ".gguf")


def check(folder: Path, inputs: Mapping[str, Any]) -> None:
    """Check the release at *folder*, whose manifest will hold *inputs*.

    Raises:
        ArtifactError: it contains a token, a local path, or a Modelfile of weights that are not there.
    """
    for name, text in _metadata(folder):
        if artifacts.is_local(text):
            raise ArtifactError(f"{name} contains the local path {text}; make it again with a relative path.")
        _check_token(name, text)
    for file in folder.rglob("Modelfile"):
        for line in file.read_text("utf-8").splitlines():
            weights = line.partition(" ")[2]
            if line.startswith("FROM ./") and not (file.parent / weights).is_file():
                raise ArtifactError(f"Modelfile names {weights}, which is not in the release; quantize again.")
    _check_token("the manifest", json.dumps(inputs))
    check_texts(folder)


def check_texts(folder: Path, token: str | None = None) -> None:
    """Check that no text file in *folder* contains *token*, or anything in the format of a token.

    Raises:
        ArtifactError: one of them does.
    """
    for file in sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix not in _BINARY):
        _check_token(file.name, file.read_text("utf-8", errors="replace"), token)


def _check_token(name: str, text: str, token: str | None = None) -> None:
    if TOKEN.search(text) or (token and token in text):
        raise ArtifactError(f"{name} contains what looks like a token for the Hub; remove it before publishing.")


def _metadata(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield (file name, text) for each string in a config, a Modelfile or the header of a file of weights."""
    for file in sorted(folder.rglob("*")):
        if file.name.endswith("config.json"):
            yield from ((file.name, text) for text in _strings(json.loads(file.read_bytes())))
        elif file.name == "Modelfile":
            yield from ((file.name, line.partition(" ")[2]) for line in file.read_text("utf-8").splitlines())
        elif file.suffix == ".safetensors":
            with file.open("rb") as stream:
                header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
            yield from ((file.name, text) for text in _strings(header.get("__metadata__", {})))
        elif file.suffix == ".gguf":
            from gguf import GGUFReader, GGUFValueType

            for field in GGUFReader(file).fields.values():
                if list(field.types) == [GGUFValueType.STRING]:
                    yield file.name, str(field.contents())


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _strings(inner)
