"""Quantizing full-precision weights: NF4 for bitsandbytes, or GGUF for llama.cpp.

An adapter is merged first, into the base that suits the format. NF4 weights are a safetensors
checkpoint, which ``AutoModelForCausalLM.from_pretrained`` loads with bitsandbytes.
"""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import torch

from countdown_rl.core import artifacts
from countdown_rl.core.errors import ModelError
from countdown_rl.core.manifest import Manifest
from countdown_rl.core.types import JsonObject
from countdown_rl.export import agreement, gguf
from countdown_rl.export.config import MergeOptions, QuantizeOptions
from countdown_rl.export.merge import merge_adapter
from countdown_rl.export.source import Source
from countdown_rl.models import ends, formats, load, model_files, nf4, reference
from countdown_rl.models.checkpoint import Checkpoint, check_finite
from countdown_rl.models.reference import ModelRef
from countdown_rl.tasks import probe

#: Parameters of the largest model that is compared with its source, in fp32.
MAX_COMPARED = 500_000_000
#: Largest share of the weights beside embeddings and output head that may stay in 16 bits in NF4.
_MAX_LEFT = 0.25


def quantize_model(
    ref: ModelRef,
    out: Path,
    options: QuantizeOptions,
    on_warning: Callable[[str], None] = lambda text: None,
) -> Manifest:
    """Write a quantized artifact.

    Args:
        ref: full-precision weights, or an adapter, which is merged first.
        out: directory of the artifact.
        options: format of the weights.
        on_warning: called if *ref* was merged into the wrong base for the format.

    Returns:
        The manifest; that of a small model records its agreement with *ref*.

    Raises:
        ModelError: the weights cannot be quantized, or would lose their training.
    """
    artifacts.check_writable(out, "quantized")
    if ref.base is not None:
        with TemporaryDirectory() as scratch:
            merged = Path(scratch, "merged")
            merge_adapter(ref, merged, MergeOptions(base=base_for(ref, options.format)))
            return quantize_model(reference.find_model(str(merged)), out, options, on_warning)
    if text := warning(ref, options.format):
        on_warning(text)
    directory = reference.local_path(ref)
    if ref.kind == "gguf" or model_files.quantization_config(directory):
        raise ModelError(f"{ref.source} is quantized already; give the full-precision weights.")

    checkpoint = Checkpoint(directory)
    tokenizer = load.load_tokenizer(ref)
    source = Source(ref, directory, checkpoint, tokenizer, load.skeleton(ref))
    specs = checkpoint.specs.values()
    parameters = sum(spec.numel() for spec in specs)
    bytes_before = sum(spec.nbytes for spec in specs)
    for name in checkpoint.specs:
        check_finite(f"{ref.source}: {name}", checkpoint.read(name))
    with artifacts.writing(
        out,
        "quantized",
        options=asdict(options),
        inputs={"model": ref.as_input()},
        libraries=formats.FORMATS[options.format].libraries,
    ) as draft:
        write = gguf.write if options.format == "gguf" else write_nf4
        facts = write(source, draft.path, options)
        model_files.copy(directory, draft.path, [*model_files.TOKENIZER, model_files.TRAINED_IDS])
        stops = ends.of_checkpoint(tokenizer, directory)
        ends.write(draft.path, stops, tokenizer.pad_token_id)
        draft.facts |= facts | {"format": options.format, "parameters": parameters}
        draft.facts["bytes_before"] = bytes_before
        draft.facts["bits_per_parameter"] = round(8 * facts["bytes"] / parameters, 3)
        if parameters <= MAX_COMPARED:
            draft.facts["agreement"] = _compare(ref, draft.path)
    return artifacts.read(out, "quantized", verify=False)


def base_for(ref: ModelRef, format: str) -> Literal["original", "dequantized"]:
    """Return the base that the adapter *ref* is merged into before it is written in *format*.

    NF4 would round an adapter over the de-quantized base away; every other format keeps the policy
    as it was trained.
    """
    if format != "nf4" and load.trained_precision(ref, "auto") == "nf4":
        return "dequantized"
    return "original"


def warning(ref: ModelRef, format: str) -> str | None:
    """Return a warning where *ref* was merged into the wrong base for *format*, else None."""
    facts = ref.manifest.facts if ref.manifest is not None else {}
    if format == "nf4" or (facts.get("base"), facts.get("trained_over")) != ("original", "nf4"):
        return None
    kl = facts["agreement"]["with_policy_as_trained"]["kl"]
    return (
        f"{ref.source} was merged into the original weights, and its adapter was trained over NF4; "
        f"its KL from the trained policy is {kl:.2g}, before quantization. Give --model the adapter."
    )


def _compare(ref: ModelRef, quantized: Path) -> dict[str, float]:
    """Return the agreement of the *quantized* weights with *ref*."""
    conversations = probe.conversations(ref.as_input(), agreement.PROMPTS)
    loaded = load.load_model(ref, precision="fp32")
    transcripts = agreement.transcripts(loaded, conversations)
    expected = agreement.logits(loaded, transcripts)
    del loaded
    loaded = load.load_model(reference.find_model(str(quantized)))
    return agreement.compare(expected, agreement.logits(loaded, transcripts))


def write_nf4(source: Source, out: Path, options: QuantizeOptions) -> JsonObject:
    """Write *source* to *out* with its linear layers in NF4 and the rest in bf16.

    Returns:
        Facts for the manifest.

    Raises:
        ModelError: most weights would stay in 16 bits, as in a mixture of experts, or an adapter
            was merged into them that NF4 would round away.
    """
    from transformers import BitsAndBytesConfig

    ref, model = source.ref, source.model
    if ref.manifest is not None and ref.manifest.facts.get("base") == "dequantized":
        raise ModelError(
            f"{ref.source} has a de-quantized base, so NF4 would round the adapter away again; "
            "run `countdown-rl merge --base original` and quantize that."
        )
    in_4_bits = {id(module.weight): module.weight for module in nf4.linears(model).values()}
    outside = {id(getattr(model.get_output_embeddings(), "weight", None))}
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            outside.add(id(module.weight))
    total = 0
    left = {}
    for name, weight in model.named_parameters():
        if id(weight) in outside:
            continue
        total += weight.numel()
        if id(weight) not in in_4_bits:
            left[name] = weight.numel()
    share = sum(left.values()) / max(1, total)
    if share > _MAX_LEFT:
        largest = max(left, key=left.__getitem__)
        raise ModelError(
            f"{share:.0%} of the weights would stay in 16 bits, such as {largest}: only plain linear "
            "layers are written in 4 bits; publish the 16-bit weights."
        )

    config = BitsAndBytesConfig.from_dict(nf4.CONFIG)
    quantized = load.read_weights(
        ref, quantization_config=config, dtype=torch.bfloat16, device_map={"": "cpu"}
    )
    quantized.save_pretrained(out, max_shard_size="5GB")
    return {
        "parameters_in_4_bits": sum(weight.numel() for weight in in_4_bits.values()),
        "bytes": sum(spec.nbytes for spec in Checkpoint(out).specs.values()),
    }
