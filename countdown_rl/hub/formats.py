"""Weights of a release: the formats that this tool makes, and an artifact of weights in one of them."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from countdown_rl import artifacts
from countdown_rl.artifacts import Manifest
from countdown_rl.errors import ArtifactError, UsageError
from countdown_rl.evaluation.results import Result
from countdown_rl.models.reference import SHIPPED, ModelRef

KINDS = ("quantized", "merged", "model", "adapter")


@dataclass(frozen=True)
class Format:
    """A format of weights; ``packages`` are what transformers needs to load it."""

    name: str
    title: str
    library: str
    packages: str = ""
    tags: tuple[str, ...] = ()


FULL = Format("full", "full-precision weights (safetensors)", "transformers", "transformers")
NF4 = Format(
    "nf4",
    "4-bit weights (NF4, double quantization, bf16 compute)",
    "transformers",
    "transformers accelerate bitsandbytes",
    ("4-bit", "nf4", "bitsandbytes"),
)
W4A16 = Format(
    "w4a16",
    "4-bit weights for vLLM (compressed-tensors, W4A16)",
    "transformers",
    "transformers accelerate compressed-tensors",
    ("4-bit", "w4a16", "compressed-tensors"),
)
GGUF = Format("gguf", "GGUF for llama.cpp, Ollama and other programs built on it", "gguf", tags=("gguf", "llama.cpp"))
ADAPTER = Format("adapter", "LoRA adapter", "peft", "transformers peft")

#: By the names that the facts of a release have.
FORMATS = {format.name: format for format in (FULL, NF4, W4A16, GGUF, ADAPTER)}
_METHODS = {None: FULL, "bitsandbytes": NF4, "compressed-tensors": W4A16}


@dataclass(frozen=True)
class Weights:
    """An artifact of weights; ``folder`` is its place in the release, "" for the root."""

    folder: str
    path: Path
    manifest: Manifest
    entry: dict[str, Any]
    format: Format
    evaluation: Result | None = None

    @property
    def location(self) -> str:
        """Path from the root of the release."""
        return f"./{self.folder}" if self.folder else "."

    @property
    def gguf_files(self) -> list[str]:
        prefix = f"{self.folder}/" if self.folder else ""
        return [f"{prefix}{name}" for name in sorted(self.manifest.files) if name.endswith(".gguf")]


def path_of(source: str) -> Path:
    """Return the directory that *source*, the name of a shipped model or a path, names."""
    return SHIPPED.get(source) or Path(source).expanduser()


def read(source: str, folder: str) -> Weights:
    """Read the manifest of the weights that *source* names; their files are checked when they are copied.

    Raises:
        ArtifactError: there is no such artifact, or its format is unknown.
    """
    path = path_of(source)
    manifest = artifacts.read(path, KINDS, verify=False)
    ref = ModelRef(source, "shipped" if source in SHIPPED else "directory", path, manifest=manifest)
    return Weights(folder, path, manifest, ref.as_input(), _format(path))


def folder_of(source: str) -> str:
    """Return the folder in the release of additional weights: the name of their directory.

    Raises:
        UsageError: a release cannot have a folder of that name.
    """
    name = path_of(source).resolve().name
    reserved = name in ("model", "log", "comparison", "license_file") or name.endswith("eval")
    if reserved or not re.fullmatch(r"\w[\w.-]*", name, re.ASCII):
        raise UsageError(f"--also {source}: a release cannot have a folder {name}; rename the directory.")
    return name


def _format(path: Path) -> Format:
    if (path / "adapter_config.json").is_file():
        return ADAPTER
    if any(path.glob("*.gguf")):
        return GGUF
    method = (artifacts.read_json(path / "config.json").get("quantization_config") or {}).get("quant_method")
    if method not in _METHODS:
        raise ArtifactError(f"{path} is quantized by {method}, which countdown-rl does not make; publish another.")
    return _METHODS[method]
