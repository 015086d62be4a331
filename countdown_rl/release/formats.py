"""Weights of a release."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from countdown_rl.core import artifacts
from countdown_rl.core.manifest import Manifest, contents
from countdown_rl.evaluation.results import Result
from countdown_rl.models.formats import WeightFormat, format_of
from countdown_rl.models.reference import SHIPPED, ModelRef

ADAPTER_CONFIG = "adapter_config.json"
#: Names of the files of an artifact of weights that go into a release.
FILES = re.compile(r"[\w-][\w.-]*\.(safetensors|gguf|json|jinja|model|txt)|Modelfile", re.ASCII)


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
    def format(self) -> WeightFormat:
        return format_of(self.loadable)

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
        model, own = (
            contents(entry) for entry in (evaluation.manifest.inputs.get("model", {}), self.manifest.as_input())
        )
        file = self.manifest.files.get(self.gguf or "", {})
        return model.get("digest", "") in (own["digest"], file.get("sha256"))
