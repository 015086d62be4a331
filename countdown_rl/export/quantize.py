"""Quantizing full-precision weights: NF4 for bitsandbytes, or GGUF for llama.cpp.

Weights are written one shard at a time, or for GGUF one tensor, so that the model may be larger than memory. NF4
weights are a safetensors checkpoint, which ``AutoModelForCausalLM.from_pretrained`` loads with bitsandbytes.
"""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from countdown_rl.core import artifacts
from countdown_rl.core.errors import ModelError
from countdown_rl.core.manifest import Manifest
from countdown_rl.export import agreement
from countdown_rl.export.config import QuantizeOptions
from countdown_rl.models import ends, formats, load, model_files, reference
from countdown_rl.models.checkpoint import Checkpoint
from countdown_rl.models.reference import ModelRef
from countdown_rl.tasks import probe

#: Parameters of the largest model that is compared with its source, in fp32.
MAX_COMPARED = 500_000_000


class Source(NamedTuple):
    """The full-precision model *ref*, in *directory*; *model* is its skeleton."""

    ref: ModelRef
    directory: Path
    checkpoint: Checkpoint
    tokenizer: Any
    model: Any


def quantize_model(
    ref: ModelRef, out: Path, options: QuantizeOptions, on_warning: Callable[[str], None] = lambda text: None
) -> Manifest:
    """Write the quantized artifact of *ref* at *out*; the manifest of a small one records its agreement with *ref*.

    *on_warning* is called if *ref* was merged into the wrong base for the format.

    Raises:
        ModelError: *ref* cannot be quantized.
    """
    if text := warning(ref, options.format):
        on_warning(text)
    directory, format = _checked_source(ref), formats.FORMATS[options.format]
    artifacts.check_writable(out, "quantized")
    source = Source(ref, directory, Checkpoint(directory), load.load_tokenizer(ref), load.skeleton(ref))
    with artifacts.writing(
        out, "quantized", options=asdict(options), inputs={"model": ref.as_input()}, libraries=format.libraries
    ) as draft:
        facts = format.write(source, draft.path, options)
        model_files.copy(directory, draft.path)
        ends.write(draft.path, ends.of_checkpoint(source.tokenizer, directory), source.tokenizer.pad_token_id)
        specs = source.checkpoint.specs.values()
        parameters = sum(spec.numel() for spec in specs)
        draft.facts.update(
            facts,
            format=format.name,
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


def _checked_source(ref: ModelRef) -> Path:
    """The directory of the full-precision checkpoint *ref*."""
    if ref.base is not None:
        raise ModelError(f"{ref.source} is an adapter; merge it into its base first with `countdown-rl merge`.")
    directory = reference.local_path(ref)
    if ref.kind == "gguf" or model_files.quantization_config(directory):
        raise ModelError(f"{ref.source} is quantized already; give the full-precision weights.")
    return directory
