"""Weights of a release: the formats that this tool makes, and an artifact of weights in one of them."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from countdown_rl.core import artifacts, typed_json
from countdown_rl.core.artifacts import Manifest
from countdown_rl.core.errors import ArtifactError
from countdown_rl.evaluation.results import Result
from countdown_rl.models.reference import SHIPPED, ModelRef

ADAPTER_CONFIG = "adapter_config.json"
#: Names of the files of an artifact of weights that a release has.
FILES = re.compile(r"[\w-][\w.-]*\.(safetensors|gguf|json|jinja|model|txt)|Modelfile", re.ASCII)


@dataclass(frozen=True)
class WeightFormat:
    """A format of weights; ``package`` is what loads it beside transformers, in Python."""

    name: str
    title: str
    package: str = ""
    library: str = "transformers"

    @property
    def packages(self) -> str:
        """The packages that load these weights in Python."""
        return " ".join(filter(None, ("transformers", "accelerate" if "4-bit" in self.tags else "", self.package)))

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags that a card adds."""
        if self.library == "gguf":
            return ("gguf", "llama.cpp")
        return ("4-bit", self.name, self.package) if self.title.startswith("4-bit") else ()


FULL = WeightFormat("full", "full-precision weights (safetensors)")
NF4 = WeightFormat("nf4", "4-bit weights (NF4, double quantization, bf16 compute)", "bitsandbytes")
W4A16 = WeightFormat("w4a16", "4-bit weights for vLLM (compressed-tensors, W4A16)", "compressed-tensors")
GGUF = WeightFormat("gguf", "GGUF for llama.cpp, Ollama and other programs built on it", library="gguf")
ADAPTER = WeightFormat("adapter", "LoRA adapter", "peft", library="peft")

#: By the names that the facts of a release have.
FORMATS = {format.name: format for format in (FULL, NF4, W4A16, GGUF, ADAPTER)}
_METHODS = {None: FULL, "bitsandbytes": NF4, "compressed-tensors": W4A16}


@dataclass(frozen=True)
class Weights:
    """An artifact of weights; ``entry`` is that among the inputs of the release."""

    path: Path
    manifest: Manifest
    entry: dict[str, Any]
    format: WeightFormat

    @classmethod
    def read(cls, source: str) -> "Weights":
        """Return the weights that *source*, the name of a shipped model or a path, names; their files are not read."""
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


def _format(path: Path) -> WeightFormat:
    if (path / ADAPTER_CONFIG).is_file():
        return ADAPTER
    if any(path.glob("*.gguf")):
        return GGUF
    method = (typed_json.read(path / "config.json").get("quantization_config") or {}).get("quant_method")
    if method not in _METHODS:
        raise ArtifactError(f"{path} is quantized by {method}, which countdown-rl does not make; publish another.")
    return _METHODS[method]
