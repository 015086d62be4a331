from pathlib import Path
from typing import Annotated

from countdown_rl.cli import console
from countdown_rl.cli.parameters import Out, option
from countdown_rl.core import artifacts
from countdown_rl.core.formatting import plural
from countdown_rl.export.config import QuantizeOptions


def quantize(
    *,
    model: Annotated[
        str, option("Adapter of train, directory of merge, or safetensors.")
    ] = "artifacts/merged",
    out: Out = Path("artifacts/quantized"),
    options: QuantizeOptions,
) -> None:
    """Write a model's weights in fewer bits.

    An adapter is merged first, into the base that suits the format.

    - nf4: linear layers in 4 bits; embeddings, norms and output head in bf16. Safetensors for
    AutoModelForCausalLM.from_pretrained with bitsandbytes. Weights merged into a dequantized base
    are refused: NF4 would round the adapter away.

    - gguf: one file with tokenizer and chat template for llama.cpp, LM Studio and Ollama (ollama
    create NAME -f Modelfile). llama-quantize makes other types of an f16 file. With the llama-cpp
    extra, llama.cpp reads the file back.

    Up to half a billion parameters, the result is compared with its source on 8 prompts.

    Examples:
        countdown-rl quantize --model Qwen/Qwen3-0.6B --out artifacts/qwen3-nf4
        countdown-rl quantize --model artifacts/adapter --format gguf --gguf-type q4_0
    """
    from countdown_rl.models import reference

    artifacts.check_writable(
        out, "quantized"
    )  # this and the model are checked before torch is imported
    ref = reference.find_model(model)
    from countdown_rl.export import agreement
    from countdown_rl.export.quantize import quantize_model

    console.note(f"Quantizing {model} ...")
    facts = quantize_model(ref, out, options, console.warn).facts
    lines = [
        f"{facts['bytes_before'] / 1e6:,.1f} MB to {facts['bytes'] / 1e6:,.1f} MB, "
        f"{plural(facts['parameters'], 'parameter')} ({facts['bits_per_parameter']:.2f} bits per parameter)"
    ]
    if "agreement" in facts:
        lines += agreement.described("the full-precision weights", facts["agreement"])
    if "llama_cpp" in facts:
        prompts = plural(facts["llama_cpp"]["prompts"], "prompt")
        lines.append(f"  read back by llama.cpp, which tokenizes {prompts} the same way")
        if facts["llama_cpp"]["chat"] is False:
            lines.append(
                "  its chat template differs from the tokenizer's, so give prompts as text"
            )
    if facts["format"] == "gguf" and not (out / "Modelfile").is_file():
        lines.append("  no Modelfile: Ollama cannot render such a chat template")
    console.result({"out": str(out), **facts}, "\n".join(lines))
    console.done(f"Wrote {out}.", f"countdown-rl eval --model {out}")
