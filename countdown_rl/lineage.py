"""The chain of manifests from data to weights, as a list."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from countdown_rl.artifacts import Manifest


@dataclass(frozen=True)
class Link:
    """One thing in the chain: an artifact (``kind`` is its kind), or where a chain begins.

    What begins a chain and is no artifact has the kind that its reference has: "hub", "gguf", "directory",
    "shipped", or "file".
    """

    kind: str
    name: str
    digest: str
    revision: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)


def chain(entry: Mapping[str, Any]) -> list[Link]:
    """Everything that *entry* (as manifests write their inputs down) was made from, first things first,
    itself last, each once."""
    links: dict[str, Link] = {}
    for link in _walk(entry):
        links.setdefault(link.digest, link)
    return list(links.values())


def origin(links: Sequence[Link]) -> Link:
    """The model that training started from: the one on the Hub where there is one, else the last before it."""
    models = [link for link in links if link.kind not in ("data", "file", "adapter", "merged", "quantized")]
    return next((link for link in models if link.kind == "hub"), models[-1])


def changed(entry: Mapping[str, Any]) -> str | None:
    """The name of the first thing in the chain of *entry* whose manifest is not the one its digest is of."""
    manifest = entry.get("manifest")
    if manifest is None:
        inner = [entry["base"]] if isinstance(entry.get("base"), Mapping) else []
    else:
        inner = [value for value in manifest.get("inputs", {}).values() if isinstance(value, Mapping)]
        try:
            whole = Manifest(**manifest).digest == entry.get("digest")
        except TypeError:
            whole = False
        if not whole:
            return str(entry.get("source") or manifest.get("kind") or "an input")
    return next((name for value in inner if (name := changed(value)) is not None), None)


def mentions(inputs: Any, digest: str) -> bool:
    """Whether something in *inputs*, however deep, has that *digest*."""
    if isinstance(inputs, Mapping):
        return inputs.get("digest") == digest or any(mentions(value, digest) for value in inputs.values())
    return isinstance(inputs, list | tuple) and any(mentions(value, digest) for value in inputs)


def _walk(entry: Mapping[str, Any]) -> Iterator[Link]:
    manifest = entry.get("manifest") or {}
    # Data before the model that learnt from it, whatever their names are.
    inputs = manifest.get("inputs", {})
    for key in sorted(inputs, key=lambda key: (key != "data", key)):
        if isinstance(inputs[key], Mapping) and "digest" in inputs[key]:
            yield from _walk(inputs[key])
    if isinstance(entry.get("base"), Mapping):
        yield from _walk(entry["base"])
    yield Link(
        kind=manifest.get("kind") or entry.get("kind") or "file",
        name=str(entry.get("source") or entry.get("file") or manifest.get("kind")),
        digest=str(entry["digest"]),
        revision=entry.get("revision"),
        options=manifest.get("options", {}),
        facts=manifest.get("facts", {}),
        files=manifest.get("files", {}),
        versions=manifest.get("versions", {}),
    )
