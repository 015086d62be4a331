"""Merging a LoRA adapter into its base: full-precision weights, and a comparison of them with the adapter.

Plain LoRA over unquantized safetensors is merged one shard at a time, everything else by PEFT.
The base decides what survives. A QLoRA adapter was trained over NF4 weights. Merged into the de-quantized NF4 base,
in bf16, it gives the trained policy (measured KL 0.001), but quantizing that to NF4 again rounds the adapter away.
Merged into the original base it differs a little in bf16 (KL 0.16), and returns to the policy when the result is
quantized to NF4 (KL 0.02).
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from countdown_rl.core import artifacts
from countdown_rl.core.errors import ModelError, UsageError, first_line
from countdown_rl.export import agreement
from countdown_rl.export.config import MergeOptions
from countdown_rl.models import checkpoint, ends, model_files, nf4, reference, shape, torch_internals
from countdown_rl.models.checkpoint import Checkpoint
from countdown_rl.models.load import Loaded, device_name, load_model, load_tokenizer, trained_precision
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


def merge_adapter(ref: ModelRef, out: Path, options: MergeOptions) -> artifacts.Manifest:
    """Write the merged artifact of adapter *ref* at *out*; its manifest records the measured agreement.

    Agreement is measured on random prompts of the task that was trained on.

    Raises:
        ModelError: the adapter cannot be merged, or the merged model differs from the adapter over that base.
    """
    if ref.base is None:
        raise ModelError(
            f"{ref.source} is not an adapter; give --adapter the directory that `countdown-rl train` made."
        )
    artifacts.check_writable(out, "merged")
    trained_over = _trained_over(ref, options)
    adapter, base = Adapter(reference.local_path(ref)), reference.local_path(ref.base)
    _check_base(ref.base, base, options)
    adapter.check_unchanged_base()
    described = {key: value for key, value in asdict(options).items() if key != "trained_over"}  # a fact
    dtype = DTYPES.get(options.dtype)
    with artifacts.writing(
        out, "merged", options=described, inputs={"adapter": ref.as_input()}, libraries=LIBRARIES
    ) as draft:
        if not _merge_plain(adapter, base, draft.path, options, dtype):
            _merge_with_peft(ref, base, draft.path, options, dtype)
        _write_tokenizer(draft.path, base, ref)
        reference.check_unchanged(ref)
        specs = Checkpoint(draft.path).specs.values()
        draft.facts.update(
            base=options.base,
            trained_over=trained_over,
            adapted_modules=len(adapter.modules),
            **({"changes_nothing": True} if adapter.changes_nothing else {}),
            parameters=sum(spec.numel() for spec in specs),
            bytes=sum(spec.nbytes for spec in specs),
        )
        if options.verify != "none":
            draft.facts["agreement"] = _verify(ref, draft.path, options, trained_over)
    return artifacts.read(out, "merged", verify=False)


def _trained_over(ref: ModelRef, options: MergeOptions) -> str:
    """The precision of the base that the adapter *ref* was trained over, or "unknown"."""
    known, given = trained_precision(ref, "auto"), options.trained_over
    if given != "auto" and known not in ("auto", given):
        raise UsageError(f"{ref.source} was trained over {known} weights; leave --trained-over {given} out.")
    trained_over = {"auto": "unknown"}.get(known, known) if given == "auto" else given
    if options.base == "dequantized" and trained_over != "nf4":
        advice = "; if they were NF4, give --trained-over nf4" if trained_over == "unknown" else ""
        raise UsageError(
            f"{ref.source} was trained over {trained_over} weights, so there is nothing to de-quantize{advice}."
        )
    return trained_over


def _check_base(ref: ModelRef, path: Path, options: MergeOptions) -> None:
    config = shape.quantization_config(path) if path.is_dir() else None
    if config is None:
        return
    if (method := config.get("quant_method")) != "bitsandbytes":
        raise ModelError(
            f"{ref.source} is quantized with {method}, which cannot be merged into; train over the unquantized weights."
        )
    if options.base == "original":
        raise UsageError(
            f"{ref.source} is a 4-bit checkpoint and has no original weights; merge with --base dequantized, or name "
            "the unquantized model by --base-model."
        )


def _merge_plain(adapter: Adapter, base: Path, out: Path, options: MergeOptions, dtype: torch.dtype | None) -> bool:
    """Merge plain LoRA into the unquantized safetensors at *base*, one shard at a time.

    Returns:
        False if the adapter or the base is of another kind; nothing is written then.
    """
    if not adapter.is_plain or base.is_file() or shape.quantization_config(base) is not None:
        return False
    source, model = Checkpoint(base), shape.skeleton(shape.read_config(base))
    module_names = {id(module): name for name, module in model.named_modules()}
    embedding, head = (
        module_names.get(id(part)) for part in (model.get_input_embeddings(), model.get_output_embeddings())
    )
    untied = source.drop_tied(model)
    if model.config.tie_word_embeddings and not untied and {embedding, head} & adapter.modules:
        return False
    if not source.specs.keys() >= {f"{module}.weight" for module in adapter.modules}:
        return False
    linears = nf4.linears(model)
    if any(nf4.is_transposed(module) for module in linears.values()):
        return False
    rounded = {f"{name}.weight" for name in linears} if options.base == "dequantized" else set()
    adapter.attach(model)

    def merged(name: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        target = dtype if dtype and weight.is_floating_point() else weight.dtype
        return {name: adapter.merge(name, nf4.fake_quantize(weight) if name in rounded else weight).to(target)}

    checkpoint.write(source, out, merged)
    config = model_files.config(base) | ({"tie_word_embeddings": False} if untied else {})
    if dtype is not None:
        config.pop("torch_dtype", None)
        config["dtype"] = str(dtype).removeprefix("torch.")
    (out / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    return True


def _merge_with_peft(ref: ModelRef, base: Path, out: Path, options: MergeOptions, dtype: torch.dtype | None) -> None:
    """Merge any adapter into any base by PEFT, with the whole model in memory, in fp32."""
    if dtype is None:
        config = {} if base.is_file() else model_files.config(base)
        dtype = getattr(torch, str(config.get("dtype") or config.get("torch_dtype") or "bfloat16"))
    precision = "nf4" if options.base == "dequantized" else "fp32"
    model = load_model(ref, precision=precision, device="cpu", plain=True).model.float()
    _untie(model)
    try:
        model = model.merge_and_unload()
    except (ValueError, RuntimeError, NotImplementedError) as error:
        raise ModelError(f"PEFT cannot merge {ref.source}: {first_line(error)}") from error
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if model.config.tie_word_embeddings and head is not None:
        if torch.equal(embedding.weight, head.weight):
            head.weight = embedding.weight
        else:  # the adapter changed one of the two
            model.config.tie_word_embeddings = False
    nf4.cast(model, dtype)
    for name, parameter in model.named_parameters():
        checkpoint.check_finite(name, parameter.detach())
    # The names of a 4-bit checkpoint's tensors are not those of the weights in them.
    original_names = base.is_file() or shape.quantization_config(base) is None
    model.save_pretrained(out, max_shard_size=checkpoint.MAX_SHARD_SIZE, save_original_format=original_names)


def _untie(model: Any) -> None:
    """Give each module of *model* weights of its own: merging changes them in place.

    Embedding and output head may share theirs, and so do layers that PEFT repeats.
    """
    known = set()
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter in known:
                setattr(module, name, torch.nn.Parameter(parameter.detach().clone(), requires_grad=False))
            known.add(parameter)


def _write_tokenizer(out: Path, base: Path, ref: ModelRef) -> None:
    """Write the tokenizer and the end tokens."""
    model_files.copy(base, out, [model_files.GENERATION])
    adapter, tokenizer = reference.local_path(ref), load_tokenizer(ref)
    model_files.copy(adapter if (adapter / "tokenizer_config.json").is_file() else base, out)
    if not (out / "tokenizer.json").is_file():  # an older checkpoint with the files of the slow tokenizer only
        tokenizer.save_pretrained(out)
    ends.write(out, ends.of_checkpoint(tokenizer, out), tokenizer.pad_token_id)


def _verify(ref: ModelRef, merged: Path, options: MergeOptions, trained_over: str) -> dict[str, Any]:
    """Agreement of the merged files with the adapter over the same base, and with the policy as it was trained."""
    specs = Checkpoint(merged).specs.values()
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
    merged_logits = agreement.logits(
        load_model(ModelRef(merged.name, "directory", merged), precision=precision), transcripts
    )
    with_definition = agreement.compare(adapted_logits, merged_logits)
    narrowest = max((spec.dtype for spec in specs if spec.dtype in MAX_KL), key=MAX_KL.__getitem__)
    limit = MAX_KL[torch.bfloat16 if in_bf16 else narrowest]
    if not with_definition.kl <= limit:  # also true of NaN
        raise ModelError(
            f"the merged weights differ from the adapter over its {options.base} base (KL {with_definition.kl:.2g}, "
            f"where rounding explains {limit:.2g}), so nothing was written; please report this adapter."
        )
    with_policy = with_definition
    if trained_over == "nf4" and options.base == "original":
        with_policy = agreement.compare(agreement.logits(load_adapter("nf4"), transcripts), merged_logits)
    return {
        "with_definition": with_definition.as_facts(),
        "with_policy_as_trained": with_policy.as_facts(),
        "kl_without_adapter": without_adapter.as_facts()["kl"],
        "computed_in": precision,
    }
