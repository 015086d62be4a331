"""Model references: the value of ``--model``, resolved to a model whose files are checked.

A reference is the name of the shipped model, a local directory (a Hugging Face checkpoint, a LoRA
adapter, or an artifact of this tool), a GGUF file, or a Hub id. Resolving loads no weights, and
uses the network only for names of the form ``owner/name``.
"""

import hashlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from countdown_rl.core import artifacts
from countdown_rl.core.errors import ArtifactError, ModelError, UsageError
from countdown_rl.core.hub import download
from countdown_rl.core.manifest import (
    MANIFEST,
    Manifest,
    ProvenanceEntry,
    file_sha256,
    portable,
)
from countdown_rl.core.types import JsonObject
from countdown_rl.models.model_files import GENERATION, TOKENIZER, adapter_config

#: Models that ship with the package, by name.
SHIPPED = {"countdown-tiny": Path(__file__).parents[1] / "assets" / "countdown_tiny"}

#: Kinds of artifact that can be loaded as a model.
LOADABLE = ("model", "adapter", "merged", "quantized", "release")

#: Files of a Hub snapshot that are downloaded; not pickled weights or copies in other formats.
_ALLOWED = ["*.safetensors", "*.json", "*.jinja", "*.model", "*.txt"]
_IGNORED = ["*/*", "consolidated*"]
_WEIGHTS = [*_IGNORED, "*.safetensors"]

#: An id on the Hub: NAME/MODEL.
HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)


@dataclass(frozen=True)
class ModelRef:
    """A model that *source* names, of the kind "shipped", "directory", "gguf", "hub" or "adapter".

    *path* is None for a Hub id whose files have not been downloaded, *revision* is the Hub commit,
    and *base* is the base of an adapter; *base_given* if the user named it.
    """

    source: str
    kind: str
    path: Path | None
    revision: str | None = None
    base: "ModelRef | None" = None
    manifest: Manifest | None = None
    trust_remote_code: bool = False
    base_given: bool = False

    @property
    def location(self) -> str:
        """The source relative to the working directory: never an absolute path."""
        path = Path(self.source).expanduser()
        return Path(os.path.relpath(path)).as_posix() if path.is_absolute() else self.source

    @property
    def portable_source(self) -> str:
        """The source for manifests and cards: of a path outside the working directory its name."""
        return portable(self.location)

    @cached_property
    def digest(self) -> str:
        """The digest of the manifest, the Hub commit, or a sha256 over the weights."""
        if self.manifest is not None:
            return self.manifest.digest
        if self.revision is not None:
            return self.revision
        path = local_path(self)
        if path.is_file():
            return file_sha256(path)
        weights = [file.name for file in path.glob("*.safetensors")]
        return _digest(path, ["config.json", "adapter_config.json", *weights])

    def as_input(self) -> JsonObject:
        """Return the entry for this model among the ``inputs`` of a manifest."""
        entry: JsonObject = {
            "source": self.portable_source,
            "kind": self.kind,
            "digest": self.digest,
        }
        if self.revision is not None:
            entry["revision"] = self.revision
        if self.kind == "gguf" and self.path is not None:
            entry["size"] = self.path.stat().st_size
        if self.manifest is not None:
            entry = self.manifest.as_input() | entry
        elif self.revision is None:
            path = local_path(self)
            directory = path.parent if path.is_file() else path
            entry["tokenizer"] = _digest(directory, [*TOKENIZER, GENERATION])
        if self.base is not None and (self.manifest is None or self.base_given):
            entry["base"] = self.base.as_input()
        return entry


def find_model(
    source: str,
    *,
    revision: str | None = None,
    trust_remote_code: bool = False,
    base_model: str | None = None,
) -> ModelRef:
    """Find a model and check that its files are complete.

    Args:
        source: its name, path or Hub id, which may end with ``@`` and a revision.
        revision: a branch, tag or commit on the Hub.
        trust_remote_code: allows code that comes with the model.
        base_model: the source of an adapter's base, in place of the one that the adapter records.

    Raises:
        ModelError: it is not found, or no model.
        ArtifactError: it is not as its manifest says, or its base is not the one of the training.
        UsageError: an option is for another kind of model.
    """
    if revision is None and "@" in source and not _is_local(source):
        source, _, revision = source.partition("@")
    if revision is not None and _is_local(source):
        raise UsageError(
            f"is for models on the Hub, and {source} is not one; leave it out.", option="revision"
        )
    ref = _find(source, revision, base_model)
    if base_model is not None and ref.base is None:
        raise UsageError(
            f"is for adapters, and {source} is not one; leave it out.", option="base_model"
        )
    if trust_remote_code:
        base = ref.base and replace(ref.base, trust_remote_code=True)
        ref = replace(ref, base=base, trust_remote_code=True)
    return ref


def _find(source: str, revision: str | None, base_model: str | None) -> ModelRef:
    if shipped := SHIPPED.get(source):
        return ModelRef(source, "shipped", shipped, manifest=artifacts.read(shipped, "model"))
    path = Path(source).expanduser()
    if path.is_file():
        artifacts.check_no_pointer(path, ModelError)
        with path.open("rb") as stream:
            is_gguf = stream.read(4) == b"GGUF"
        if not is_gguf:
            raise ModelError(
                f"{path} is not a GGUF file; give a directory, a .gguf file or a Hub id."
            )
        return ModelRef(source, "gguf", path)
    if path.is_dir():
        return _directory(source, path, base_model)
    # "artifacts/adapter" has the form of a Hub id too. If its folder exists, a path was meant.
    is_path = source.startswith(("/", "~", ".", "artifacts/")) or path.suffix == ".gguf"
    if is_path or (len(path.parts) > 1 and path.parent.is_dir()):
        raise ModelError(f"{source} does not exist; check the path, and that its run has finished.")
    if HUB_ID.fullmatch(source):
        return _hub(source, revision, base_model)
    raise ModelError(
        f"{source} is not a known model; give {' or '.join(SHIPPED)}, a directory, a .gguf file, "
        "or a Hub id such as Qwen/Qwen3-0.6B."
    )


def local_path(ref: ModelRef) -> Path:
    """Return the directory (or GGUF file) of the model's files; a Hub model is downloaded first."""
    return ref.path or download(ref.source, ref.revision, allowed=_ALLOWED, ignored=_IGNORED)


def without_weights(ref: ModelRef) -> ModelRef:
    """Return *ref* with all files but the weights downloaded."""
    base = ref.base and without_weights(ref.base)
    path = ref.path or download(ref.source, ref.revision, allowed=_ALLOWED, ignored=_WEIGHTS)
    return replace(ref, path=path, base=base)


def _digest(directory: Path, names: Iterable[str]) -> str:
    """Return the sha256 over those of the files *names* that are in *directory*."""
    lines = ""
    for name in sorted(names):
        file = directory / name
        if file.is_file():
            lines += f"{name} {file_sha256(file)}\n"
    return hashlib.sha256(lines.encode()).hexdigest()


def _is_local(source: str) -> bool:
    return source in SHIPPED or Path(source).expanduser().exists()


def _directory(source: str, path: Path, base_model: str | None) -> ModelRef:
    manifest = artifacts.read(path, LOADABLE) if (path / MANIFEST).exists() else None
    may_adapt = manifest is None or manifest.kind in ("adapter", "release")
    if may_adapt and (path / "adapter_config.json").is_file():
        if not (path / "adapter_model.safetensors").is_file():
            raise ModelError(
                f"{source} has no adapter_model.safetensors; only safetensors weights are read."
            )
        return _adapter(ModelRef(source, "adapter", path, manifest=manifest), path, base_model)
    if not (path / "config.json").is_file():
        gguf_files = list(path.glob("*.gguf"))
        if len(gguf_files) == 1:
            return replace(find_model(str(gguf_files[0])), source=source, manifest=manifest)
        raise ModelError(
            f"{source} has no config.json, so it is not a model; give the --out of a finished run, "
            "or a checkpoint."
        )
    if not any(path.glob("*.safetensors")):
        contents = "pickled weights only" if any(path.glob("*.bin")) else "no weights"
        raise ModelError(f"{source} holds {contents}; save it as safetensors first.")
    return ModelRef(source, "directory", path, manifest=manifest)


def _adapter(ref: ModelRef, path: Path, base_model: str | None) -> ModelRef:
    """Return the adapter *ref* at *path* with its base: *base_model*, or the recorded one."""
    source = ref.source
    config = adapter_config(path)
    trained_over = None
    if ref.manifest and ref.manifest.kind == "adapter":
        trained_over = _trained_over(ref.manifest)
    name = base_model or config.get("base_model_name_or_path")
    if not name or not isinstance(name, str):
        raise ModelError(
            f"{source} has no base_model_name_or_path; name its base by --base-model, or finish its "
            "run."
        )
    recorded = trained_over.revision if trained_over else None
    place = base_model or name
    revision = None
    if not base_model and not _is_local(place):
        revision = recorded or config.get("revision")
    try:
        base = find_model(place, revision=revision)
    except ModelError as error:
        raise ModelError(
            f"{source} adapts {name} (base_model_name_or_path): {error} Name it by --base-model."
        ) from error

    # The manifest has the commit of a base on the Hub, which no digest of files equals.
    comparable = not base_model or (base.revision is None) == (recorded is None)
    if trained_over and comparable and base.digest != trained_over.digest:
        raise ArtifactError(
            f"{source} was trained over another {name} than {place} (its digest was "
            f"{trained_over.digest[:12]}, now {base.digest[:12]}); restore that one, or name it by "
            "--base-model."
        )
    if base.kind == "adapter":
        raise ModelError(
            f"{source} adapts {name}, which is an adapter itself; merge that one first."
        )
    return replace(ref, base=base, base_given=base_model is not None)


def _trained_over(manifest: Manifest) -> ProvenanceEntry | None:
    """Return the model below all adapters over which the adapter of *manifest* was trained."""
    chain = manifest.chain("model")
    known = {entry.digest: entry for entry in chain}
    over = chain[-1] if chain else None
    while over is not None and over.kind == "adapter":
        over = known.get(over.inputs.get("base") or over.inputs.get("model", ""))
    return over


def _hub(source: str, revision: str | None, base_model: str | None) -> ModelRef:
    """Return the model on the Hub, or in its local cache if the Hub cannot be reached."""
    path = download(source, revision, allowed=_ALLOWED, ignored=_WEIGHTS)
    if (path / "config.json").is_file():
        return ModelRef(source, "hub", None, revision=path.name)
    if not (path / "adapter_config.json").is_file():
        raise ModelError(
            f"{source} has no config.json on the Hub, so it is no model that can be loaded here."
        )
    path = download(source, path.name, allowed=_ALLOWED, ignored=_IGNORED)
    return _adapter(ModelRef(source, "adapter", path, revision=path.name), path, base_model)
