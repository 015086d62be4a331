"""Merging a LoRA adapter into its base: full-precision weights, written one tensor at a time, and verified.

The base decides what survives. A QLoRA adapter was trained over NF4 weights. Merged into the de-quantized NF4 base,
in bf16, it gives the trained policy (measured KL 0.001), but quantizing that to NF4 again rounds the adapter away.
Merged into the original base it differs a little in bf16 (KL 0.16), and returns to the policy when the result is
quantized to NF4 (KL 0.02).
"""

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from countdown_rl import artifacts
from countdown_rl.errors import ModelError, UsageError
from countdown_rl.export import agreement
from countdown_rl.export.config import MergeOptions
from countdown_rl.models import checkpoint, files, nf4, reference, shape
from countdown_rl.models.checkpoint import Checkpoint, TensorSpec
from countdown_rl.models.load import Loaded, load, load_tokenizer
from countdown_rl.models.lora import Adapter
from countdown_rl.models.nf4 import Nf4Checkpoint
from countdown_rl.models.reference import ModelRef
from countdown_rl.tasks import probe

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
LIBRARIES = ("torch", "transformers", "peft", "bitsandbytes", "safetensors")

#: Largest KL divergence, in nats, that one rounding of the merged weights explains, by their type.
#: Measured on SmolLM2-135M in bf16: 3e-4.
MAX_KL = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 1e-2}
#: Above this many parameters verification computes in bf16, which adds rounding of its own.
MAX_FP32_PARAMETERS = 2_000_000_000

_TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("tokenizer.model", "vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json"),
)


@dataclass(frozen=True)
class Plan:
    """Contents of the merged checkpoint.

    Attributes:
        transposed: weights stored as (in, out).
        packed: weights that NF4 quantizes.
        tied: (embedding, output head) where the base has one tensor for both.
        untie: the adapter changes one of the two, so the merged checkpoint has a tensor for each.
    """

    specs: dict[str, TensorSpec]
    transposed: frozenset[str]
    packed: frozenset[str]
    tied: tuple[str, str] | None
    untie: bool

    @property
    def parameters(self) -> int:
        return sum(spec.numel for spec in self.specs.values())


def merge(
    ref: ModelRef, out: Path, options: MergeOptions, conversations: Sequence[Sequence[Mapping[str, str]]] | None = None
) -> artifacts.Manifest:
    """Write the merged artifact of adapter *ref* at *out*; its manifest records the measured agreement.

    Args:
        conversations: prompts that agreement is measured on; None takes built-in puzzles.

    Raises:
        ModelError: the adapter cannot be merged, or the merged model differs from the adapter over that base.
        UsageError: the options do not fit this adapter.
    """
    if ref.base is None:
        raise ModelError(
            f"{ref.source} is not an adapter; give --adapter the directory that `countdown-rl train` made."
        )
    artifacts.check_writable(out, "merged")
    trained_over = ref.trained_precision or "unknown"
    if options.base == "dequantized" and trained_over != "nf4":
        raise UsageError(f"{ref.source} was trained over {trained_over} weights, so there is nothing to de-quantize.")
    adapter = Adapter(reference.files(ref))
    with (
        artifacts.writing(
            out, "merged", options=asdict(options), inputs={"adapter": ref.as_input()}, libraries=LIBRARIES
        ) as draft,
        _safetensors_base(ref.base, draft.path.parent) as base,
    ):
        source = _open_base(base, ref.base, options)
        dtype = DTYPES.get(options.dtype) or (torch.bfloat16 if ref.base.kind == "gguf" else None)
        plan = _plan(base, source, adapter, dtype)
        fake_quantize = options.base == "dequantized" and not isinstance(source, Nf4Checkpoint)
        checkpoint.write(draft.path, plan.specs, _tensors(source, adapter, plan, fake_quantize))
        _write_other_files(draft.path, base, ref, plan, dtype)
        draft.facts.update(
            base=options.base,
            trained_over=trained_over,
            adapted_modules=len(adapter.layers),
            whole_tensors=len(adapter.saved),
            parameters=plan.parameters,
            bytes=sum(spec.nbytes for spec in plan.specs.values()),
        )
        if options.verify != "none":
            if conversations is None:
                conversations = probe.conversations(agreement.PROMPTS[options.verify])
            ref = replace(ref, base=ModelRef(ref.base.source, "directory", base))
            draft.facts["agreement"] = _verify(ref, draft.path, options, plan, trained_over, conversations)
    return artifacts.read(out, "merged", verify=False)


@contextmanager
def _safetensors_base(base: ModelRef, parent: Path) -> Iterator[Path]:
    """The directory of *base* as safetensors; a GGUF file is de-quantized into a temporary one in *parent*."""
    path = reference.files(base)
    if path.is_dir():
        yield path
        return
    # In fp32, so that its values are rounded once, after the merge.
    with tempfile.TemporaryDirectory(prefix=".gguf-", dir=parent) as name:
        loaded = load(base, precision="fp32", device="cpu")
        loaded.model.save_pretrained(name)
        loaded.tokenizer.save_pretrained(name)
        del loaded
        yield Path(name)


def _open_base(path: Path, base: ModelRef, options: MergeOptions) -> Checkpoint:
    config = shape.quantization_config(path)
    if config is None:
        return Checkpoint(path)
    if config.get("quant_method") != "bitsandbytes":
        raise ModelError(
            f"{base.source} is quantized with {config.get('quant_method', 'an unknown method')}, which cannot be "
            "merged into; train over the unquantized weights."
        )
    if options.base == "original":
        raise UsageError(
            f"{base.source} is a 4-bit checkpoint and has no original weights; merge with --base dequantized."
        )
    return Nf4Checkpoint(path)


def _plan(path: Path, source: Checkpoint, adapter: Adapter, dtype: torch.dtype | None) -> Plan:
    model = shape.skeleton(shape.read_config(path))
    names = {id(module): name for name, module in model.named_modules()}
    tied = None
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if head is not None and model.config.tie_word_embeddings:
        tied = (f"{names[id(embedding)]}.weight", f"{names[id(head)]}.weight")
    if tied and adapter.config.get("ensure_weight_tying"):
        _tie(adapter, *tied)
        untie = tied[1] in adapter.parameters()
    else:
        untie = tied is not None and not set(tied).isdisjoint(adapter.parameters())
    specs: dict[str, TensorSpec] = {}
    for name, spec in source.specs.items():
        if tied and name == tied[1]:
            continue
        specs[name] = TensorSpec(dtype if dtype and spec.dtype.is_floating_point else spec.dtype, spec.shape)
        if tied and untie and name == tied[0]:
            specs[tied[1]] = specs[name]
    missing = sorted(set(adapter.parameters()) - specs.keys())
    if missing:
        raise ModelError(
            f"{adapter.directory} changes {missing[0]}, which its base does not have"
            f"{f' (and {len(missing) - 1} more)' if missing[1:] else ''}; it was trained over another."
        )
    transposed = {f"{name}.weight" for name, module in model.named_modules() if nf4.is_transposed(module)}
    packed = {f"{name}.weight" for name in nf4.linears(model)}
    return Plan(specs, frozenset(transposed), frozenset(packed), tied, untie)


def _tie(adapter: Adapter, embedding: str, head: str) -> None:
    """Keep one copy, the embedding's, of what an adapter trained with tied weights saved twice or as the head's."""
    if head in adapter.saved:
        adapter.saved.setdefault(embedding, adapter.saved.pop(head))
    if embedding.removesuffix(".weight") in adapter.layers:
        adapter.layers.pop(head.removesuffix(".weight"), None)


def _tensors(
    source: Checkpoint, adapter: Adapter, plan: Plan, fake_quantize: bool
) -> Iterator[tuple[str, torch.Tensor]]:
    for name, spec in plan.specs.items():
        transposed = name in plan.transposed
        is_untied_head = plan.tied is not None and plan.untie and name == plan.tied[1]
        weight = source.read(plan.tied[0] if plan.tied and is_untied_head else name)
        if fake_quantize and name in plan.packed:
            weight = nf4.fake_quantize(weight.T).T if transposed else nf4.fake_quantize(weight)
        merged = adapter.merge(name, weight, transposed=transposed)
        del weight  # nothing is held while the next tensor is read
        merged = merged.to(spec.dtype)
        yield name, merged
        del merged


def _write_other_files(out: Path, base: Path, ref: ModelRef, plan: Plan, dtype: torch.dtype | None) -> None:
    """Write the configuration, generation config and tokenizer."""
    config = files.config(base)
    config.pop("quantization_config", None)
    if dtype is not None:
        config.pop("torch_dtype", None)
        config["dtype"] = str(dtype).removeprefix("torch.")
    if plan.untie:
        config["tie_word_embeddings"] = False
    (out / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    if (base / "generation_config.json").is_file():
        shutil.copyfile(base / "generation_config.json", out / "generation_config.json")
    adapter = reference.files(ref)
    tokenizer = adapter if (adapter / "tokenizer_config.json").is_file() else base
    for name in _TOKENIZER_FILES:
        if (tokenizer / name).is_file():
            shutil.copyfile(tokenizer / name, out / name)
    if not (out / "tokenizer.json").is_file():  # an older checkpoint with the files of the slow tokenizer only
        load_tokenizer(ref).save_pretrained(out)


def _verify(
    ref: ModelRef,
    merged: Path,
    options: MergeOptions,
    plan: Plan,
    trained_over: str,
    conversations: Sequence[Sequence[Mapping[str, str]]],
) -> dict[str, Any]:
    """Agreement of the merged files with the adapter over the same base, and with the policy as it was trained.

    Raises:
        ModelError: the first of the two differs by more than rounding.
    """
    large = plan.parameters > MAX_FP32_PARAMETERS
    precision = "bf16" if large else "fp32"

    def load_adapter(precision: str) -> Loaded:
        loaded = load(ref, precision=precision, plain=True)
        if not large:
            loaded.model.float()
        return loaded

    adapted = load_adapter("nf4" if options.base == "dequantized" else precision)
    transcripts = agreement.transcripts(adapted, conversations)
    adapted_logits = agreement.logits(adapted, transcripts)
    with adapted.model.disable_adapter():
        without_adapter = agreement.compare(adapted_logits, agreement.logits(adapted, transcripts))
    del adapted
    merged_logits = agreement.logits(load(ModelRef(merged.name, "directory", merged), precision=precision), transcripts)
    with_definition = agreement.compare(adapted_logits, merged_logits)
    narrowest = max((spec.dtype for spec in plan.specs.values() if spec.dtype in MAX_KL), key=MAX_KL.__getitem__)
    limit = MAX_KL[torch.bfloat16 if large else narrowest]
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
