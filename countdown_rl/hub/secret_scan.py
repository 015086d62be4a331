"""What must not leave this machine with a release: its paths, and tokens; and what a page must not promise in vain."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from countdown_rl import artifacts
from countdown_rl.artifacts import MANIFEST
from countdown_rl.errors import ArtifactError
from countdown_rl.hub.client import TOKEN

#: Files that are text for people or programs, small enough to be read whole.
_TEXT = (".json", ".md", ".jinja", ".txt", ".yaml", ".jsonl")
_NAMED_TEXT = ("LICENSE", "NOTICE", "Modelfile")

_ABSOLUTE = re.compile(r"(?<![\w:/.~<-])(?:~|file://)?/(?:[\w.@+-]+/)+[\w.@+-]+")
_SPACED = re.compile(r"(?:~|file://)?/(?:[\w.@+ -]+/)+[\w.@+ -]+")
_WINDOWS = re.compile(r"(?<!\w)[A-Za-z]:[\\/]+[\w.-]+[\\/].*")
_UPWARDS = re.compile(r"(?:^|.*[\\/])\.\.(?:[\\/].*|$)", re.DOTALL)
_LINK = re.compile(r"\]\((?!https?://|#)([^)\s]+)\)|\bsrc=\"(?!https?://)([^\"]+)\"")
#: What a Modelfile of Ollama's is made from: a file beside it, or a name that Ollama knows.
_FROM = re.compile(r"^(?:FROM|ADAPTER)\s+(.+?)\s*$", re.MULTILINE)


def check(folder: Path, page: str, inputs: Mapping[str, Any]) -> None:
    """Refuse a release at *folder* with the card *page* and the manifest *inputs* that tells too much, or
    promises what is not there.

    Raises:
        ArtifactError: the text names the first thing found, and where.
    """
    for place, text in _told(folder, inputs):
        if is_path(text):
            raise ArtifactError(
                f"{place} names {text}, a path of this machine; make {place} again with paths inside the working "
                "directory before publishing."
            )
        if TOKEN.search(text):
            raise ArtifactError(f"{place} holds what looks like a token for the Hub; take it out first.")
    for found in _paths_in(page):
        raise ArtifactError(f"the card names {found}, a path of this machine; take it out of what it came from.")
    for name in promised(folder, page):
        if name != MANIFEST and not (folder / name).exists():  # the manifest is written last
            raise ArtifactError(
                f"the card names {name}, which is not in the release; take it out of what it came from."
            )
    for file in texts(folder):
        if TOKEN.search(file.read_text("utf-8", errors="replace")):
            raise ArtifactError(f"{file.name} holds what looks like a token for the Hub; take it out first.")


def promised(folder: Path, page: str) -> list[str]:
    """The files of the release that *page*, or a Modelfile in *folder*, names as being there."""
    names = [one or other for one, other in _LINK.findall(page)]
    for file in sorted(folder.rglob("Modelfile")):
        at = file.parent.relative_to(folder)
        names += [(at / name).as_posix() for name in _FROM.findall(file.read_text("utf-8")) if name.startswith("./")]
    return names


def is_path(text: str) -> bool:
    """Whether *text* as a whole is a path of this machine: absolute, of the home directory, or one that
    leads out of the working directory."""
    if "\n" in text or len(text) > 4096:
        return False
    return any(shape.fullmatch(text) for shape in (_SPACED, _WINDOWS, _UPWARDS))


def texts(folder: Path) -> list[Path]:
    """The text files under *folder*."""
    return sorted(
        path for path in folder.rglob("*") if path.is_file() and (path.suffix in _TEXT or path.name in _NAMED_TEXT)
    )


def _paths_in(page: str) -> Iterator[str]:
    yield from _ABSOLUTE.findall(page)
    yield from (word for word in re.split(r"[\s`\"'|()<>]+", page) if is_path(word))


def _told(folder: Path, inputs: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(place, text) for each string that goes out in a manifest, a config or the head of a file of weights."""
    for entry in inputs.values():
        if isinstance(entry, Mapping) and "digest" in entry:
            for link in artifacts.chain(entry):
                yield from ((link.name, text) for text in _strings(link.options))
    yield from (("the manifest", text) for text in _strings(inputs))
    for file in sorted(folder.rglob("*.json")):
        if file.name.endswith("config.json"):
            yield from ((file.name, text) for text in _strings(json.loads(file.read_bytes())))
    for file in sorted(folder.rglob("Modelfile")):
        yield from ((file.name, text) for text in _FROM.findall(file.read_text("utf-8")))
    for file in sorted(folder.rglob("*.safetensors")):
        yield from ((file.name, text) for text in _strings(_safetensors_metadata(file)))
    for file in sorted(folder.rglob("*.gguf")):
        yield from ((file.name, text) for text in _gguf_strings(file))


def _safetensors_metadata(file: Path) -> Any:
    with file.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        return json.loads(stream.read(size)).get("__metadata__", {})


def _gguf_strings(file: Path) -> Iterator[str]:
    from gguf import GGUFReader, GGUFValueType

    for field in GGUFReader(file).fields.values():
        if list(field.types) == [GGUFValueType.STRING]:
            yield str(field.contents())


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _strings(inner)
