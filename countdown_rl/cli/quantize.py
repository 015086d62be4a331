"""``countdown-rl quantize``: full-precision weights in 4 bits."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from countdown_rl.cli import console
from countdown_rl.options import QuantizeOptions

DEFAULT = QuantizeOptions()


def quantize(
    model: Annotated[str, typer.Option(help="What merge wrote, or any safetensors checkpoint.")] = "artifacts/merged",
    revision: Annotated[str | None, typer.Option(help="Which revision of a Hub model.")] = None,
    format: Annotated[
        Literal["nf4"], typer.Option(help="`nf4`: 4-bit with double quantization, for transformers with bitsandbytes.")
    ] = DEFAULT.format,  # type: ignore[assignment]
    out: Annotated[Path, typer.Option(help="The directory to write.")] = Path("artifacts/quantized"),
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Write a model's weights in 4 bits, as safetensors.

    Linear layers go to 4 bits; embeddings, norms and the output head stay in bf16, as transformers does it.
    `AutoModelForCausalLM.from_pretrained` loads the result wherever bitsandbytes is installed. It is written
    a tensor at a time, so the model may be larger than memory. What was merged into de-quantized weights is
    refused: NF4 would round the adapter away.

    **Examples**

    `countdown-rl quantize --model artifacts/merged --format nf4 --out artifacts/quantized`

    `countdown-rl quantize --model Qwen/Qwen3-0.6B --out artifacts/qwen3-nf4`
    """
    from countdown_rl import models, quantization

    models.quiet()
    ref = models.resolve(model, revision=revision)
    facts = quantization.quantize(ref, out, QuantizeOptions(format=format)).facts
    view = (
        f"{out}: {facts['bytes_before'] / 1e6:,.1f} MB to {facts['bytes'] / 1e6:,.1f} MB, "
        f"{facts['parameters_in_4_bits']:,} of {facts['parameters']:,} parameters in 4 bits "
        f"({facts['bits_per_parameter']:.2f} bits a parameter over all)"
    )
    console.result({"out": str(out), **facts}, as_json=as_json, view=view)
