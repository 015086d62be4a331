"""An adapter folded into its base: full-precision weights, written a tensor at a time, and checked.

Which base it is folded into decides what survives. A QLoRA adapter learnt to go with NF4 weights.
Folded into the de-quantized NF4 base, in bf16, it is the trained policy (KL 0.001 where it was
measured); but a second trip to NF4 then rounds it away. Folded into the original base it is a little
off in bf16 (KL 0.16), and comes back to the policy when the result goes to NF4 (KL 0.02).
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
from countdown_rl.export.agreement import Agreement
from countdown_rl.export.config import MergeOptions
from countdown_rl.models import checkpoint, nf4, reference
from countdown_rl.models.checkpoint import Checkpoint, Slot
from countdown_rl.models.load import Loaded, load, load_tokenizer
from countdown_rl.models.lora import Adapter
from countdown_rl.models.reference import ModelRef

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
LIBRARIES = ("torch", "transformers", "peft", "bitsandbytes", "safetensors")

#: Largest KL divergence, in nats, that rounding the merged weights once explains, by their type.
#: Measured on SmolLM2-135M in bf16: 3e-4.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 1e-2}
#: Above this many parameters the check computes in bf16, which has rounding of its own.
EXACT_UP_TO = 2_000_000_000

_TOKENIZER = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("tokenizer.model", "vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json"),
)


@dataclass(frozen=True)
class Plan:
    """What the merged checkpoint will hold. ``tied`` is (embedding, output head) when they share one tensor
    in the base; ``untie`` says that the adapter changes one of them and not the other."""

    slots: dict[str, Slot]
    turned: frozenset[str]
    packed: frozenset[str]
    tied: tuple[str, str] | None
    untie: bool


def merge(
    ref: ModelRef,
    out: Path,
    options: MergeOptions,
    conversations: Sequence[Sequence[Mapping[str, str]]] | None = None,
) -> artifacts.Manifest:
    """Write the merged artifact of adapter *ref* at *out*; its manifest says how well it agrees.

    *conversations* are what agreement is measured on; None takes built-in puzzles.

    Raises:
        ModelError: the adapter cannot be merged, or the merged model does not do what the adapter over
            that base does.
        UsageError: the options do not go with this adapter.
    """
    if ref.base is None:
        raise ModelError(
            f"{ref.source} is not an adapter; give --adapter the directory that `countdown-rl train` made."
        )
    artifacts.check_writable(out, "merged")
    trained = trained_in(ref)
    if options.base == "dequantized" and trained != "nf4":
        raise UsageError(f"{ref.source} was trained over {trained} weights, so there is nothing to de-quantize.")
    adapter = Adapter(reference.files(ref))
    with (
        artifacts.writing(
            out, "merged", options=asdict(options), inputs={"adapter": ref.as_input()}, libraries=LIBRARIES
        ) as draft,
        _ordinary(ref.base, draft.path.parent) as base,
    ):
        source = nf4.Packed(base) if _four_bit(base, ref.base) else Checkpoint(base)
        if isinstance(source, nf4.Packed) and options.base == "original":
            raise UsageError(
                f"{ref.base.source} is a 4-bit checkpoint, so the original weights are not there; "
                "merge with --base dequantized."
            )
        dtype = DTYPES.get(options.dtype) or (torch.bfloat16 if ref.base.kind == "gguf" else None)
        plan = _plan(base, source, adapter, dtype)
        rounds = options.base == "dequantized" and not isinstance(source, nf4.Packed)
        checkpoint.write(draft.path, plan.slots, _tensors(source, adapter, plan, rounds))
        _complete(draft.path, base, ref, plan, dtype)
        draft.facts.update(
            base=options.base,
            trained_over=trained,
            adapted_modules=len(adapter.layers),
            whole_tensors=len(adapter.whole),
            parameters=sum(slot.size // slot.dtype.itemsize for slot in plan.slots.values()),
            bytes=sum(slot.size for slot in plan.slots.values()),
        )
        if options.verify != "none":
            ordinary = replace(ref, base=ModelRef(ref.base.source, "directory", base))
            draft.facts["agreement"] = _verify(ordinary, draft.path, options, plan, trained, conversations)
    return artifacts.read(out, "merged", verify=False)


def trained_in(ref: ModelRef) -> str:
    """The precision that the base of adapter *ref* was held in while it was trained."""
    if ref.manifest is None:
        return "unknown"
    return str(ref.manifest.facts.get("precision") or ref.manifest.options.get("precision", "unknown"))


@contextmanager
def _ordinary(base: ModelRef, inside: Path) -> Iterator[Path]:
    """The directory of *base* as safetensors; a GGUF file is de-quantized into one for the while."""
    path = reference.files(base)
    if path.is_dir():
        yield path
        return
    # In fp32, so that what GGUF holds is rounded once, with the adapter in it.
    with tempfile.TemporaryDirectory(prefix=".gguf-", dir=inside) as name:
        loaded = load(base, precision="fp32", device="cpu")
        loaded.model.save_pretrained(name)
        loaded.tokenizer.save_pretrained(name)
        del loaded
        yield Path(name)


def _four_bit(path: Path, base: ModelRef) -> bool:
    recipe = json.loads((path / "config.json").read_bytes()).get("quantization_config")
    if recipe is not None and recipe.get("quant_method") != "bitsandbytes":
        raise ModelError(
            f"{base.source} is quantized with {recipe.get('quant_method', 'an unknown method')}, into which nothing is "
            "merged here; train over the unquantized weights."
        )
    return recipe is not None


def _plan(path: Path, source: Checkpoint, adapter: Adapter, dtype: torch.dtype | None) -> Plan:
    model = nf4.skeleton(path)
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
    slots: dict[str, Slot] = {}
    for name, slot in source.slots.items():
        wanted = dtype if dtype and slot.dtype.is_floating_point else slot.dtype
        if tied and name == tied[1]:
            continue
        slots[name] = Slot(wanted, slot.shape)
        if tied and untie and name == tied[0]:
            slots[tied[1]] = slots[name]
    homeless = sorted(set(adapter.parameters()) - slots.keys())
    if homeless:
        raise ModelError(
            f"{adapter.directory} changes {homeless[0]}, which its base does not have"
            f"{f' (and {len(homeless) - 1} more)' if homeless[1:] else ''}; it was trained over another."
        )
    turned = {f"{name}.weight" for name, module in model.named_modules() if nf4.is_turned(module)}
    packed = {f"{name}.weight" for name in nf4.linears(model)}
    return Plan(slots, frozenset(turned), frozenset(packed), tied, untie)


def _tie(adapter: Adapter, embedding: str, head: str) -> None:
    """What an adapter trained with tied weights saved twice, or under the head's name, is the embedding's."""
    if head in adapter.whole:
        adapter.whole.setdefault(embedding, adapter.whole.pop(head))
    if embedding.removesuffix(".weight") in adapter.layers:
        adapter.layers.pop(head.removesuffix(".weight"), None)


def _tensors(source: Checkpoint, adapter: Adapter, plan: Plan, rounds: bool) -> Iterator[tuple[str, torch.Tensor]]:
    for name, slot in plan.slots.items():
        turned = name in plan.turned
        head = plan.untie and plan.tied is not None and name == plan.tied[1]
        weight = source.read(plan.tied[0] if head and plan.tied else name)
        if rounds and name in plan.packed:
            weight = nf4.rounded(weight.T).T if turned else nf4.rounded(weight)
        merged = adapter.fold(name, weight, turned=turned)
        del weight  # nothing is held while the next one is read
        merged = merged.to(slot.dtype)
        yield name, merged
        del merged


def _complete(out: Path, base: Path, ref: ModelRef, plan: Plan, dtype: torch.dtype | None) -> None:
    """Everything beside the weights that a program needs to run them."""
    config = json.loads((base / "config.json").read_bytes())
    config.pop("quantization_config", None)
    if dtype is not None:
        config.pop("torch_dtype", None)
        config["dtype"] = str(dtype).removeprefix("torch.")
    if plan.untie:
        config["tie_word_embeddings"] = False
    (out / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    if (base / "generation_config.json").is_file():
        shutil.copyfile(base / "generation_config.json", out / "generation_config.json")
    own = reference.files(ref)
    home = own if (own / "tokenizer_config.json").is_file() else base
    for name in _TOKENIZER:
        if (home / name).is_file():
            shutil.copyfile(home / name, out / name)
    if not (out / "tokenizer.json").is_file():  # an older checkpoint with the slow files only
        load_tokenizer(ref).save_pretrained(out)


def _verify(
    ref: ModelRef,
    merged: Path,
    options: MergeOptions,
    plan: Plan,
    trained: str,
    conversations: Sequence[Sequence[Mapping[str, str]]] | None,
) -> dict[str, Any]:
    """Agreement of the merged files with the adapter over that same base, and with the policy as trained.

    Raises:
        ModelError: the first of the two is more than rounding away.
    """
    if conversations is None:
        from countdown_rl.tasks.task import parse_row

        count = agreement.PROMPTS[options.verify]
        conversations = [parse_row(row).messages() for row in agreement.puzzles(count)]
    large = sum(slot.size // slot.dtype.itemsize for slot in plan.slots.values()) > EXACT_UP_TO
    exact = "bf16" if large else "fp32"

    def over(precision: str) -> Loaded:
        loaded = load(ref, precision=precision, plain=True)
        if not large:
            loaded.model.float()
        return loaded

    definition = over("nf4" if options.base == "dequantized" else exact)
    written = agreement.transcripts(definition, conversations)
    by_definition = agreement.logits(definition, written)
    with definition.model.disable_adapter():
        effect = agreement.compare(by_definition, agreement.logits(definition, written))
    del definition
    model = load(ModelRef(merged.name, "directory", merged), precision=exact)
    by_merged = agreement.logits(model, written)
    del model
    same = agreement.compare(by_definition, by_merged)
    narrowest = max((slot.dtype for slot in plan.slots.values() if slot.dtype in TOLERANCE), key=TOLERANCE.__getitem__)
    allowed = TOLERANCE[torch.bfloat16 if large else narrowest]
    if not same.kl <= allowed:  # written so that NaN fails too
        raise ModelError(
            f"the merged weights do not do what the adapter over its {options.base} base does (KL {same.kl:.2g}, "
            f"where rounding explains {allowed:.2g}), so nothing was written; please report this adapter."
        )
    policy: Agreement = same
    if trained == "nf4" and options.base == "original":
        by_policy = agreement.logits(over("nf4"), written)
        policy = agreement.compare(by_policy, by_merged)
    return {
        "with_definition": same.as_facts(),
        "with_policy_as_trained": policy.as_facts(),
        "kl_without_adapter": effect.as_facts()["kl"],
        "computed_in": exact,
    }
