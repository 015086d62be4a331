"""Quantizing full-precision weights: NF4 for bitsandbytes, or GGUF for llama.cpp.

Weights are written one shard at a time, or for GGUF one tensor, so that the model may be larger than memory. NF4
weights are a safetensors checkpoint, which ``AutoModelForCausalLM.from_pretrained`` loads with bitsandbytes.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from countdown_rl.core import artifacts
from countdown_rl.core.errors import ModelError
from countdown_rl.core.manifest import Manifest
from countdown_rl.export import agreement, gguf, llama_cpp
from countdown_rl.export.config import QuantizeOptions
from countdown_rl.models import checkpoint, ends, load, model_files, nf4, reference, shape
from countdown_rl.models.checkpoint import Checkpoint
from countdown_rl.models.reference import ModelRef
from countdown_rl.tasks import probe

#: Largest share of the weights beside embeddings and output head that may stay in 16 bits.
_MAX_LEFT = 0.25
#: Prompts of the check of a GGUF file.
PROMPTS = 16
#: Parameters of the largest model that is compared with its source, in fp32.
MAX_COMPARED = 500_000_000
LIBRARIES = {
    "nf4": ("torch", "transformers", "bitsandbytes", "safetensors"),
    "gguf": ("torch", "transformers", "gguf"),
}


def quantize_model(ref: ModelRef, out: Path, options: QuantizeOptions) -> Manifest:
    """Write the quantized artifact of *ref* at *out*; the manifest of a small one records its agreement with *ref*.

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
            facts = _write_nf4(source, model, directory, draft.path)
        model_files.copy(directory, draft.path)
        ends.write(draft.path, ends.of_checkpoint(tokenizer, directory), tokenizer.pad_token_id)
        specs = source.specs.values()
        parameters = sum(spec.numel() for spec in specs)
        draft.facts.update(
            facts,
            format=options.format,
            parameters=parameters,
            bytes_before=sum(spec.nbytes for spec in specs),
            bits_per_parameter=round(8 * facts["bytes"] / parameters, 3),
        )
        if parameters <= MAX_COMPARED:
            draft.facts["agreement"] = _agreement(ref, draft.path)
    return artifacts.read(out, "quantized", verify=False)


def _agreement(ref: ModelRef, quantized: Path) -> dict[str, float]:
    """Agreement of the *quantized* weights with those of *ref*, computed in fp32."""
    original = load.load_model(ref, precision="fp32")
    transcripts = agreement.transcripts(original, probe.conversations(ref.as_input(), agreement.PROMPTS["sample"]))
    expected = agreement.logits(original, transcripts)
    del original
    loaded = load.load_model(reference.find_model(str(quantized)))
    return agreement.compare(expected, agreement.logits(loaded, transcripts)).as_facts()


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
    if format == "gguf":
        gguf.architecture(shape.read_config(directory))
    return directory


def _write_nf4(source: Checkpoint, model: Any, directory: Path, out: Path) -> dict[str, Any]:
    """Write *source* to *out* with plain linear layers in NF4 and the rest in bf16; return facts for the manifest.

    *model* is its skeleton. Raises ModelError if most weights would stay in 16 bits, as in a mixture of experts.
    """
    untied = source.drop_tied(model)
    names = {f"{name}.weight" for name, part in nf4.linears(model).items() if not nf4.is_transposed(part)}
    if absent := sorted(names - source.specs.keys()):
        raise ModelError(
            f"{directory} has no {absent[0]}, as its tensors have other names than the layers of the model, so they "
            "cannot be written in 4 bits; publish the 16-bit weights."
        )
    _check_share(model, names)

    def packed(name: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        if name in names:
            checkpoint.check_finite(name, weight)
            return nf4.pack(name, weight)
        return {name: weight.to(torch.bfloat16) if weight.is_floating_point() else weight}

    size = checkpoint.write(source, out, packed)
    config = {"tie_word_embeddings": False} if untied else {}
    model_files.write_config(directory, out, dtype="bfloat16", quantization_config=nf4.CONFIG, **config)
    return {"parameters_in_4_bits": sum(source.specs[name].numel() for name in names), "bytes": size}


def _check_share(model: Any, names: set[str]) -> None:
    """Check that the parameters *names* of *model* are most of its weights beside embeddings and output head."""
    outside = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    outside.add(id(getattr(model.get_output_embeddings(), "weight", None)))
    sizes = {name: value.numel() for name, value in model.named_parameters() if id(value) not in outside}
    left = {name: size for name, size in sizes.items() if name not in names}
    if sum(left.values()) > _MAX_LEFT * sum(sizes.values()):
        raise ModelError(
            f"{sum(left.values()) / sum(sizes.values()):.0%} of the weights would stay in 16 bits, such as "
            f"{max(left, key=left.__getitem__)}: only plain linear layers are written in 4 bits, not the experts of a "
            "mixture; publish the 16-bit weights."
        )


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
    facts: dict[str, Any] = {"gguf_type": kind, "file": file.name, "tensors": types, "bytes": file.stat().st_size}
    if llama_cpp.installed():
        facts["llama_cpp"] = llama_cpp.check_round_trip(file, tokenizer, conversations)
    return facts
