"""Table of weight formats: how each is recognized and presented in a model card."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from countdown_rl.core.errors import ModelError
from countdown_rl.models import model_files


@dataclass(frozen=True)
class WeightFormat:
    """A format of weights. The fields after *libraries* are for the card of a release."""

    name: str
    title: str
    #: The distributions whose versions decide the bytes that ``quantize`` writes.
    libraries: tuple[str, ...] = ()
    #: The end of the name of a release.
    suffix: str = ""
    #: What the Hub calls the library of such a model, which decides on the example of use in the
    #: card, the packages that the example needs, and tags of the card.
    library_name: str = "transformers"
    packages: str = "transformers"
    tags: tuple[str, ...] = ()
    #: The command of the card that serves a copy in vLLM; "" if vLLM does not run the format.
    vllm: str = ""


ADAPTER = WeightFormat(
    name="adapter",
    title="LoRA adapter",
    suffix="-lora",
    library_name="peft",
    packages="transformers peft",
    vllm="vllm serve {base} --enable-lora --lora-modules {task}=.",
)
FULL = WeightFormat(name="full", title="full-precision weights (safetensors)", vllm="vllm serve .")
NF4 = WeightFormat(
    name="nf4",
    title="4-bit weights (NF4, double quantization, bf16 compute)",
    libraries=("torch", "transformers", "bitsandbytes", "safetensors"),
    suffix="-nf4",
    packages="transformers accelerate bitsandbytes",
    tags=("4-bit", "nf4", "bitsandbytes"),
)
GGUF = WeightFormat(
    name="gguf",
    title="GGUF for llama.cpp, Ollama and other programs built on it",
    # llama.cpp reads the file back where it is installed.
    libraries=(
        "torch",
        "transformers",
        "gguf",
        *(("xllamacpp",) if find_spec("xllamacpp") else ()),
    ),
    suffix="-gguf",
    library_name="gguf",
    tags=("gguf", "llama.cpp"),
)
FORMATS = {kind.name: kind for kind in (ADAPTER, FULL, NF4, GGUF)}

#: The formats that ``quantize`` writes.
WrittenFormat = Literal["nf4", "gguf"]


def format_of(path: Path) -> WeightFormat:
    """Return the format of the weights at *path*, a directory or a GGUF file.

    Raises ModelError if it is none of :data:`FORMATS`.
    """
    if path.is_file():
        return GGUF
    if (path / "adapter_config.json").is_file():
        return ADAPTER
    stored = model_files.quantization_config(path)
    if not stored:
        return FULL
    if stored.get("load_in_4bit"):
        return NF4
    method = stored.get("quant_method", "an unknown method")
    raise ModelError(
        f"{path} is quantized with {method}; give NF4 or unquantized weights, or --engine vllm, "
        "which may run it."
    )
