"""Weights of a release: the formats that this package writes, and an artifact of weights in one of them."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from countdown_rl.core import artifacts
from countdown_rl.core.artifacts import Manifest
from countdown_rl.core.errors import ArtifactError
from countdown_rl.evaluation.results import Result
from countdown_rl.models import model_files
from countdown_rl.models.reference import SHIPPED, ModelRef

ADAPTER_CONFIG = "adapter_config.json"
#: Names of the files of an artifact of weights that go into a release.
FILES = re.compile(r"[\w-][\w.-]*\.(safetensors|gguf|json|jinja|model|txt)|Modelfile", re.ASCII)


@dataclass(frozen=True)
class WeightFormat:
    """A format of weights: the Python packages that load it, and the library and tags on its card."""

    name: str
    title: str
    packages: str = "transformers"
    library: str = "transformers"
    tags: tuple[str, ...] = ()


FULL = WeightFormat("full", "full-precision weights (safetensors)")
NF4 = WeightFormat(
    "nf4",
    "4-bit weights (NF4, double quantization, bf16 compute)",
    "transformers accelerate bitsandbytes",
    tags=("4-bit", "nf4", "bitsandbytes"),
)
W4A16 = WeightFormat(
    "w4a16",
    "4-bit weights for vLLM (compressed-tensors, W4A16)",
    "transformers accelerate compressed-tensors",
    tags=("4-bit", "w4a16", "compressed-tensors"),
)
GGUF = WeightFormat(
    "gguf", "GGUF for llama.cpp, Ollama and other programs built on it", library="gguf", tags=("gguf", "llama.cpp")
)
ADAPTER = WeightFormat("adapter", "LoRA adapter", "transformers peft", library="peft")

_METHODS = {None: FULL, "bitsandbytes": NF4, "compressed-tensors": W4A16}


@dataclass(frozen=True)
class Weights:
    """Weights in the directory *path* with their manifest; *entry* lists them among the inputs of a release."""

    path: Path
    manifest: Manifest
    entry: dict[str, Any]
    format: WeightFormat

    @classmethod
    def read(cls, source: str) -> "Weights":
        """Return the weights that *source*, a shipped model or a directory, names; files are compared by size alone."""
        path = SHIPPED.get(source) or Path(source).expanduser()
        manifest = artifacts.read(path, ("quantized", "merged", "model", "adapter"), verify=False)
        ref = ModelRef(source, "shipped" if source in SHIPPED else "directory", path, manifest=manifest)
        return cls(path, manifest, ref.as_input(), _format(path))

    @property
    def title(self) -> str:
        """The title of the format, with the measured size of quantized weights."""
        bits = self.manifest.facts.get("bits_per_parameter")
        return self.format.title + (f", {bits:.1f} bits a parameter" if bits else "")

    @property
    def gguf(self) -> str:
        """Name of the GGUF file."""
        return next(name for name in self.manifest.files if name.endswith(".gguf"))

    @property
    def loadable(self) -> Path:
        """The GGUF file, or the directory of other weights."""
        return self.path / self.gguf if self.format is GGUF else self.path

    def measured_by(self, evaluation: Result) -> bool:
        """Return True if *evaluation* is of these weights, or of the GGUF file in them."""
        files = [entry["sha256"] for name, entry in self.manifest.files.items() if name.endswith(".gguf")]
        return evaluation.manifest.inputs.get("model", {}).get("digest") in (self.manifest.digest, *files)


def in_release(path: Path, release: Manifest) -> Weights:
    """Return the weights in *path*, the directory of *release*."""
    entry = release.inputs["model"]
    return Weights(path, Manifest(**entry["manifest"]), entry, _format(path))


def _format(path: Path) -> WeightFormat:
    if (path / ADAPTER_CONFIG).is_file():
        return ADAPTER
    if any(path.glob("*.gguf")):
        return GGUF
    method = (model_files.quantization_config(path) or {}).get("quant_method")
    if method not in _METHODS:
        raise ArtifactError(f"{path} is quantized by {method}, which countdown-rl does not publish.")
    return _METHODS[method]
