"""Registry of weight formats: how each is written, recognized, loaded and presented in a model card."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Literal

from countdown_rl.core.errors import ModelError
from countdown_rl.models import model_files


class WeightFormat:
    """Full-precision safetensors, and the base class of the other formats."""

    name = "full"
    #: The end of the name of a release.
    suffix = ""
    title = "full-precision weights (safetensors)"
    #: What the Hub calls the library of such a model, tags of the card, and the example of use in it: "transformers"
    #: after installing *packages*, "peft" or "llama.cpp".
    library_name = snippet = packages = "transformers"
    tags: tuple[str, ...] = ()
    #: The command of the card that serves a copy in vLLM; "" if vLLM does not run the format.
    vllm = "vllm serve ."
    #: For ``quantize --format``: the programs that read the result, and the function that writes it.
    purpose, writer = "", ""
    #: The distributions whose versions decide the written bytes.
    libraries: tuple[str, ...] = ()

    def matches(self, path: Path) -> bool:
        """Return True if the weights at *path*, a directory or a file, are in this format."""
        return path.is_dir() and not model_files.quantization_config(path)

    def load_options(self, path: Path, *, native: bool, home: Any) -> dict[str, Any]:
        """Return the options of ``from_pretrained`` for the weights at *path*. *native* asks for layers of
        bitsandbytes, and *home* is the device that holds the weights."""
        from transformers import BitsAndBytesConfig

        from countdown_rl.models import nf4

        options: dict[str, Any] = (
            {"quantization_config": BitsAndBytesConfig.from_dict(nf4.CONFIG)} if native else {}
        )
        # Straight to the GPU, so that main memory never holds the whole model.
        return options | ({"device_map": {"": home}} if home.type == "cuda" else {})

    def write(self, source: Any, out: Path, options: Any) -> dict[str, Any]:
        """Write *source* (``export.quantize.Source``) to *out* in this format, and return facts for the manifest."""
        writer: Callable[..., dict[str, Any]] = resolve_name(self.writer)
        return writer(source, out, options)


class Nf4(WeightFormat):
    """4-bit weights of bitsandbytes."""

    name, suffix, purpose = "nf4", "-nf4", "transformers"
    title = "4-bit weights (NF4, double quantization, bf16 compute)"
    tags, packages, vllm = (
        ("4-bit", "nf4", "bitsandbytes"),
        "transformers accelerate bitsandbytes",
        "",
    )
    writer = "countdown_rl.export.quantize:write_nf4"
    libraries = ("torch", "transformers", "bitsandbytes", "safetensors")

    def matches(self, path: Path) -> bool:
        return bool(model_files.quantization_config(path).get("load_in_4bit"))

    def load_options(self, path: Path, *, native: bool, home: Any) -> dict[str, Any]:
        return {"device_map": {"": home if home.type == "cuda" else "cpu"}}


class Gguf(WeightFormat):
    """One file of llama.cpp."""

    name, suffix, purpose = "gguf", "-gguf", "llama.cpp, Ollama"
    title = "GGUF for llama.cpp, Ollama and other programs built on it"
    library_name, tags, snippet, vllm = "gguf", ("gguf", "llama.cpp"), "llama.cpp", ""
    writer = "countdown_rl.export.gguf:write"
    # llama.cpp reads the file back where it is installed.
    libraries = (
        "torch",
        "transformers",
        "gguf",
        *(("xllamacpp",) if find_spec("xllamacpp") else ()),
    )

    def matches(self, path: Path) -> bool:
        return path.is_file()

    def load_options(self, path: Path, *, native: bool, home: Any) -> dict[str, Any]:
        from transformers import GgufConfig

        from countdown_rl.models import shape

        if native:
            raise ModelError(
                f"{path} is too large for NF4 on this GPU; give --precision bf16, or safetensors."
            )
        return {
            "quantization_config": GgufConfig(dequantize=True),
            "config": shape.read_config(path),
        }


class Adapter(WeightFormat):
    """A LoRA adapter, which needs its base."""

    name, suffix, title = "adapter", "-lora", "LoRA adapter"
    library_name, snippet, packages = "peft", "peft", "transformers peft"
    vllm = "vllm serve {base} --enable-lora --lora-modules {task}=."

    def matches(self, path: Path) -> bool:
        return (path / "adapter_config.json").is_file()


FORMATS: dict[str, WeightFormat] = {
    kind.name: kind for kind in (Adapter(), WeightFormat(), Nf4(), Gguf())
}
if TYPE_CHECKING:
    WrittenFormat = str
else:
    WrittenFormat = Literal[tuple(kind.name for kind in FORMATS.values() if kind.writer)]


def format_of(path: Path) -> WeightFormat:
    """Return the format of the weights at *path*, a directory or a GGUF file. Raises ModelError if it has none."""
    for kind in FORMATS.values():
        if kind.matches(path):
            return kind
    method = model_files.quantization_config(path).get("quant_method", "an unknown method")
    advice = "give NF4 or unquantized weights, or --engine vllm, which may run it"
    raise ModelError(f"{path} is quantized with {method}; {advice}.")
