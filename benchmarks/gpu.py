"""Measurements that need a GPU: the recipes, the pipeline, vLLM, decoding, gradients and resuming; offline.

    python -m benchmarks.gpu [PART ...] [--model DIR] [--out DIR] [--tiny]

Without names all parts run, in order of value, each in a process of its own with a time limit. A part writes
``gpu-<part>.json`` to ``benchmarks/results`` (or --out) as soon as it ends: its figures, or why it was skipped or
failed. Nothing is downloaded: random weights in published shapes are made on the card, with the tokenizer of
countdown-tiny. --model is a supervised start of SmolLM2-135M (``stages/recipes/smollm2-135m.sh`` writes it to
``OUT/sft``). ``--tiny`` replaces the shapes and shortens the runs, to test the parts on a CPU.

Without installing this package it needs torch, transformers, peft, accelerate, trl, bitsandbytes, datasets, numba,
gguf, jsonlines, typer, rich and pyyaml.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import bench

ROOT = Path(__file__).parent.parent

#: Published dimensions (config.json of each model).
SHAPES: dict[str, dict[str, Any]] = {
    "smollm2-135m": {
        "model_type": "llama",
        "hidden_size": 576,
        "intermediate_size": 1_536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49_152,
        "max_position_embeddings": 8_192,
        "tie_word_embeddings": True,
    },
    "qwen2.5-3b": {
        "model_type": "qwen2",
        "hidden_size": 2_048,
        "intermediate_size": 11_008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "vocab_size": 151_936,
        "max_position_embeddings": 32_768,
        "tie_word_embeddings": True,
    },
    "llama-3.1-8b": {
        "model_type": "llama",
        "hidden_size": 4_096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128_256,
        "max_position_embeddings": 131_072,
        "tie_word_embeddings": False,
    },
    "qwen3-0.6b": {
        "model_type": "qwen3",
        "hidden_size": 1_024,
        "intermediate_size": 3_072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151_936,
        "max_position_embeddings": 40_960,
        "tie_word_embeddings": True,
    },
    # For what does not depend on size: gradients, and the bytes after a kill.
    "qwen2-small": {
        "model_type": "qwen2",
        "hidden_size": 512,
        "intermediate_size": 1_024,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "vocab_size": 8_192,
        "max_position_embeddings": 2_048,
        "tie_word_embeddings": True,
    },
}
#: Of ``--tiny``; heads of 64, since vLLM has no CPU kernel for smaller ones.
TINY = {"hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 3_328}
TINY |= {"num_attention_heads": 2, "num_key_value_heads": 1}

#: The parts, in order of value, and the most minutes that each may take.
MINUTES = {
    "recipe-llama-3.1-8b-countdown": 6,
    "recipe-smollm2": 9.5,
    "pipeline": 9.5,
    "vllm-rollouts": 6,
    "vllm-rollouts-nf4": 6,
    "decode": 6,
    "gradients": 4,
    "resume": 5,
}


class Skipped(Exception):  # noqa: N818 - no error
    """A part cannot run here; the text says why."""


@dataclass(frozen=True)
class Settings:
    """A part, its directory (*place*, empty at first), the supervised start, and whether it is only tested."""

    part: str
    place: Path
    model: Path | None = None
    tiny: bool = False

    def pick(self, full: Any, tiny: Any) -> Any:
        return tiny if self.tiny else full

    def save_progress(self, result: dict[str, Any]) -> None:
        """Keep the figures so far, in case the part is stopped."""
        bench.save(f"gpu-{self.part}", {"device": device(), "unfinished": True, **result})


def varied(completions: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
    """A reward that differs within a group of random completions, so that each has a backward pass."""
    return [sum(ids) % 97 / 97 for ids in completion_ids]


def device() -> str:
    """The name of the GPU, or "cpu"."""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def environment() -> dict[str, str]:
    """The environment of a process that imports this checkout."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}


def run_part(name: str, *, model: Path | None = None, tiny: bool = False) -> dict[str, Any]:
    """Run a part in this process and save its result; a failure is a result too."""
    from benchmarks import gpu_parts

    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="countdown-rl-gpu-", ignore_cleanup_errors=True) as place:
        try:
            result = gpu_parts.PARTS[name](Settings(name, Path(place), model, tiny))
        except Skipped as error:
            result = {"skipped": str(error)}
        except Exception as error:
            traceback.print_exc()
            before = _read(name)
            result = (before if before.get("unfinished") else {}) | {"failed": f"{type(error).__name__}: {error}"}
    seconds = round(time.perf_counter() - begin, 1)
    result |= {"device": device(), "seconds": seconds} | ({"tiny": True} if tiny else {})
    bench.save(f"gpu-{name}", result)
    return result


def _read(name: str) -> dict[str, Any]:
    file = bench.RESULTS / f"gpu-{name}.json"
    return json.loads(file.read_text()) if file.is_file() else {}


def run_all(names: list[str], words: list[str]) -> dict[str, str]:
    """Run the parts *names*, each in a process of its own with the arguments *words*; return the outcome of each."""
    outcomes = {}
    for name in names:
        print(f"gpu: {name}", file=sys.stderr, flush=True)
        (bench.RESULTS / f"gpu-{name}.json").unlink(missing_ok=True)
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gpu", name, "--alone", *words],
            cwd=ROOT,
            env=environment(),
            start_new_session=True,  # so that its children are stopped with it
            stdout=subprocess.DEVNULL,
        )
        try:
            status = f"exit status {process.wait(timeout=MINUTES[name] * 60)}"
        except subprocess.TimeoutExpired:
            status = f"stopped after {MINUTES[name]} minutes"
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        result = _read(name)
        if not result or result.get("unfinished"):
            result = {key: value for key, value in result.items() if key != "machine"} | {"failed": status}
            bench.save(f"gpu-{name}", result)
        outcomes[name] = next((f"{key}: {result[key]}" for key in ("failed", "skipped") if key in result), "done")
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(MINUTES))
    parser.add_argument("--model", type=Path, help="supervised start of SmolLM2-135M")
    parser.add_argument("--out", type=Path, default=bench.RESULTS, help="directory of the results")
    parser.add_argument("--tiny", action="store_true", help="small shapes and short runs, to test the parts")
    parser.add_argument("--alone", action="store_true", help="run the parts in this process")
    args = parser.parse_args()
    if unknown := set(args.parts) - set(MINUTES):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; the parts are {', '.join(MINUTES)}")
    bench.RESULTS = args.out.resolve()
    names = args.parts or list(MINUTES)
    model = args.model and args.model.resolve()
    if args.alone:
        for name in names:
            run_part(name, model=model, tiny=args.tiny)
        return
    from countdown_rl.models import load

    if warning := load.unused_gpu():
        print(warning, file=sys.stderr)
    words = ["--out", str(bench.RESULTS), *(["--model", str(model)] if model else []), *(["--tiny"] * args.tiny)]
    outcomes = run_all(names, words)
    for name, outcome in outcomes.items():
        print(f"{name:30} {outcome}")
    if any(outcome.startswith("failed") for outcome in outcomes.values()):
        sys.exit(1)


if __name__ == "__main__":
    from benchmarks import gpu  # the module that the parts import

    gpu.main()
