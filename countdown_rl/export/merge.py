"""Merging a LoRA adapter into its base: full-precision weights, compared with the adapter over that base.

Plain LoRA over unquantized safetensors is merged one shard at a time, everything else by PEFT. A QLoRA adapter merged
into the de-quantized NF4 base is the trained policy (measured KL 0.001 in bf16), but NF4 rounds the adapter away again.
Merged into the original base (KL 0.16), it returns to the policy in NF4 (KL 0.02).
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from countdown_rl.core import artifacts
from countdown_rl.core.errors import ModelError, UsageError, first_line
from countdown_rl.core.manifest import Manifest
from countdown_rl.export import agreement
from countdown_rl.export.config import MergeOptions
from countdown_rl.models import (
    checkpoint,
    ends,
    model_files,
    nf4,
    reference,
    shape,
    torch_internals,
)
from countdown_rl.models.load import (
    Loaded,
    device_name,
    load_model,
    load_tokenizer,
    trained_precision,
)
from countdown_rl.models.lora import Adapter
from countdown_rl.models.reference import ModelRef
from countdown_rl.tasks import probe

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
LIBRARIES = ("torch", "transformers", "peft", "bitsandbytes", "safetensors")

#: Largest KL divergence, in nats, that one rounding of the merged weights explains, by their type.
#: Measured on SmolLM2-135M in bf16: 3e-4.
MAX_KL = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 1e-2}
#: Above this many parameters verification computes in bf16, which adds rounding of its own, unless a CPU emulates it.
MAX_FP32_PARAMETERS = 2_000_000_000


def merge_adapter(ref: ModelRef, out: Path, options: MergeOptions) -> Manifest:
    """Write the merged artifact of adapter *ref* at *out*; its manifest records the agreement on random prompts.

    Raises ModelError if the adapter cannot be merged, or the merged model differs from the adapter over that base.
    """
    if ref.base is None:
        raise ModelError(
            f"{ref.source} is not an adapter; give --adapter what `countdown-rl train` made."
        )
    artifacts.check_writable(out, "merged")
    adapter, base = Adapter(reference.local_path(ref)), reference.local_path(ref.base)
    stored = model_files.quantization_config(base)
    trained_over = _trained_over(ref, options)
    if stored and (method := stored.get("quant_method")) != "bitsandbytes":
        raise ModelError(
            f"{ref.base.source} is quantized with {method}; train over unquantized weights to merge."
        )
    if stored and options.base == "original":
        advice = "merge with --base dequantized, or name the unquantized model by --base-model"
        raise UsageError(
            f"{ref.base.source} is a 4-bit checkpoint and has no original weights; {advice}."
        )
    adapter.check_unchanged_base()
    settings, inputs = asdict(options), {"adapter": ref.as_input()}
    del settings["trained_over"]  # a fact
    with artifacts.writing(
        out, "merged", options=settings, inputs=inputs, libraries=LIBRARIES
    ) as draft:
        plain = adapter.is_plain and base.is_dir() and not stored
        if not (plain and _merge_plain(adapter, base, draft.path, options)):
            _merge_with_peft(ref, base, draft.path, options, original_names=not stored)
        model_files.copy(base, draft.path, [model_files.GENERATION])
        source, tokenizer = reference.local_path(ref), load_tokenizer(ref)
        model_files.copy(
            source if (source / "tokenizer_config.json").is_file() else base, draft.path
        )
        if not (
            draft.path / "tokenizer.json"
        ).is_file():  # an older checkpoint with a slow tokenizer only
            tokenizer.save_pretrained(draft.path)
        ends.write(draft.path, ends.of_checkpoint(tokenizer, draft.path), tokenizer.pad_token_id)
        specs = checkpoint.Checkpoint(draft.path).specs.values()
        draft.facts |= {
            "base": options.base,
            "trained_over": trained_over,
            "adapted_modules": len(adapter.modules),
        }
        draft.facts |= {"changes_nothing": True} if adapter.changes_nothing else {}
        draft.facts |= {
            "parameters": sum(spec.numel() for spec in specs),
            "bytes": sum(spec.nbytes for spec in specs),
        }
        if options.verify != "none":
            draft.facts["agreement"] = _verify(ref, draft.path, options, trained_over)
    return artifacts.read(out, "merged", verify=False)


def _trained_over(ref: ModelRef, options: MergeOptions) -> str:
    """The precision of the base that the adapter *ref* was trained over, or "unknown"."""
    recorded = trained_precision(ref, "auto")
    known = options.trained_over if recorded == "auto" else recorded
    if options.trained_over not in ("auto", known):
        raise UsageError(
            f"{ref.source} was trained over {known} weights; leave --trained-over out."
        )
    if options.base == "dequantized" and known != "nf4":
        advice = (
            "; if they were NF4, give --trained-over nf4"
            if known == "auto"
            else "; leave --base out"
        )
        raise UsageError(
            f"{ref.source} was trained over {known} weights: there is nothing to de-quantize{advice}."
        )
    return "unknown" if known == "auto" else known


def _merge_plain(adapter: Adapter, base: Path, out: Path, options: MergeOptions) -> bool:
    """Merge plain LoRA into the unquantized safetensors at *base*; return False if only PEFT can, without writing."""
    source, model = checkpoint.Checkpoint(base), shape.skeleton(shape.read_config(base))
    names = {id(module): name for name, module in model.named_modules()}
    ends = {
        names.get(id(part))
        for part in (model.get_input_embeddings(), model.get_output_embeddings())
    }
    untied, linears = source.drop_tied(model), nf4.linears(model)
    if (
        (model.config.tie_word_embeddings and not untied and ends & adapter.modules)
        or not source.specs.keys() >= {f"{module}.weight" for module in adapter.modules}
        or any(nf4.is_transposed(module) for module in linears.values())
    ):
        return False
    rounded = {f"{name}.weight" for name in linears} if options.base == "dequantized" else set()
    dtype = DTYPES.get(options.dtype)
    adapter.attach(model)

    def merged(name: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        target = dtype if dtype and weight.is_floating_point() else weight.dtype
        return {
            name: adapter.merge(name, nf4.fake_quantize(weight) if name in rounded else weight).to(
                target
            )
        }

    checkpoint.write(source, out, merged)
    changes: dict[str, Any] = {"tie_word_embeddings": False} if untied else {}
    model_files.write_config(
        base, out, **changes, **({"dtype": str(dtype).removeprefix("torch.")} if dtype else {})
    )
    return True


def _merge_with_peft(
    ref: ModelRef, base: Path, out: Path, options: MergeOptions, *, original_names: bool
) -> None:
    """Merge any adapter into any base by PEFT, with the whole model in memory, in fp32.

    *original_names* is False for a 4-bit checkpoint, whose tensors have other names than the weights in them.
    """
    config = model_files.config(base) if base.is_dir() else {}
    stored = getattr(torch, str(config.get("dtype") or config.get("torch_dtype") or "bfloat16"))
    precision = "nf4" if options.base == "dequantized" else "fp32"
    model = load_model(ref, precision=precision, device="cpu", plain=True).model.float()
    known = set()
    for module in (
        model.modules()
    ):  # merging is in place, so tied weights and repeated layers become modules' own
        for name, parameter in module.named_parameters(recurse=False):
            if parameter in known:
                setattr(
                    module,
                    name,
                    torch.nn.Parameter(parameter.detach().clone(), requires_grad=False),
                )
            known.add(parameter)
    try:
        model = model.merge_and_unload()
    except (ValueError, RuntimeError, NotImplementedError) as error:
        raise ModelError(f"PEFT cannot merge {ref.source}: {first_line(error)}.") from error
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if model.config.tie_word_embeddings and head is not None:
        if torch.equal(embedding.weight, head.weight):
            head.weight = embedding.weight
        else:  # the adapter changed one of the two
            model.config.tie_word_embeddings = False
    nf4.cast(model, DTYPES.get(options.dtype, stored))
    for name, parameter in model.named_parameters():
        checkpoint.check_finite(name, parameter.detach())
    model.save_pretrained(out, max_shard_size="5GB", save_original_format=original_names)


def _verify(
    ref: ModelRef, merged: Path, options: MergeOptions, trained_over: str
) -> dict[str, Any]:
    """Agreement of the merged files with the adapter over the same base, and with the policy as it was trained."""
    specs = checkpoint.Checkpoint(merged).specs.values()
    large = sum(spec.numel() for spec in specs) > MAX_FP32_PARAMETERS
    in_bf16 = large and torch_internals.has_bf16_products(device_name("auto"))
    precision = "bf16" if in_bf16 else "fp32"

    def load_adapter(precision: str) -> Loaded:
        loaded = load_model(ref, precision=precision, plain=True)
        if not in_bf16:
            loaded.model.float()
        return loaded

    adapted = load_adapter("nf4" if options.base == "dequantized" else precision)
    conversations = probe.conversations(ref.as_input(), agreement.PROMPTS[options.verify])
    transcripts = agreement.transcripts(adapted, conversations)
    adapted_logits = agreement.logits(adapted, transcripts)
    with adapted.model.disable_adapter():
        without_adapter = agreement.compare(adapted_logits, agreement.logits(adapted, transcripts))
    del adapted
    loaded = load_model(ModelRef(merged.name, "directory", merged), precision=precision)
    merged_logits = agreement.logits(loaded, transcripts)
    with_definition = with_policy = agreement.compare(adapted_logits, merged_logits)
    limit = max(
        MAX_KL[torch.bfloat16] if in_bf16 else 0, *(MAX_KL.get(spec.dtype, 0) for spec in specs)
    )
    if not (kl := with_definition["kl"]) <= limit:  # also true of NaN
        fault = f"(KL {kl:.2g}, above the {limit:.2g} of rounding); please report this adapter"
        raise ModelError(
            f"the merged weights differ from the adapter over its {options.base} base {fault}."
        )
    if trained_over == "nf4" and options.base == "original":
        with_policy = agreement.compare(
            agreement.logits(load_adapter("nf4"), transcripts), merged_logits
        )
    facts: dict[str, Any] = {
        "with_definition": with_definition,
        "with_policy_as_trained": with_policy,
    }
    return facts | {"kl_without_adapter": without_adapter["kl"], "computed_in": precision}
