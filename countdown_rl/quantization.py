"""Full-precision weights into 4 bits: NF4 with double quantization, stored as bitsandbytes stores it.

Written a tensor at a time from safetensors to safetensors. ``AutoModelForCausalLM.from_pretrained`` loads
the result wherever bitsandbytes is installed, on a GPU or a CPU.
"""

import json
import shutil
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

import torch

from countdown_rl import artifacts, nf4, references, tensors
from countdown_rl.errors import ModelError
from countdown_rl.options import QuantizeOptions
from countdown_rl.references import ModelRef
from countdown_rl.tensors import Checkpoint, Slot

LIBRARIES = ("torch", "transformers", "bitsandbytes", "safetensors")

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


def quantize(ref: ModelRef, out: Path, options: QuantizeOptions) -> artifacts.Manifest:
    """Write the quantized artifact of *ref* at *out*.

    Raises:
        ModelError: *ref* is an adapter, is 4-bit already, is no safetensors checkpoint, or is a merge into
            de-quantized weights, from which NF4 would round the adapter away.
    """
    _refuse(ref)
    artifacts.check_writable(out, "quantized")
    source_path = references.files(ref)
    config = json.loads((source_path / "config.json").read_bytes())
    if "quantization_config" in config:
        raise ModelError(f"{ref.source} is quantized already; give the full-precision weights.")
    source = Checkpoint(source_path)
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
    with artifacts.writing(
        out, "quantized", options=asdict(options), inputs={"model": ref.as_input()}, libraries=LIBRARIES
    ) as draft:
        tensors.write(draft.path, slots, _tensors(source, slots, packed.keys(), turned))
        config.pop("torch_dtype", None)
        config |= {"dtype": "bfloat16", "quantization_config": RECIPE}
        (draft.path / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
        for file in sorted(source_path.iterdir()):
            if file.is_file() and file.suffix in (".json", ".jinja", ".model", ".txt") and file.name not in _OWN:
                shutil.copyfile(file, draft.path / file.name)
        parameters = sum(slot.size // slot.dtype.itemsize for slot in source.slots.values())
        size = sum(slot.size for slot in slots.values())
        in_four = sum(slot.size // slot.dtype.itemsize for name, slot in source.slots.items() if name in packed)
        draft.facts.update(
            format=options.format,
            parameters=parameters,
            parameters_in_4_bits=in_four,
            bytes=size,
            bytes_before=sum(slot.size for slot in source.slots.values()),
            bits_per_parameter=round(8 * size / parameters, 3),
        )
    return artifacts.read(out, "quantized", verify=False)


def _refuse(ref: ModelRef) -> None:
    if ref.base is not None:
        raise ModelError(f"{ref.source} is an adapter; fold it into its base first with `countdown-rl merge`.")
    if ref.kind == "gguf":
        raise ModelError(f"{ref.source} is a GGUF file, quantized in its own way; give a safetensors checkpoint.")
    merged_into = ref.manifest.facts.get("base") if ref.manifest is not None else None
    if merged_into == "dequantized":
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
