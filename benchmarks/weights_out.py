"""Memory and time of merge and quantize, beside PEFT's merge_and_unload and loading the model with transformers.

A random Llama in several shards with an adapter on every linear layer; each part, making the model too, runs in its own
process, whose peak resident memory the operating system reports (Linux counts the peak of the process that started it).

    python -m benchmarks.weights_out [--layers 16] [--folder DIR]
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import bench
from countdown_rl.cli.quiet import silence_libraries


def make(folder: Path, layers: int) -> None:
    import torch
    from huggingface_hub import save_torch_state_dict
    from peft import LoraConfig, get_peft_model
    from safetensors.torch import save_file
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    config = LlamaConfig(
        vocab_size=32_000,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        tie_word_embeddings=True,
        dtype="bfloat16",
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    base, adapter = folder / "base", folder / "peft"
    base.mkdir(parents=True)
    adapter.mkdir()
    shapes = {name: tuple(value.shape) for name, value in model.named_parameters()}
    torch.manual_seed(0)
    values = {name: (torch.randn(shape) * 0.02).bfloat16() for name, shape in shapes.items()}
    save_torch_state_dict(values, base, max_shard_size=600_000_000)
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(base)
    core = Tokenizer(models.WordLevel({"<end>": 0, "a": 1}, unk_token="a"))
    PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<end>").save_pretrained(base)
    with torch.device("meta"):
        peft = get_peft_model(
            model,
            LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"),
        )
    lora = {
        name.replace(".default", ""): torch.randn(value.shape) * 0.01
        for name, value in peft.named_parameters()
        if "lora_" in name
    }
    save_file(lora, adapter / "adapter_model.safetensors")
    peft.peft_config["default"].base_model_name_or_path = str(base)
    peft.peft_config["default"].save_pretrained(adapter)


def ours(folder: Path) -> None:
    from countdown_rl.export import merge
    from countdown_rl.export.config import MergeOptions
    from countdown_rl.models import reference

    silence_libraries()
    merge.merge_adapter(
        reference.find_model(str(folder / "peft")), folder / "merged", MergeOptions()
    )


def peft(folder: Path) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder / "base", dtype=torch.bfloat16)
    PeftModel.from_pretrained(model, folder / "peft").merge_and_unload().save_pretrained(
        folder / "by-peft"
    )
    for path in (
        folder / "by-peft"
    ).iterdir():  # ours is not finished before its files are on the disk
        with path.open("rb") as stream:
            os.fsync(stream.fileno())


def same(folder: Path) -> None:
    import torch

    from countdown_rl.models.checkpoint import Checkpoint

    a, b = Checkpoint(folder / "merged"), Checkpoint(folder / "by-peft")
    equal = sum(torch.equal(a.read(name), b.read(name)) for name in a.specs)
    print(json.dumps({"equal": equal, "differing": len(b.specs) - equal}))


def ours_nf4(folder: Path) -> None:
    from countdown_rl.export import quantize
    from countdown_rl.export.config import QuantizeOptions
    from countdown_rl.models import reference

    silence_libraries()
    quantize.quantize_model(
        reference.find_model(str(folder / "merged")), folder / "quantized", QuantizeOptions()
    )


def load_whole(folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder / "merged", dtype=torch.bfloat16)
    sum(value.sum() for value in model.parameters())  # touch every page


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--only")
    options = parser.parse_args()
    if options.only:
        begin = time.perf_counter()
        globals()[options.only](
            options.folder, *([options.layers] if options.only == "make" else [])
        )
        if options.only in ("make", "same"):
            return
        used = resource.getrusage(resource.RUSAGE_SELF)
        line = {
            "seconds": round(time.perf_counter() - begin, 1),
            "processor_seconds": round(used.ru_utime + used.ru_stime, 1),
            "peak_mb": round(used.ru_maxrss / 1e3),
        }
        print(json.dumps(line))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        command = [
            sys.executable,
            "-m",
            "benchmarks.weights_out",
            "--layers",
            str(options.layers),
            "--folder",
            name,
        ]
        subprocess.run([*command, "--only", "make"], check=True, stderr=subprocess.DEVNULL)
        shards = [path.stat().st_size for path in (folder / "base").glob("*.safetensors")]
        result = {"largest_shard_mb": round(max(shards) / 1e6), "shards": len(shards)}
        for method in ("ours", "peft", "same", "ours_nf4", "load_whole"):
            done = subprocess.run(
                [*command, "--only", method],
                check=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            result[method] = json.loads(done.stdout)
    bench.save("weights_out", {"layers": options.layers, **result, "bars": bars(result)})


def bars(result: dict[str, Any]) -> dict[str, bool]:
    """Return which of the bars set for these commands are met; in processor time, since the machine may be shared."""
    return {
        "merge_peak_at_most_1.5_shards_and_600_mb": result["ours"]["peak_mb"]
        <= 1.5 * result["largest_shard_mb"] + 600,
        "merge_no_slower_than_merge_and_unload": result["ours"]["processor_seconds"]
        <= result["peft"]["processor_seconds"],
        "merge_bit_for_bit": result["same"]["differing"] == 0,
        "nf4_peak_at_most_a_third_of_loading_whole": 3 * result["ours_nf4"]["peak_mb"]
        <= result["load_whole"]["peak_mb"],
    }


if __name__ == "__main__":
    main()
