"""Full-precision weights into fewer bits: NF4 as bitsandbytes stores it, W4A16 for vLLM, or GGUF for llama.cpp.

Written a tensor at a time, so that a model larger than memory can be done. NF4 and W4A16 go from safetensors
to safetensors: ``AutoModelForCausalLM.from_pretrained`` loads the result wherever bitsandbytes, or
compressed-tensors, is installed. Given puzzles, the result is loaded back and scored on them beside what it was
made from.
"""

import json
import shutil
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

from countdown_rl import artifacts
from countdown_rl.errors import ModelError, UsageError
from countdown_rl.evaluation import compare, evaluate
from countdown_rl.evaluation.config import EvalOptions
from countdown_rl.export import four_bit, gguf
from countdown_rl.export.config import QuantizeOptions
from countdown_rl.inference import engines
from countdown_rl.models import load, reference, w4a16
from countdown_rl.models.checkpoint import Checkpoint
from countdown_rl.models.reference import ModelRef

LIBRARIES = {
    "nf4": ("torch", "transformers", "bitsandbytes", "safetensors"),
    "gguf": ("torch", "transformers", "gguf"),
    "w4a16": ("torch", "transformers", "compressed-tensors", "safetensors"),
}


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
    if options.format == "w4a16":
        w4a16.check_installed()
    artifacts.check_writable(out, "quantized")
    source_path = reference.files(ref)
    if "quantization_config" in json.loads((source_path / "config.json").read_bytes()):
        raise ModelError(f"{ref.source} is quantized already; give the full-precision weights.")
    source = Checkpoint(source_path)
    inputs = {"model": ref.as_input()} | ({"data": artifacts.file_input(data)} if data is not None else {})
    with artifacts.writing(
        out, "quantized", options=asdict(options), inputs=inputs, libraries=_libraries(options.format)
    ) as draft:
        written = draft.path
        if options.format == "nf4":
            form = four_bit.as_nf4(source, source_path)
            draft.facts.update(four_bit.write(source, source_path, draft.path, form))
        elif options.format == "w4a16":
            form, facts = four_bit.as_w4a16(source, source_path)
            draft.facts.update(facts | four_bit.write(source, source_path, draft.path, form))
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


def _gguf(
    ref: ModelRef, source: Checkpoint, source_path: Path, out: Path, kind: str, name: str
) -> tuple[dict[str, Any], Path]:
    tokenizer = load.load_tokenizer(ref)
    file = out / f"model-{kind.upper()}.gguf"
    types = gguf.write(source, source_path, file, name=name, kind=kind, tokenizer=tokenizer)
    for beside in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (source_path / beside).is_file():
            shutil.copyfile(source_path / beside, out / beside)
    context = json.loads((source_path / "config.json").read_bytes())["max_position_embeddings"]
    if tokenizer.chat_template:
        (out / "Modelfile").write_text(gguf.modelfile(file.name, tokenizer, min(context, 8192)), "utf-8")
    facts = {
        "gguf_type": kind,
        "file": file.name,
        "tensors": types,
        "parameters": sum(slot.size // slot.dtype.itemsize for slot in source.slots.values()),
        "bytes": file.stat().st_size,
    }
    if engines.installed("llama-cpp"):
        from countdown_rl.export import gguf_check

        facts["llama_cpp"] = gguf_check.check(file, tokenizer)
    return facts, file


def _score(ref: ModelRef, written: Path, data: Path, options: QuantizeOptions) -> dict[str, Any]:
    """The accuracy of *written* and of *ref* on the same puzzles, and the paired difference.

    Raises:
        ModelError: more was lost than ``options.max_drop``.
    """
    asked = EvalOptions(limit=options.limit, max_new_tokens=options.max_new_tokens)
    # Where it can be, by a program that did not write it.
    runtime: Literal["llama-cpp", "auto"] = (
        "llama-cpp" if options.format == "gguf" and engines.installed("llama-cpp") else "auto"
    )
    with tempfile.TemporaryDirectory() as name:
        before = evaluate.evaluate(asked, model=ref.source, revision=ref.revision, data=data, out=Path(name, "before"))
        own = replace(asked, engine=runtime, agreement=0)
        after = evaluate.evaluate(own, model=str(written), data=data, out=Path(name, "after"))
    change = compare.difference(before, after)
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
