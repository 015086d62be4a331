"""Options of ``merge`` and ``quantize``."""

from dataclasses import dataclass
from typing import Annotated, Literal

from countdown_rl.core.options import Options, Precision, option
from countdown_rl.models.formats import FORMATS, WrittenFormat

CHECK = "Check"
_PURPOSES = "; ".join(f"{kind.name}: {kind.purpose}" for kind in FORMATS.values() if kind.writer)


@dataclass(frozen=True)
class MergeOptions(Options):
    """Base that an adapter is merged into, data type of the result, and how it is verified."""

    base: Annotated[
        Literal["original", "dequantized"], option("Base weights to merge into, see above.")
    ] = "original"
    trained_over: Annotated[
        Precision, option("Base weights in training, if no manifest says so.")
    ] = "auto"
    dtype: Annotated[
        Literal["auto", "bf16", "fp16", "fp32"], option("Data type written; auto: the base's.")
    ] = "auto"
    verify: Annotated[
        Literal["none", "sample", "full"], option("Compare on 0, 8 or 64 prompts.", CHECK)
    ] = "sample"


@dataclass(frozen=True)
class QuantizeOptions(Options):
    """Format of the quantized weights."""

    format: Annotated[WrittenFormat, option(f"{_PURPOSES}; see above.")] = "nf4"
    gguf_type: Annotated[
        Literal["f16", "q8_0", "q4_0", "q4_k_m"],
        option("Type of the GGUF weights; q4_k_m needs the llama-cpp extra."),
    ] = "q8_0"
