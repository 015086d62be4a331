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
from pathlib import Path
from typing import Any

from benchmarks import bench
from benchmarks.gpu_settings import ROOT, Settings, Skipped, device, environment

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


def run_part(name: str, *, model: Path | None = None, tiny: bool = False) -> dict[str, Any]:
    """Run a part in this process and save its result; a failure is a result too."""
    from benchmarks import gpu_parts

    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(
        prefix="countdown-rl-gpu-", ignore_cleanup_errors=True
    ) as place:
        try:
            result = gpu_parts.PARTS[name](Settings(name, Path(place), model, tiny))
        except Skipped as error:
            result = {"skipped": str(error)}
        except Exception as error:
            traceback.print_exc()
            before = _read(name)
            result = (before if before.get("unfinished") else {}) | {
                "failed": f"{type(error).__name__}: {error}"
            }
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
            result = {key: value for key, value in result.items() if key != "machine"} | {
                "failed": status
            }
            bench.save(f"gpu-{name}", result)
        outcomes[name] = next(
            (f"{key}: {result[key]}" for key in ("failed", "skipped") if key in result), "done"
        )
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(MINUTES))
    parser.add_argument("--model", type=Path, help="supervised start of SmolLM2-135M")
    parser.add_argument("--out", type=Path, default=bench.RESULTS, help="directory of the results")
    parser.add_argument(
        "--tiny", action="store_true", help="small shapes and short runs, to test the parts"
    )
    parser.add_argument("--alone", action="store_true", help="run the parts in this process")
    args = parser.parse_args()
    if unknown := set(args.parts) - set(MINUTES):
        parser.error(
            f"there is no part {', '.join(sorted(unknown))}; the parts are {', '.join(MINUTES)}"
        )
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
    words = [
        "--out",
        str(bench.RESULTS),
        *(["--model", str(model)] if model else []),
        *(["--tiny"] * args.tiny),
    ]
    outcomes = run_all(names, words)
    for name, outcome in outcomes.items():
        print(f"{name:30} {outcome}")
    if any(outcome.startswith("failed") for outcome in outcomes.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
