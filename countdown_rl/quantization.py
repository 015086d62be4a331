"""Full-precision weights into fewer bits: NF4 as bitsandbytes stores it, or GGUF for llama.cpp.

Written a tensor at a time, so that a model larger than memory can be done. NF4 goes from safetensors to
safetensors: ``AutoModelForCausalLM.from_pretrained`` loads the result wherever bitsandbytes is installed, on
a GPU or a CPU. Given puzzles, the result is loaded back and scored on them beside what it was made from.
"""

import json
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from countdown_rl import artifacts, comparison, engines, evaluation, ggufs, models, nf4, references, tensors
from countdown_rl.errors import ModelError, UsageError
from countdown_rl.options import EvalOptions, QuantizeOptions
from countdown_rl.references import ModelRef
from countdown_rl.tensors import Checkpoint, Slot

LIBRARIES = {
    "nf4": ("torch", "transformers", "bitsandbytes", "safetensors"),
    "gguf": ("torch", "transformers", "gguf"),
}

#: Written into config.json: how a loader builds its layers. bf16 is what the weights were rounded from.
RECIPE = {
    "quant_method": "bitsandbytes",
    "load_in_4bit": True,
    "load_in_8bit": False,
    "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_use_double_quant": True,
    "bnb_4bit_compute_dtype": "bfloat16",
    "bnb_4bit_quant_storage": "uint8",
}

#: Rewritten here, or about the source alone.
_OWN = {artifacts.MANIFEST, "config.json", tensors.INDEX}


def quantize(ref: ModelRef, out: Path, options: QuantizeOptions, data: Path | None = None) -> artifacts.Manifest:
    """Write the quantized artifact of *ref* at *out*; on the puzzles at *data* its accuracy is compared.

    Raises:
        ModelError: *ref* is an adapter, is quantized already, is no safetensors checkpoint, is nothing that
            the format can hold, or is a merge into de-quantized weights, from which NF4 would round the
            adapter away; or the result lost more than it may.
        UsageError: there is a limit to what may be lost, and nothing to measure it on.
    """
    if options.max_drop is not None and data is None:
        raise UsageError("--max-drop needs puzzles to measure on; give --data, such as artifacts/data/test.jsonl.")
    _refuse(ref, options.format)
    artifacts.check_writable(out, "quantized")
    source_path = references.files(ref)
    if "quantization_config" in json.loads((source_path / "config.json").read_bytes()):
        raise ModelError(f"{ref.source} is quantized already; give the full-precision weights.")
    source = Checkpoint(source_path)
    inputs = {"model": ref.as_input()} | ({"data": artifacts.file_input(data)} if data is not None else {})
    with artifacts.writing(
        out, "quantized", options=asdict(options), inputs=inputs, libraries=_libraries(options.format)
    ) as draft:
        if options.format == "nf4":
            draft.facts.update(_nf4(source, source_path, draft.path))
            written = draft.path
        else:
            facts, written = _gguf(ref, source, source_path, draft.path, options.gguf_type, out.name)
            draft.facts.update(facts)
        draft.facts.update(
            format=options.format,
            bytes_before=sum(slot.size for slot in source.slots.values()),
            bits_per_parameter=round(8 * draft.facts["bytes"] / draft.facts["parameters"], 3),
        )
        if data is not None:
            draft.facts["against_source"] = _score(ref, written, data, options)
    return artifacts.read(out, "quantized", verify=False)


def _nf4(source: Checkpoint, source_path: Path, out: Path) -> dict[str, Any]:
    model = nf4.skeleton(source_path)
    packed = {f"{name}.weight": module for name, module in nf4.linears(model).items()}
    packed = {name: module for name, module in packed.items() if name in source.slots}
    turned = {name for name, module in packed.items() if nf4.is_turned(module)}
    slots: dict[str, Slot] = {}
    for name, slot in source.slots.items():
        if name in packed:
            slots |= nf4.layout(name, slot.shape)
        else:
            slots[name] = Slot(torch.bfloat16 if slot.dtype.is_floating_point else slot.dtype, slot.shape)
    tensors.write(out, slots, _tensors(source, slots, packed.keys(), turned))
    config = json.loads((source_path / "config.json").read_bytes())
    config.pop("torch_dtype", None)
    config |= {"dtype": "bfloat16", "quantization_config": RECIPE}
    (out / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    for file in sorted(source_path.iterdir()):
        if file.is_file() and file.suffix in (".json", ".jinja", ".model", ".txt") and file.name not in _OWN:
            shutil.copyfile(file, out / file.name)
    return {
        "parameters": sum(slot.size // slot.dtype.itemsize for slot in source.slots.values()),
        "parameters_in_4_bits": sum(
            slot.size // slot.dtype.itemsize for name, slot in source.slots.items() if name in packed
        ),
        "bytes": sum(slot.size for slot in slots.values()),
    }


def _gguf(
    ref: ModelRef, source: Checkpoint, source_path: Path, out: Path, kind: str, name: str
) -> tuple[dict[str, Any], Path]:
    tokenizer = models.load_tokenizer(ref)
    file = out / f"model-{kind.upper()}.gguf"
    types = ggufs.write(source, source_path, file, name=name, kind=kind, tokenizer=tokenizer)
    for beside in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (source_path / beside).is_file():
            shutil.copyfile(source_path / beside, out / beside)
    context = json.loads((source_path / "config.json").read_bytes())["max_position_embeddings"]
    if tokenizer.chat_template:
        (out / "Modelfile").write_text(ggufs.modelfile(file.name, tokenizer, min(context, 8192)), "utf-8")
    facts = {
        "gguf_type": kind,
        "file": file.name,
        "tensors": types,
        "parameters": sum(slot.size // slot.dtype.itemsize for slot in source.slots.values()),
        "bytes": file.stat().st_size,
    }
    if engines.installed("llama-cpp"):
        from countdown_rl import rereading

        facts["llama_cpp"] = rereading.check(file, tokenizer)
    return facts, file


def _score(ref: ModelRef, written: Path, data: Path, options: QuantizeOptions) -> dict[str, Any]:
    """The accuracy of *written* and of *ref* on the same puzzles, and the paired difference.

    Raises:
        ModelError: more was lost than ``options.max_drop``.
    """
    asked = EvalOptions(n=options.n, max_new_tokens=options.max_new_tokens)
    # Where it can be, by a program that did not write it.
    runtime = "llama-cpp" if options.format == "gguf" and engines.installed("llama-cpp") else "auto"
    with tempfile.TemporaryDirectory() as name:
        before = evaluation.evaluate(
            asked, model=ref.source, revision=ref.revision, data=data, out=Path(name, "before")
        )
        own = replace(asked, engine=runtime, agreement=0)
        after = evaluation.evaluate(own, model=str(written), data=data, out=Path(name, "after"))
    change = comparison.difference(before, after)
    if options.max_drop is not None and -100 * change["difference"] > options.max_drop:
        raise ModelError(
            f"{ref.source} lost {-100 * change['difference']:.1f} points of accuracy in this format, more than "
            f"--max-drop {options.max_drop:g}, so nothing was written; give a finer format or a higher limit."
        )
    keys = ("accuracy", "n", "correct", "interval")
    return change | {
        "runtime": after.metrics["engine"],
        "before": {k: before.metrics[k] for k in keys},
        "after": {k: after.metrics[k] for k in keys},
    }


def _libraries(format: str) -> tuple[str, ...]:
    runtime = ("xllamacpp",) if format == "gguf" and engines.installed("llama-cpp") else ()
    return LIBRARIES[format] + runtime


def _refuse(ref: ModelRef, format: str) -> None:
    if ref.base is not None:
        raise ModelError(f"{ref.source} is an adapter; fold it into its base first with `countdown-rl merge`.")
    if ref.kind == "gguf":
        raise ModelError(f"{ref.source} is a GGUF file, quantized in its own way; give a safetensors checkpoint.")
    merged_into = ref.manifest.facts.get("base") if ref.manifest is not None else None
    if merged_into == "dequantized" and format == "nf4":
        raise ModelError(
            f"{ref.source} was merged into de-quantized weights, and NF4 would round the adapter away again; "
            "run `countdown-rl merge --base original` and quantize that."
        )


def _tensors(
    source: Checkpoint, slots: Mapping[str, Slot], packed: Collection[str], turned: Collection[str]
) -> Iterator[tuple[str, torch.Tensor]]:
    for name in source.slots:
        weight = source.read(name)
        if name not in packed:
            yield name, weight.to(slots[name].dtype)
        else:
            yield from nf4.pack(name, weight.T if name in turned else weight).items()
