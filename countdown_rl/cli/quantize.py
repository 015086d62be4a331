"""``countdown-rl quantize``: full-precision weights in fewer bits."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from countdown_rl.cli import console
from countdown_rl.export.config import QuantizeOptions

DEFAULT = QuantizeOptions()
CHECK = "Check"


def quantize(
    model: Annotated[str, typer.Option(help="What merge wrote, or any safetensors checkpoint.")] = "artifacts/merged",
    revision: Annotated[str | None, typer.Option(help="Which revision of a Hub model.")] = None,
    format: Annotated[
        Literal["nf4", "gguf", "w4a16"],
        typer.Option(help="`nf4` for transformers, `gguf` for llama.cpp and Ollama, `w4a16` for vLLM: see above."),
    ] = DEFAULT.format,  # type: ignore[assignment]
    gguf_type: Annotated[
        Literal["f16", "q8_0", "q4_0", "q4_k_m"],
        typer.Option(help="How finely GGUF holds the weights; q4_k_m wants the `llama-cpp` extra."),
    ] = DEFAULT.gguf_type,  # type: ignore[assignment]
    out: Annotated[Path, typer.Option(help="The directory to write.")] = Path("artifacts/quantized"),
    data: Annotated[
        Path | None, typer.Option(help="Score the result beside its source on these puzzles.", rich_help_panel=CHECK)
    ] = None,
    max_drop: Annotated[
        float | None,
        typer.Option(min=0, help="Write nothing if it loses more points than this.", rich_help_panel=CHECK),
    ] = DEFAULT.max_drop,
    n: Annotated[
        int | None, typer.Option(min=1, help="Score on the first so many puzzles.", rich_help_panel=CHECK)
    ] = DEFAULT.n,
    max_new_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens a completion may have.", rich_help_panel=CHECK)
    ] = DEFAULT.max_new_tokens,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Write a model's weights in fewer bits.

    - `nf4`: linear layers in 4 bits; embeddings, norms and the output head stay in bf16. Safetensors that
      `AutoModelForCausalLM.from_pretrained` loads wherever bitsandbytes is installed. What was merged into
      de-quantized weights is refused: NF4 would round the adapter away.

    - `gguf`: one file with tokenizer and chat template, for llama.cpp, LM Studio and Ollama (`ollama create
      NAME -f Modelfile`). Merge with `--base dequantized` for it. With the `llama-cpp` extra llama.cpp itself
      reads it back, and `--data` is scored there.

    - `w4a16`: linear layers as whole numbers of 4 bits with a bf16 scale a group of weights, rounded to nearest by
      compressed-tensors (the `w4a16` extra). vLLM serves it as it is; transformers loads it where compressed-tensors
      is installed. Merge with `--base dequantized` for it.

    Written a tensor at a time, so the model may be larger than memory, unless `--data` has it scored.

    **Examples**

    `countdown-rl quantize --model artifacts/merged --format nf4 --out artifacts/quantized`

    `countdown-rl quantize --model Qwen/Qwen3-0.6B --out artifacts/qwen3-nf4`
    `countdown-rl quantize --format gguf --gguf-type q4_k_m --data artifacts/data/test.jsonl --max-drop 2`
    """
    from countdown_rl.export import quantize as quantization
    from countdown_rl.models import load, reference

    load.quiet()
    ref = reference.resolve(model, revision=revision)
    options = QuantizeOptions(format=format, gguf_type=gguf_type, max_drop=max_drop, n=n, max_new_tokens=max_new_tokens)
    facts = quantization.quantize(ref, out, options, data).facts
    view = (
        f"{out}: {facts['bytes_before'] / 1e6:,.1f} MB to {facts['bytes'] / 1e6:,.1f} MB, "
        f"{facts['parameters']:,} parameters ({facts['bits_per_parameter']:.2f} bits a parameter over all)"
    )
    if "llama_cpp" in facts:
        read = facts["llama_cpp"]
        view += f"\n  llama.cpp reads it, and {read['prompts']} prompts to the same tokens"
        if read["chat"] is False:
            view += "; it writes chats otherwise than the tokenizer, so give it prompts as text"
    if "against_source" in facts:
        change = facts["against_source"]
        low, high = change["interval"]
        view += (
            f"\n  solves {change['after']['accuracy']:.1%} of {change['after']['n']:,} puzzles in {change['runtime']}, "
            f"its source {change['before']['accuracy']:.1%}: {100 * change['difference']:+.1f} points "
            f"({100 * low:+.1f} to {100 * high:+.1f})"
        )
    console.result({"out": str(out), **facts}, as_json=as_json, view=view)
