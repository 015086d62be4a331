"""Quantizing full-precision weights: NF4 for bitsandbytes, W4A16 for vLLM, or GGUF for llama.cpp.

Weights are written one shard at a time, or for GGUF one tensor, so that the model may be larger than memory. NF4 and
W4A16 are safetensors checkpoints, which ``AutoModelForCausalLM.from_pretrained`` loads where bitsandbytes, or
compressed-tensors, is installed.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from countdown_rl.core import artifacts
from countdown_rl.core.errors import ModelError
from countdown_rl.export import four_bit, gguf, llama_cpp
from countdown_rl.export.config import QuantizeOptions
from countdown_rl.models import ends, load, model_files, reference, shape, w4a16
from countdown_rl.models.checkpoint import Checkpoint
from countdown_rl.models.reference import ModelRef
from countdown_rl.tasks import probe

#: Prompts of the check of a GGUF file.
PROMPTS = 16
LIBRARIES = {
    "nf4": ("torch", "transformers", "bitsandbytes", "safetensors"),
    "gguf": ("torch", "transformers", "gguf"),
    "w4a16": ("torch", "transformers", "compressed-tensors", "safetensors"),
}


def quantize_model(ref: ModelRef, out: Path, options: QuantizeOptions) -> artifacts.Manifest:
    """Write the quantized artifact of *ref* at *out*.

    Raises:
        ModelError: *ref* cannot be quantized.
    """
    directory, libraries = _checked_source(ref, options.format), LIBRARIES[options.format]
    artifacts.check_writable(out, "quantized")
    source, tokenizer, model = Checkpoint(directory), load.load_tokenizer(ref), load.skeleton(ref)
    if options.format == "gguf" and llama_cpp.installed():
        libraries += ("xllamacpp",)  # it reads the file back
    with artifacts.writing(
        out, "quantized", options=asdict(options), inputs={"model": ref.as_input()}, libraries=libraries
    ) as draft:
        if options.format == "gguf":
            facts = _write_gguf(ref, source, directory, draft.path, options.gguf_type, out.name, tokenizer)
        else:
            facts = four_bit.write(source, model, directory, draft.path, options.format)
        model_files.copy(directory, draft.path)
        ends.write(draft.path, ends.of_checkpoint(tokenizer, directory), tokenizer.pad_token_id)
        reference.check_unchanged(ref)
        draft.facts.update(
            facts,
            format=options.format,
            bytes_before=sum(spec.nbytes for spec in source.specs.values()),
            bits_per_parameter=round(8 * facts["bytes"] / facts["parameters"], 3),
        )
    return artifacts.read(out, "quantized", verify=False)


def warning(ref: ModelRef, format: str) -> str | None:
    """Return a warning where *ref* was merged into the wrong base for *format*, with the KL that ``merge`` measured."""
    facts = ref.manifest.facts if ref.manifest is not None else {}
    if format == "nf4" or (facts.get("base"), facts.get("trained_over")) != ("original", "nf4"):
        return None
    measured = facts.get("agreement", {}).get("with_policy_as_trained")
    kl = f"is {measured['kl']:.2g}" if measured else "was not measured"
    return (
        f"{ref.source} was merged into the original weights, and its adapter was trained over NF4; its KL from the "
        f"trained policy {kl}, before quantization. Run `countdown-rl merge --base dequantized` and quantize that."
    )


def _checked_source(ref: ModelRef, format: str) -> Path:
    """The directory of the checkpoint *ref*, which can be written in *format*."""
    if ref.base is not None:
        raise ModelError(f"{ref.source} is an adapter; merge it into its base first with `countdown-rl merge`.")
    directory = reference.local_path(ref)
    if ref.kind == "gguf" or model_files.quantization_config(directory) is not None:
        raise ModelError(f"{ref.source} is quantized already; give the full-precision weights.")
    if format == "nf4" and ref.manifest is not None and ref.manifest.facts.get("base") == "dequantized":
        raise ModelError(
            f"{ref.source} was merged into de-quantized weights, and NF4 would round the adapter away again; "
            "run `countdown-rl merge --base original` and quantize that."
        )
    if format == "w4a16":
        w4a16.check_installed()
    if format == "gguf":
        gguf.architecture(shape.read_config(directory))
    return directory


def _write_gguf(
    ref: ModelRef, source: Checkpoint, directory: Path, out: Path, kind: str, name: str, tokenizer: Any
) -> dict[str, Any]:
    """Write the GGUF file and an Ollama Modelfile to *out*, and return facts for the manifest."""
    file = out / f"model-{kind.upper()}.gguf"
    conversations = probe.conversations(ref.as_input(), PROMPTS)
    types = gguf.write(source, directory, file, name=name, kind=kind, tokenizer=tokenizer, conversations=conversations)
    context = min(gguf.context_length(shape.read_config(directory)) or 8192, 8192)
    ids = ends.of_checkpoint(tokenizer, directory)
    if tokenizer.chat_template and (text := gguf.modelfile(file.name, tokenizer, context, ids)):
        (out / "Modelfile").write_text(text, "utf-8")
    facts = {
        "gguf_type": kind,
        "file": file.name,
        "tensors": types,
        "parameters": sum(spec.numel() for spec in source.specs.values()),
        "bytes": file.stat().st_size,
    }
    if llama_cpp.installed():
        facts["llama_cpp"] = llama_cpp.check_round_trip(file, tokenizer, conversations)
    return facts
