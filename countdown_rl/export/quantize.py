"""Quantizing full-precision weights: NF4 for bitsandbytes, or GGUF (:mod:`countdown_rl.export.gguf`) for llama.cpp.

Weights are written one shard at a time, or for GGUF one tensor, so that the model may be larger than memory. NF4
weights are a safetensors checkpoint, which ``AutoModelForCausalLM.from_pretrained`` loads with bitsandbytes.
"""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch

from countdown_rl.core import artifacts
from countdown_rl.core.errors import ModelError
from countdown_rl.core.manifest import Manifest
from countdown_rl.export import agreement
from countdown_rl.export.config import QuantizeOptions
from countdown_rl.models import checkpoint, ends, formats, load, model_files, nf4, reference
from countdown_rl.models.checkpoint import Checkpoint
from countdown_rl.models.reference import ModelRef
from countdown_rl.tasks import probe

#: Parameters of the largest model that is compared with its source, in fp32.
MAX_COMPARED = 500_000_000
#: Largest share of the weights beside embeddings and output head that may stay in 16 bits in NF4.
_MAX_LEFT = 0.25


class Source(NamedTuple):
    """The full-precision model *ref*, in *directory*; *model* is its skeleton."""

    ref: ModelRef
    directory: Path
    checkpoint: Checkpoint
    tokenizer: Any
    model: Any


def quantize_model(
    ref: ModelRef,
    out: Path,
    options: QuantizeOptions,
    on_warning: Callable[[str], None] = lambda text: None,
) -> Manifest:
    """Write the quantized artifact of *ref* at *out*; the manifest of a small one records its agreement with *ref*.

    *on_warning* is called if *ref* was merged into the wrong base for the format. Raises ModelError.
    """
    if text := warning(ref, options.format):
        on_warning(text)
    if ref.base is not None:
        raise ModelError(
            f"{ref.source} is an adapter; merge it into its base first with `countdown-rl merge`."
        )
    directory, format = reference.local_path(ref), formats.FORMATS[options.format]
    if ref.kind == "gguf" or model_files.quantization_config(directory):
        raise ModelError(f"{ref.source} is quantized already; give the full-precision weights.")
    artifacts.check_writable(out, "quantized")
    source = Source(
        ref, directory, Checkpoint(directory), load.load_tokenizer(ref), load.skeleton(ref)
    )
    settings, inputs = asdict(options), {"model": ref.as_input()}
    with artifacts.writing(
        out, "quantized", options=settings, inputs=inputs, libraries=format.libraries
    ) as draft:
        facts = format.write(source, draft.path, options)
        model_files.copy(directory, draft.path)
        ends.write(
            draft.path,
            ends.of_checkpoint(source.tokenizer, directory),
            source.tokenizer.pad_token_id,
        )
        specs = source.checkpoint.specs.values()
        parameters = sum(spec.numel() for spec in specs)
        draft.facts |= facts | {"format": format.name, "parameters": parameters}
        draft.facts["bytes_before"] = sum(spec.nbytes for spec in specs)
        draft.facts["bits_per_parameter"] = round(8 * facts["bytes"] / parameters, 3)
        if parameters <= MAX_COMPARED:
            conversations = probe.conversations(ref.as_input(), agreement.PROMPTS["sample"])
            loaded = load.load_model(ref, precision="fp32")
            transcripts = agreement.transcripts(loaded, conversations)
            expected = agreement.logits(loaded, transcripts)
            del loaded
            loaded = load.load_model(reference.find_model(str(draft.path)))
            draft.facts["agreement"] = agreement.compare(
                expected, agreement.logits(loaded, transcripts)
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


def write_nf4(source: Source, out: Path, options: Any) -> dict[str, Any]:
    """Write *source* to *out* with plain linear layers in NF4 and the rest in bf16; return facts for the manifest.

    Raises ModelError if most weights would stay in 16 bits, as in a mixture of experts, or an adapter was merged into
    them that NF4 would round away.
    """
    ref, directory, weights, _, model = source
    if ref.manifest is not None and ref.manifest.facts.get("base") == "dequantized":
        advice = "run `countdown-rl merge --base original` and quantize that"
        raise ModelError(
            f"{ref.source} has a de-quantized base, so NF4 would round the adapter away again; {advice}."
        )
    untied = weights.drop_tied(model)
    names = {
        f"{name}.weight" for name, part in nf4.linears(model).items() if not nf4.is_transposed(part)
    }
    if absent := sorted(names - weights.specs.keys()):
        raise ModelError(
            f"{directory} has no {absent[0]}: its tensors have other names; publish the 16-bit weights."
        )
    outside = {
        id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)
    }
    outside.add(id(getattr(model.get_output_embeddings(), "weight", None)))
    sizes = {
        name: value.numel() for name, value in model.named_parameters() if id(value) not in outside
    }
    left = {name: size for name, size in sizes.items() if name not in names}
    if (share := sum(left.values()) / max(1, sum(sizes.values()))) > _MAX_LEFT:
        reason = f"such as {max(left, key=left.__getitem__)}: only plain linear layers are written in 4 bits"
        raise ModelError(
            f"{share:.0%} of the weights would stay in 16 bits, {reason}; publish the 16-bit weights."
        )

    def packed(name: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        if name in names:
            checkpoint.check_finite(name, weight)
            return nf4.pack(name, weight)
        return {name: weight.to(torch.bfloat16) if weight.is_floating_point() else weight}

    size = checkpoint.write(weights, out, packed)
    config = {"tie_word_embeddings": False} if untied else {}
    model_files.write_config(
        directory, out, dtype="bfloat16", quantization_config=nf4.CONFIG, **config
    )
    return {
        "parameters_in_4_bits": sum(weights.specs[name].numel() for name in names),
        "bytes": size,
    }
