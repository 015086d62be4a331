"""Options of ``merge`` and ``quantize``."""

from dataclasses import dataclass
from typing import Annotated, Literal

from typer import Option

from countdown_rl.options import Options

CHECK = "Check"


@dataclass(frozen=True)
class MergeOptions(Options):
    """Base that an adapter is merged into, data type of the result, and how it is verified."""

    base: Annotated[Literal["original", "dequantized"], Option(help="Base weights to merge into, see above.")] = (
        "original"
    )
    dtype: Annotated[
        Literal["auto", "bf16", "fp16", "fp32"], Option(help="Data type of the result; auto keeps the base's.")
    ] = "auto"
    verify: Annotated[
        Literal["none", "sample", "full"],
        Option(help="Compare logits with the adapter's on 0, 8 or 64 prompts.", rich_help_panel=CHECK),
    ] = "sample"


@dataclass(frozen=True)
class QuantizeOptions(Options):
    """Format of the quantized weights, and how the result is evaluated.

    ``limit`` and ``max_new_tokens`` apply where puzzles are given; ``max_drop`` is in percentage points.
    """

    format: Annotated[
        Literal["nf4", "gguf", "w4a16"],
        Option(help="nf4: transformers; gguf: llama.cpp, Ollama; w4a16: vLLM; see above."),
    ] = "nf4"
    gguf_type: Annotated[
        Literal["f16", "q8_0", "q4_0", "q4_k_m"],
        Option(help="Type of the GGUF weights; q4_k_m needs the llama-cpp extra."),
    ] = "q8_0"
    max_drop: Annotated[
        float | None,
        Option(min=0, help="Refuse a result whose accuracy drops by more percentage points.", rich_help_panel=CHECK),
    ] = None
    limit: Annotated[
        int | None, Option(min=1, help="Evaluate only the first N rows.", show_default="all", rich_help_panel=CHECK)
    ] = None
    max_new_tokens: Annotated[int, Option(min=1, help="Maximum tokens of a completion.", rich_help_panel=CHECK)] = 256
