"""Weights of a release, and their format: "full", "nf4", "gguf" or "adapter"."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from countdown_rl.core import artifacts
from countdown_rl.core.errors import ArtifactError
from countdown_rl.core.manifest import Manifest
from countdown_rl.evaluation.results import Result
from countdown_rl.models import model_files
from countdown_rl.models.reference import SHIPPED, ModelRef

ADAPTER_CONFIG = "adapter_config.json"
#: Names of the files of an artifact of weights that go into a release.
FILES = re.compile(r"[\w-][\w.-]*\.(safetensors|gguf|json|jinja|model|txt)|Modelfile", re.ASCII)
_METHODS = {None: "full", "bitsandbytes": "nf4"}


@dataclass(frozen=True)
class Weights:
    """Weights in the directory *path* with their manifest; *entry* lists them among the inputs of a release."""

    path: Path
    manifest: Manifest
    entry: dict[str, Any]

    @classmethod
    def read(cls, source: str) -> "Weights":
        """Return the weights that *source*, a shipped model or a directory, names; files are compared by size alone."""
        path = SHIPPED.get(source) or Path(source).expanduser()
        manifest = artifacts.read(path, ("quantized", "merged", "model", "adapter"), verify=False)
        ref = ModelRef(source, "shipped" if source in SHIPPED else "directory", path, manifest=manifest)
        return cls(path, manifest, ref.as_input())

    @property
    def format(self) -> str:
        if (self.path / ADAPTER_CONFIG).is_file():
            return "adapter"
        if self.gguf:
            return "gguf"
        method = (model_files.quantization_config(self.path) or {}).get("quant_method")
        if method not in _METHODS:
            raise ArtifactError(f"{self.path} is quantized by {method}, which countdown-rl does not publish.")
        return _METHODS[method]

    @property
    def gguf(self) -> str | None:
        """Name of the GGUF file."""
        return next((name for name in self.manifest.files if name.endswith(".gguf")), None)

    @property
    def loadable(self) -> Path:
        """The GGUF file, or the directory of other weights."""
        return self.path / (self.gguf or "")

    def measured_by(self, evaluation: Result) -> bool:
        """Return True if *evaluation* is of these weights, or of the GGUF file in them."""
        digests = {self.manifest.digest, self.manifest.files.get(self.gguf or "", {}).get("sha256")}
        return evaluation.manifest.inputs.get("model", {}).get("digest", "") in digests
