"""Model references: what a person writes after ``--model``, resolved to files that can be named and checked.

A reference is the name of the model that ships with the package, a local directory (a Hugging Face
checkpoint, a LoRA adapter, or an artifact of this tool), a GGUF file, or a Hub id. Resolving loads no
weights, and asks the network only for what looks like ``owner/name``.
"""

import hashlib
import json
import os
import re
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from countdown_rl import artifacts
from countdown_rl.artifacts import Manifest
from countdown_rl.errors import ArtifactError, ModelError, UsageError

#: Models that ship with the package, by name.
SHIPPED = {"countdown-tiny": Path(__file__).parents[1] / "assets" / "countdown_tiny"}

#: Kinds of artifact that can be loaded as a model.
LOADABLE = ("model", "adapter", "merged", "quantized", "release")

#: What a Hub snapshot needs; pickled weights and second copies in other formats stay away.
_WANTED = ["*.json", "*.jinja", "*.safetensors", "*.model", "*.txt"]
_UNWANTED = ["*/*", "consolidated*"]

_HUB_ID = re.compile(r"[\w][\w.-]*/[\w][\w.-]*", re.ASCII)


@dataclass(frozen=True)
class ModelRef:
    """A model reference that was found: where its files are, and what it stands on.

    ``kind`` is "shipped", "directory", "gguf", "hub" or "adapter"; ``path`` is None for a Hub id whose
    files have not been fetched; ``revision`` is the Hub commit; ``base`` is what an adapter adapts;
    ``manifest`` is there when this tool made it.
    """

    source: str
    kind: str
    path: Path | None
    revision: str | None = None
    base: "ModelRef | None" = None
    manifest: Manifest | None = None

    @property
    def location(self) -> str:
        """Where this machine finds it again from the directory it is in now: never an absolute path."""
        if self.kind == "shipped" or self.revision or not os.path.isabs(os.path.expanduser(self.source)):
            return self.source
        return Path(os.path.relpath(os.path.expanduser(self.source))).as_posix()

    @property
    def reference(self) -> str:
        """The source as it may be written down and published: of a path that leads out of the directory it
        was given in, the last name alone."""
        location = Path(self.location)
        return location.resolve().name if ".." in location.parts else self.location

    @cached_property
    def digest(self) -> str:
        """Changes when the model does: its manifest's digest, Hub commit, or a sha256 over its weights."""
        if self.manifest is not None:
            return self.manifest.digest
        if self.revision is not None:
            return self.revision
        path = files(self)
        if path.is_file():
            return artifacts.file_sha256(path)
        names = sorted(
            entry.name
            for entry in path.iterdir()
            if entry.suffix == ".safetensors" or entry.name in ("config.json", "adapter_config.json")
        )
        whole = "".join(f"{name} {artifacts.file_sha256(path / name)}\n" for name in names)
        return hashlib.sha256(whole.encode()).hexdigest()

    def as_input(self) -> dict[str, Any]:
        """How this model is written down in the manifest of what is made from it."""
        entry: dict[str, Any] = {"source": self.reference, "kind": self.kind, "digest": self.digest}
        if self.revision is not None:
            entry["revision"] = self.revision
        if self.kind == "gguf" and self.path is not None:
            entry["size"] = self.path.stat().st_size
        if self.manifest is not None:
            entry |= self.manifest.as_input()
        elif self.base is not None:
            entry["base"] = self.base.as_input()
        return entry


def resolve(source: str, *, revision: str | None = None) -> ModelRef:
    """Find the model that *source* names, and check that it is whole.

    Raises:
        ModelError: nothing is there, or it is nothing that can be loaded.
        ArtifactError: an artifact of this tool is damaged or of the wrong kind, or the base that an
            adapter was trained over has changed.
        UsageError: *revision* is given for something that is not on the Hub.
    """
    path = Path(source).expanduser()
    local = source in SHIPPED or path.exists()
    if local and revision is not None:
        raise UsageError(f"--revision is for models on the Hub, and {source} is not one; leave it out.")
    if source in SHIPPED:
        return _shipped(source)
    if path.is_file():
        return _file(source, path)
    if path.is_dir():
        return _directory(source, path)
    if _HUB_ID.fullmatch(source) and not _looks_local(source):
        return _hub(source, revision)
    if _looks_local(source):
        made_by = artifacts.MADE_BY.get(path.name)
        hint = f"`{made_by}` makes it" if made_by else "check the path"
        raise ModelError(f"{source} does not exist; {hint}.")
    raise ModelError(
        f"{source} is not a known model; give {' or '.join(SHIPPED)}, a directory, a .gguf file, "
        "or a Hub id such as Qwen/Qwen3-0.6B."
    )


def files(ref: ModelRef) -> Path:
    """The directory (or GGUF file) that holds the model's files; a Hub model is fetched first.

    Raises:
        ModelError: the Hub cannot be reached, or does not give the files.
    """
    return ref.path if ref.path is not None else _snapshot(ref.source, ref.revision)


def described(ref: ModelRef) -> ModelRef:
    """*ref* with all of its files here but the weights, which are not fetched: enough for its tokenizer.

    Raises:
        ModelError: the Hub cannot be reached, or does not give the files.
    """
    base = described(ref.base) if ref.base is not None else None
    path = ref.path if ref.path is not None else _snapshot(ref.source, ref.revision, [*_UNWANTED, "*.safetensors"])
    return replace(ref, path=path, base=base)


def _looks_local(source: str) -> bool:
    # "artifacts/adapter" has the shape of a Hub id too. A path whose folder is here was meant as a path.
    path = Path(source)
    return (
        source.startswith(("/", "~", "./", "../", "artifacts/"))
        or (len(path.parts) > 1 and path.parent.is_dir())
        or path.suffix in (".gguf", ".safetensors")
    )


def _shipped(name: str) -> ModelRef:
    directory = SHIPPED[name]
    if not (directory / artifacts.MANIFEST).is_file():
        raise ModelError(f"the weights of {name} are missing from this installation; install countdown-rl again.")
    return ModelRef(name, "shipped", directory, manifest=artifacts.read(directory, "model"))


def _file(source: str, path: Path) -> ModelRef:
    with path.open("rb") as stream:
        if stream.read(4) != b"GGUF":
            raise ModelError(f"{source} is not a GGUF file; give a directory, a .gguf file or a Hub id.")
    return ModelRef(source, "gguf", path)


def _directory(source: str, path: Path) -> ModelRef:
    kind = artifacts.peek(path)
    if kind is not None:
        manifest = artifacts.read(path, LOADABLE)
        if kind == "adapter":
            recorded = manifest.inputs.get("model", {})
            return ModelRef(source, "adapter", path, base=_base(source, path, recorded), manifest=manifest)
        if not (path / "config.json").is_file():
            weights = sorted(path.glob("*.gguf"))
            if len(weights) == 1:
                return ModelRef(source, "gguf", weights[0], manifest=manifest)
            raise ModelError(f"{source} is a {kind} artifact without a config.json, so nothing in it can be loaded.")
        return ModelRef(source, "directory", path, manifest=manifest)
    if (path / "adapter_config.json").is_file():
        if not (path / "adapter_model.safetensors").is_file():
            raise ModelError(f"{source} has no adapter_model.safetensors; only safetensors weights are read.")
        return ModelRef(source, "adapter", path, base=_base(source, path, {}))
    if not (path / "config.json").is_file():
        found = sorted(path.glob("*.gguf"))
        if len(found) == 1:
            return _file(source, found[0])
        raise ModelError(f"{source} has no config.json, so it is not a model; give the directory of a checkpoint.")
    if not any(path.glob("*.safetensors")):
        what = "pickled weights only" if any(path.glob("*.bin")) else "no weights"
        raise ModelError(f"{source} holds {what}; save it as safetensors first.")
    return ModelRef(source, "directory", path)


def _base(source: str, path: Path, recorded: dict[str, Any]) -> ModelRef:
    """The model that the adapter at *path* adapts, checked against what its manifest recorded."""
    try:
        config = json.loads((path / "adapter_config.json").read_bytes())
    except (OSError, ValueError) as error:
        raise ArtifactError(
            f"{path / 'adapter_config.json'} is missing or damaged; train the adapter again."
        ) from error
    name = config.get("base_model_name_or_path")
    if not name:
        raise ModelError(f"{source} does not say which model it adapts; set base_model_name_or_path in its config.")
    revision = recorded.get("revision") or config.get("revision")
    try:
        local = name in SHIPPED or Path(name).expanduser().exists()
        base = resolve(name, revision=None if local else revision)
    except ModelError as error:
        raise ModelError(f"{source} adapts {name}, and that cannot be used: {error}") from error
    if base.kind == "adapter":
        raise ModelError(f"{source} adapts {name}, which is an adapter itself; merge that one first.")
    if recorded.get("digest") and recorded["digest"] != base.digest:
        raise ArtifactError(
            f"{source} was trained over another {name} than the one here (its digest was "
            f"{recorded['digest'][:12]}, now {base.digest[:12]}); bring that one back, or train again."
        )
    return base


def _hub(source: str, revision: str | None) -> ModelRef:
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HfHubHTTPError, HTTPError

    if constants.HF_HUB_OFFLINE:
        return _cached(source, revision)
    try:
        info = HfApi().model_info(source, revision=revision, timeout=20)
    except HfHubHTTPError as error:
        raise ModelError(_refusal(source, revision, error)) from error
    except (OSError, HTTPError):  # no route to the Hub: what is in the cache will do
        return _cached(source, revision)
    names = {sibling.rfilename for sibling in info.siblings or ()}
    if "adapter_config.json" in names and "config.json" not in names:
        path = _snapshot(source, info.sha)
        return ModelRef(source, "adapter", path, revision=info.sha, base=_base(source, path, {}))
    if "config.json" not in names or not any(name.endswith(".safetensors") for name in names):
        raise ModelError(f"{source} has no safetensors checkpoint on the Hub; choose a repository that has one.")
    return ModelRef(source, "hub", None, revision=info.sha)


def _cached(source: str, revision: str | None) -> ModelRef:
    from huggingface_hub import snapshot_download

    try:
        path = Path(snapshot_download(source, revision=revision, local_files_only=True))
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{source} is no file or directory here, the Hub cannot be reached, and it is not in the local "
            "cache; check the name or the network."
        ) from error
    if (path / "adapter_config.json").is_file():
        return ModelRef(source, "adapter", path, revision=path.name, base=_base(source, path, {}))
    return ModelRef(source, "hub", path, revision=path.name)


def _snapshot(source: str, revision: str | None, unwanted: list[str] = _UNWANTED) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HTTPError

    try:
        return Path(snapshot_download(source, revision=revision, allow_patterns=_WANTED, ignore_patterns=unwanted))
    except HfHubHTTPError as error:
        raise ModelError(_refusal(source, revision, error)) from error
    except (OSError, ValueError, HTTPError) as error:
        raise ModelError(f"{source} could not be fetched from the Hub; check the network and try again.") from error


def _refusal(source: str, revision: str | None, error: Exception) -> str:
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    if isinstance(error, GatedRepoError):
        return f"{source} wants its terms accepted: do so on its Hub page, then log in with `hf auth login`."
    if isinstance(error, RevisionNotFoundError):
        return f"{source} has no revision {revision} on the Hub."
    if isinstance(error, RepositoryNotFoundError):
        return f"{source} is neither here nor on the Hub; check the name, or log in if it is private."
    status = getattr(getattr(error, "response", None), "status_code", "an error")
    return f"the Hub answered {status} for {source}; try again later."
