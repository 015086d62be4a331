"""Merging a LoRA adapter into its base: full-precision weights, compared with the adapter over it.

A QLoRA adapter merged into the de-quantized NF4 base is the trained policy (measured KL 0.001 in
bf16), but NF4 rounds the adapter away again. Merged into the original base (KL 0.16), it returns to
the policy in NF4 (KL 0.02).
"""

from dataclasses import asdict
from pathlib import Path

import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer

from countdown_rl.core import artifacts
from countdown_rl.core.errors import ModelError, UsageError, first_line
from countdown_rl.core.manifest import Manifest
from countdown_rl.core.types import JsonObject
from countdown_rl.export import agreement
from countdown_rl.export.config import MergeOptions
from countdown_rl.models import ends, load, lora, model_files, nf4, reference, torch_internals
from countdown_rl.models.checkpoint import Checkpoint, check_finite
from countdown_rl.models.reference import ModelRef
from countdown_rl.tasks import probe

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
LIBRARIES = ("torch", "transformers", "peft", "bitsandbytes", "safetensors")

#: Largest KL divergence, in nats, that one rounding of the merged weights explains, by their type.
#: Measured on SmolLM2-135M in bf16: 3e-4.
MAX_KL = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 1e-2}
#: Above this many parameters verification computes in bf16, which adds rounding of its own, unless
#: a CPU emulates it.
MAX_FP32_PARAMETERS = 2_000_000_000


def merge_adapter(ref: ModelRef, out: Path, options: MergeOptions) -> Manifest:
    """Write a merged artifact.

    Args:
        ref: the adapter.
        out: directory of the artifact.
        options: the base to merge into, and the data type.

    Returns:
        The manifest, which records the agreement on random prompts.

    Raises:
        ModelError: the adapter cannot be merged, or the merged model differs from the adapter over
            that base.
    """
    if ref.base is None:
        raise ModelError(
            f"{ref.source} is not an adapter; give --adapter what `countdown-rl train` made."
        )
    artifacts.check_writable(out, "merged")
    directory, base = reference.local_path(ref), reference.local_path(ref.base)
    trained_over = _check_base(ref, ref.base, options)
    lora.check_config(directory)
    inputs = {"adapter": ref.as_input()}
    with artifacts.writing(
        out, "merged", options=asdict(options), inputs=inputs, libraries=LIBRARIES
    ) as draft:
        _write_weights(ref, ref.base, draft.path, options)
        tokenizer = load.load_tokenizer(ref)
        has_tokenizer = (directory / "tokenizer_config.json").is_file()
        model_files.copy(directory if has_tokenizer else base, draft.path)
        model_files.copy(directory, draft.path, [model_files.TRAINED_IDS])
        is_fast = (draft.path / "tokenizer.json").is_file()
        if not is_fast:  # a slow tokenizer, or that of a GGUF file
            tokenizer.save_pretrained(draft.path)
        model_files.copy(base, draft.path, [model_files.GENERATION])
        ends.write(draft.path, ends.of_checkpoint(tokenizer, draft.path), tokenizer.pad_token_id)

        specs = Checkpoint(draft.path).specs.values()
        draft.facts |= {
            "base": options.base,
            "trained_over": trained_over,
            "adapted_modules": lora.adapted_modules(directory),
            "parameters": sum(spec.numel() for spec in specs),
            "bytes": sum(spec.nbytes for spec in specs),
        }
        if lora.changes_nothing(directory):
            draft.facts["changes_nothing"] = True
        draft.facts["agreement"] = _verify(ref, draft.path, options, trained_over)
    return artifacts.read(out, "merged", verify=False)


def _check_base(ref: ModelRef, base: ModelRef, options: MergeOptions) -> str:
    """Check that the base of the adapter *ref* has the weights to merge into.

    Returns:
        The precision of the base that it was trained over, or "unknown".
    """
    stored = model_files.quantization_config(reference.local_path(base))
    method = stored.get("quant_method", "bitsandbytes")
    if method != "bitsandbytes":
        raise ModelError(
            f"{base.source} is quantized with {method}; train over unquantized weights to merge."
        )
    if stored and options.base == "original":
        raise UsageError(
            f"{base.source} is a 4-bit checkpoint and has no original weights; "
            "merge with --base dequantized, or name the unquantized model by --base-model."
        )
    trained_over = load.trained_precision(ref, "auto")
    if options.base == "original":
        return "unknown" if trained_over == "auto" else trained_over
    if trained_over not in ("auto", "nf4"):
        raise UsageError(
            f"{ref.source} was trained over {trained_over} weights: there is nothing to de-quantize; "
            "leave --base out."
        )
    return "nf4"


def _write_weights(ref: ModelRef, base: ModelRef, out: Path, options: MergeOptions) -> None:
    """Merge the adapter *ref* by PEFT, which adds s B A in fp32 and rounds once; write the result."""
    stored = torch.bfloat16  # values of NF4 and of most GGUF files
    if load.stored_format(base) == "full":
        stored = next(iter(Checkpoint(reference.local_path(base)).specs.values())).dtype
    dtype = DTYPES.get(options.dtype, stored)

    precision = "bf16" if dtype == stored == torch.bfloat16 else "fp32"
    if options.base == "dequantized":
        precision = "nf4"
    model: PeftModel = load.load_model(ref, precision=precision, device="cpu", plain=True).model
    ends_of_model = (model.get_input_embeddings(), model.get_output_embeddings())
    is_tied = model.config.get_text_config().tie_word_embeddings
    if is_tied and any(isinstance(module, LoraLayer) for module in ends_of_model):
        raise ModelError(
            f"{ref.source} has LoRA on one of two tied matrices, which PEFT merges into both; "
            "use it unmerged."
        )
    if dtype != torch.bfloat16:
        nf4.cast(model, torch.float32)
    try:
        model = model.merge_and_unload()
    except (ValueError, RuntimeError, NotImplementedError) as error:
        raise ModelError(f"PEFT cannot merge {ref.source}: {first_line(error)}.") from error

    nf4.cast(model, dtype)
    for name, parameter in model.named_parameters():
        check_finite(name, parameter)
    has_original_names = load.stored_format(base) != "nf4"
    model.save_pretrained(out, max_shard_size="5GB", save_original_format=has_original_names)


def _verify(ref: ModelRef, merged: Path, options: MergeOptions, trained_over: str) -> JsonObject:
    """Return the agreement of the merged files with the adapter over that base and as trained."""
    specs = Checkpoint(merged).specs.values()
    is_large = sum(spec.numel() for spec in specs) > MAX_FP32_PARAMETERS
    in_bf16 = is_large and torch_internals.has_bf16_products(load.device_name("auto"))
    precision = "bf16" if in_bf16 else "fp32"

    def load_adapter(precision: str) -> load.Loaded:
        loaded = load.load_model(ref, precision=precision, plain=True)
        if not in_bf16:
            nf4.cast(loaded.model, torch.float32)
        return loaded

    adapted = load_adapter("nf4" if options.base == "dequantized" else precision)
    conversations = probe.conversations(ref.as_input(), agreement.PROMPTS)
    transcripts = agreement.transcripts(adapted, conversations)
    adapted_logits = agreement.logits(adapted, transcripts)
    policy: PeftModel = adapted.model
    with policy.disable_adapter():
        without_adapter = agreement.compare(adapted_logits, agreement.logits(adapted, transcripts))
    del adapted, policy

    loaded = load.load_model(ModelRef(merged.name, "directory", merged), precision=precision)
    merged_logits = agreement.logits(loaded, transcripts)
    with_definition = with_policy = agreement.compare(adapted_logits, merged_logits)
    limit = max(MAX_KL.get(spec.dtype, 0) for spec in specs)
    if in_bf16:
        limit = max(limit, MAX_KL[torch.bfloat16])
    kl = with_definition["kl"]
    if not kl <= limit:  # also true of NaN
        raise ModelError(
            f"the merged weights of {ref.source} differ from the adapter over its {options.base} base "
            f"(KL {kl:.2g}, above the {limit:.2g} of rounding); use it unmerged."
        )
    if trained_over == "nf4" and options.base == "original":
        policy_logits = agreement.logits(load_adapter("nf4"), transcripts)
        with_policy = agreement.compare(policy_logits, merged_logits)
    return {
        "with_definition": with_definition,
        "with_policy_as_trained": with_policy,
        "kl_without_adapter": without_adapter["kl"],
        "computed_in": precision,
    }
