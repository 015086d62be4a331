"""Options of ``merge`` and ``quantize``."""

from dataclasses import dataclass
from typing import Annotated, Literal

from countdown_rl.options import Options, option

CHECK = "Check"


@dataclass(frozen=True)
class MergeOptions(Options):
    """Base that an adapter is merged into, data type of the result, and how it is verified."""

    base: Annotated[Literal["original", "dequantized"], option("Base weights to merge into, see above.")] = "original"
    dtype: Annotated[
        Literal["auto", "bf16", "fp16", "fp32"], option("Data type of the result; auto keeps the base's.")
    ] = "auto"
    verify: Annotated[
        Literal["none", "sample", "full"], option("Compare logits with the adapter's on 0, 8 or 64 prompts.", CHECK)
    ] = "sample"


@dataclass(frozen=True)
class QuantizeOptions(Options):
    """Format of the quantized weights, and how the result is evaluated.

    ``limit`` and ``max_new_tokens`` apply where puzzles are given; ``max_drop`` is in percentage points.
    """

    format: Annotated[
        Literal["nf4", "gguf", "w4a16"], option("nf4: transformers; gguf: llama.cpp, Ollama; w4a16: vLLM; see above.")
    ] = "nf4"
    gguf_type: Annotated[
        Literal["f16", "q8_0", "q4_0", "q4_k_m"], option("Type of the GGUF weights; q4_k_m needs the llama-cpp extra.")
    ] = "q8_0"
    max_drop: Annotated[
        float | None, option("Refuse a result whose accuracy drops by more percentage points.", CHECK, min=0)
    ] = None
    limit: Annotated[int | None, option("Evaluate only the first N rows.", CHECK, min=1, show_default="all")] = None
    max_new_tokens: Annotated[int, option("Maximum tokens of a completion.", CHECK, min=1)] = 256
