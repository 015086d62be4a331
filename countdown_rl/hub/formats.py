"""The forms that weights take in a release: what each is called, and what a page says of where it loads."""

import json
from dataclasses import dataclass
from pathlib import Path

from countdown_rl.errors import ArtifactError


@dataclass(frozen=True)
class Form:
    """One form. ``name`` is its folder beside other forms; ``needs`` is what transformers wants installed."""

    name: str
    title: str
    library: str
    needs: str = ""
    tags: tuple[str, ...] = ()


FULL = Form("full", "full-precision weights (safetensors)", "transformers", "transformers")
NF4 = Form(
    "nf4",
    "4-bit weights (NF4, double quantization, bf16 compute)",
    "transformers",
    "transformers accelerate bitsandbytes",
    ("4-bit", "nf4", "bitsandbytes"),
)
W4A16 = Form(
    "w4a16",
    "4-bit weights for vLLM (compressed-tensors, W4A16)",
    "transformers",
    "transformers accelerate compressed-tensors",
    ("4-bit", "w4a16", "compressed-tensors"),
)
GGUF = Form("gguf", "GGUF for llama.cpp, Ollama and what is built on them", "gguf", tags=("gguf", "llama.cpp"))
ADAPTER = Form("adapter", "the LoRA adapter alone", "peft", "transformers peft")

_METHODS = {"bitsandbytes": NF4, "compressed-tensors": W4A16}


def form_of(folder: Path) -> Form:
    """The form of the weights in *folder*, as its files say.

    Raises:
        ArtifactError: it is none of those that this tool makes.
    """
    if (folder / "adapter_config.json").is_file():
        return ADAPTER
    if any(folder.glob("*.gguf")):
        return GGUF
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError) as error:
        raise ArtifactError(
            f"{folder} has no config.json that can be read, so nothing says what its weights are."
        ) from error
    method = config.get("quantization_config", {}).get("quant_method")
    if method is None:
        return FULL
    if method not in _METHODS:
        raise ArtifactError(f"{folder} is quantized by {method}, of which a card here could not say how to run it.")
    return _METHODS[method]
