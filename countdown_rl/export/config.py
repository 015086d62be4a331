"""Options of ``merge`` and ``quantize``."""

from dataclasses import dataclass
from typing import Annotated, Literal

from countdown_rl.core.options import Options, option
from countdown_rl.models.formats import WrittenFormat


@dataclass(frozen=True)
class MergeOptions(Options):
    """Base that an adapter is merged into, and data type of the result."""

    base: Annotated[
        Literal["original", "dequantized"], option("Base weights to merge into, see above.")
    ] = "original"
    dtype: Annotated[
        Literal["auto", "bf16", "fp16", "fp32"], option("Data type written; auto: the base's.")
    ] = "auto"


@dataclass(frozen=True)
class QuantizeOptions(Options):
    """Format of the quantized weights."""

    format: Annotated[
        WrittenFormat, option("nf4: transformers; gguf: llama.cpp, Ollama; see above.")
    ] = "nf4"
    gguf_type: Annotated[Literal["f16", "q8_0", "q4_0"], option("Type of the GGUF weights.")] = (
        "q8_0"
    )
