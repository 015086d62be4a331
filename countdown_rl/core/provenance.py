"""Provenance chains: the manifests of everything that an artifact was made from, back to the data and first model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from countdown_rl.core.artifacts import MADE_BY, input_name, walk
from countdown_rl.core.errors import ArtifactError


@dataclass(frozen=True)
class ProvenanceEntry:
    """A node of the provenance chain: an artifact or a root input.

    ``kind`` is that of the artifact, else that of the model reference ("hub", "gguf", "directory", "shipped") or
    "file".
    """

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
        return str(self.facts.get("command") or MADE_BY.get(self.kind, ""))

    @property
    def by_grpo(self) -> bool:
        return self.command == "countdown-rl train"


def chain(*entries: Mapping[str, Any]) -> list[ProvenanceEntry]:
    """Return the inputs *entries* and everything that they were made from, in the order of their making, each once."""
    links = {}
    for entry in (inner for outer in entries for inner in walk(outer)):
        manifest = entry.get("manifest") or {}
        links[entry["digest"]] = ProvenanceEntry(
            kind=manifest.get("kind") or entry.get("kind") or "file",
            name=input_name(entry),
            revision=entry.get("revision"),
            digest=entry["digest"],
            **{key: manifest.get(key, {}) for key in ("options", "inputs", "facts", "files", "versions")},
        )
    return list(links.values())


def origin(links: Sequence[ProvenanceEntry]) -> ProvenanceEntry:
    """Return the model that training started from: one on the Hub if there is one, else the last model before GRPO."""
    later = ("data", "file", "merged", "quantized")
    models = [link for link in links if link.kind not in later and not link.by_grpo]
    if not models:
        names = ", ".join(link.name for link in links)
        raise ArtifactError(f"the manifest ({names}) does not name the model that training began with; make it again.")
    return next((link for link in models if link.kind == "hub"), models[-1])
