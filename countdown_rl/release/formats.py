"""Weights of a release: the formats that this tool makes, and an artifact of weights in one of them."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from countdown_rl.core import artifacts, typed_json
from countdown_rl.core.artifacts import Manifest
from countdown_rl.core.errors import ArtifactError
from countdown_rl.evaluation.results import Result
from countdown_rl.models.model_files import GENERATION, TOKENIZER
from countdown_rl.models.reference import SHIPPED, ModelRef

KINDS = ("quantized", "merged", "model", "adapter")

_COMMON = "".join(f"{re.escape(name)}|" for name in (*TOKENIZER, GENERATION))
_CHECKPOINT = r"config\.json|model(-\d{5}-of-\d{5})?\.safetensors|model\.safetensors\.index\.json"


@dataclass(frozen=True)
class WeightFormat:
    """A format of weights: ``files`` matches the names of its files, ``packages`` are what loads them in Python."""

    name: str
    title: str
    library: str
    packages: str = ""
    tags: tuple[str, ...] = ()
    files: re.Pattern[str] = re.compile(_COMMON + _CHECKPOINT)


FULL = WeightFormat("full", "full-precision weights (safetensors)", "transformers", "transformers")
NF4 = WeightFormat(
    "nf4",
    "4-bit weights (NF4, double quantization, bf16 compute)",
    "transformers",
    "transformers accelerate bitsandbytes",
    ("4-bit", "nf4", "bitsandbytes"),
)
W4A16 = WeightFormat(
    "w4a16",
    "4-bit weights for vLLM (compressed-tensors, W4A16)",
    "transformers",
    "transformers accelerate compressed-tensors",
    ("4-bit", "w4a16", "compressed-tensors"),
)
GGUF = WeightFormat(
    "gguf",
    "GGUF for llama.cpp, Ollama and other programs built on it",
    "gguf",
    tags=("gguf", "llama.cpp"),
    files=re.compile(_COMMON + r"[\w.-]+\.gguf|Modelfile"),
)
ADAPTER = WeightFormat(
    "adapter",
    "LoRA adapter",
    "peft",
    "transformers peft",
    files=re.compile(_COMMON + r"adapter_config\.json|adapter_model\.safetensors"),
)

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

    @property
    def title(self) -> str:
        """The title of the format, with the measured size of quantized weights."""
        bits = self.manifest.facts.get("bits_per_parameter")
        return self.format.title + (f", {bits:.1f} bits a parameter" if bits else "")

    @property
    def gguf(self) -> str:
        """Name of the GGUF file."""
        return next(name for name in self.manifest.files if name.endswith(".gguf"))


def read(source: str) -> Weights:
    """Read the manifest of the weights that *source*, the name of a shipped model or a path, names.

    Their files are checked when they are copied.
    """
    path = SHIPPED.get(source) or Path(source).expanduser()
    manifest = artifacts.read(path, KINDS, verify=False)
    ref = ModelRef(source, "shipped" if source in SHIPPED else "directory", path, manifest=manifest)
    return Weights(path, manifest, ref.as_input(), _format(path))


def evaluation_key(location: str) -> str:
    """Return the folder of the evaluation of the weights in *location*, and its key among the inputs of a release.

    A release of version 0.1 may have weights in subfolders too.
    """
    return f"{location[2:]}-eval" if location != "." else "eval"


def measures(evaluation: Result, weights: Manifest) -> bool:
    """Return True if *evaluation* is of *weights*, or of a GGUF file in them."""
    digest = evaluation.manifest.inputs.get("model", {}).get("digest")
    files = [entry["sha256"] for name, entry in weights.files.items() if name.endswith(".gguf")]
    return digest == weights.digest or digest in files


def _format(path: Path) -> WeightFormat:
    if (path / "adapter_config.json").is_file():
        return ADAPTER
    if any(path.glob("*.gguf")):
        return GGUF
    method = (typed_json.read(path / "config.json").get("quantization_config") or {}).get("quant_method")
    if method not in _METHODS:
        raise ArtifactError(f"{path} is quantized by {method}, which countdown-rl does not make; publish another.")
    return _METHODS[method]
