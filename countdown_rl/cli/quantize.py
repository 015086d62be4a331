"""``countdown-rl quantize``: full-precision weights in fewer bits."""

from pathlib import Path
from typing import Annotated

import typer

from countdown_rl.cli import console
from countdown_rl.cli.parameters import AsJson, Out, Revision, with_options
from countdown_rl.export.config import CHECK, QuantizeOptions


@with_options
def quantize(
    *,
    model: Annotated[
        str, typer.Option(help="Directory of merge, or another safetensors checkpoint.")
    ] = "artifacts/merged",
    revision: Revision = None,
    out: Out = Path("artifacts/quantized"),
    data: Annotated[
        Path | None,
        typer.Option(help="Puzzles on which the result and its source are evaluated.", rich_help_panel=CHECK),
    ] = None,
    options: QuantizeOptions,
    as_json: AsJson = False,
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
