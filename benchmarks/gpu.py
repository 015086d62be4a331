"""Measurements that need a GPU: memory and pace of a recipe, vLLM rollouts, gradients and resuming;
offline.

    python -m benchmarks.gpu [PART ...] [--out DIR] [--tiny]

Each part runs in a process of its own with a time limit and writes ``gpu-<part>.json`` to
``benchmarks/results`` (or --out). Nothing is downloaded: random weights in published shapes are
made on the card, with the tokenizer of countdown-tiny. ``--tiny`` shrinks shapes and runs, to test
the parts on a CPU.
"""

import argparse
import hashlib
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks import bench, cards

VARIED = "benchmarks.gpu:varied=1"
#: Minutes that a part may take.
LIMIT = 8
#: Of ``--tiny``; heads of 64, since vLLM has no CPU kernel for smaller ones.
TINY = {"hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 3_328}
TINY |= {"num_attention_heads": 2, "num_key_value_heads": 1}


@dataclass(frozen=True)
class Place:
    """The directory of a part, empty at first, and whether the part is only tested."""

    path: Path
    tiny: bool

    def pick(self, full: Any, tiny: Any) -> Any:
        return tiny if self.tiny else full


def varied(completions: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
    """A reward that differs within a group of random completions, so that each has a backward
    pass.
    """
    return [sum(ids) % 97 / 97 for ids in completion_ids]


def command(place: Place, *words: Any) -> subprocess.Popen[bytes]:
    """Start a command of countdown-rl in *place*."""
    arguments = [sys.executable, "-m", "countdown_rl", *map(str, words)]
    return subprocess.Popen(arguments, cwd=place.path, env=cards.environment())


def run(place: Place, *words: Any) -> None:
    if status := command(place, *words).wait():
        raise RuntimeError(f"countdown-rl {words[0]} failed with status {status}")


def make_data(place: Place) -> Path:
    sizes = ("--n", 300, "--valid", 100, "--test", 10)
    run(place, "gen-data", *sizes, "--seed", 42, "--out", "data")
    return place.path / "data"


def make_checkpoint(place: Place, shape_name: str) -> Path:
    """Write random weights in a published shape, with the tokenizer of countdown-tiny."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from countdown_rl.models import load, reference

    path = place.path / shape_name
    tokenizer = load.load_tokenizer(reference.find_model("countdown-tiny"))
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    shape = cards.SHAPES[shape_name] | place.pick({}, TINY) | ends
    config = AutoConfig.for_model(**shape, bos_token_id=None)
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def train(place: Place, model: Path, options: Any) -> dict[str, Any]:
    """Train a few steps: their gradients, seconds and tokens, and the peak memory beside the
    computed one.
    """
    from countdown_rl.training import run as training
    from countdown_rl.training.grpo.run import prepare
    from countdown_rl.training.options import RunArguments

    out = place.path / "adapter"
    arguments = RunArguments(model=str(model), data=make_data(place), out=out)
    prepared = prepare(arguments, options)
    rows = training.train(prepared).rows
    result: dict[str, Any] = {
        "gradient_norms": [row.grad_norm for row in rows],
        "importance_sampling_ratios": [row.importance_sampling_ratio for row in rows],
        "seconds": rows[-1].seconds,
        "computed": prepared.memory.total,
    }
    if torch.cuda.is_available():
        result["peak"] = torch.cuda.max_memory_allocated()
    return result


def recipe(place: Place) -> dict[str, Any]:
    """Two steps of the Llama-3.1-8B recipe over random NF4 weights on 24 GB."""
    from countdown_rl.training import memory

    options = cards.recipe_options("llama-3.1-8b-countdown")
    options = replace(options, max_steps=2, save_steps=0, reward=(VARIED,))
    if place.tiny:
        small = {"prompts": 2, "num_generations": 2, "micro_batch": 4, "max_completion_length": 8}
        options = replace(options, **small)
    available = cards.CARD
    if torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(available / torch.cuda.mem_get_info()[1])
    model = make_checkpoint(place, "llama-3.1-8b")
    with mock.patch.object(memory, "_device_memory", return_value=available):
        return train(place, model, options)


def vllm_rollouts(place: Place) -> dict[str, Any]:
    """A few steps at a high rate with rollouts by vLLM, at the shape of Qwen2.5-3B."""
    from countdown_rl.training.options import TrainOptions

    if find_spec("vllm") is None:
        return {"skipped": "vllm is not installed"}
    options = TrainOptions(
        max_steps=place.pick(3, 2),
        prompts=place.pick(8, 2),
        num_generations=place.pick(8, 2),
        micro_batch=place.pick(8, 2),
        max_completion_length=place.pick(256, 8),
        learning_rate=1e-2,
        trl=("gradient_checkpointing=true",),
        precision="bf16",
        rollouts="vllm",
        reward=(VARIED,),
        save_steps=0,
    )
    return train(place, make_checkpoint(place, "qwen2.5-3b"), options)


def resume(place: Place) -> dict[str, Any]:
    """A run killed after its first checkpoint and continued, against one that was not, over NF4
    weights.
    """
    make_data(place)
    model = make_checkpoint(place, "qwen2-small").name
    sizes = ("--max-steps", 6, "--save-steps", 2, "--prompts", 2, "--num-generations", 4)
    sizes += ("--micro-batch", 4, "--max-completion-length", place.pick(400, 8))
    shared = ("--model", model, "--data", "data", "--reward", VARIED, "--precision", "nf4")

    def words(name: str) -> tuple[Any, ...]:
        paths = ("--out", name, "--log", f"{name}-run/log.csv")
        return ("train", *shared, *paths, *sizes, "--rollouts", "transformers")

    run(place, *words("whole"))
    process = command(place, *words("killed"))
    checkpoints = place.path / "killed-run" / "checkpoints"
    while process.poll() is None and not list(checkpoints.glob("checkpoint-*/complete")):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    run(place, *words("killed"))
    digests = [
        hashlib.sha256((place.path / name / "adapter_model.safetensors").read_bytes()).hexdigest()
        for name in ("whole", "killed")
    ]
    return {"same_bytes": digests[0] == digests[1]}


PARTS = {"recipe": recipe, "vllm-rollouts": vllm_rollouts, "resume": resume}


def run_part(name: str, tiny: bool) -> None:
    """Run a part in this process and save its result."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as path:
        started = time.perf_counter()
        result = PARTS[name](Place(Path(path), tiny))
    about = {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "seconds": round(time.perf_counter() - started, 1),
        "tiny": tiny,
    }
    bench.save(f"gpu-{name}", {**result, **about})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--out", type=Path, default=bench.RESULTS, help="directory of the results")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--alone", action="store_true", help="run the part in this process")
    args = parser.parse_args()
    bench.RESULTS = args.out.resolve()
    if args.alone:
        run_part(args.parts[0], args.tiny)
        return
    failed = False
    for name in args.parts or PARTS:
        words = [sys.executable, "-m", "benchmarks.gpu", name, "--alone", "--out", args.out]
        words += ["--tiny"] * args.tiny
        try:
            done = subprocess.run(
                [*map(str, words)],
                env=cards.environment(),
                stdout=subprocess.DEVNULL,
                timeout=LIMIT * 60,
            )
            outcome = "done" if done.returncode == 0 else f"exit status {done.returncode}"
        except subprocess.TimeoutExpired:
            outcome = f"stopped after {LIMIT} minutes"
        print(f"{name:20} {outcome}")
        failed |= outcome != "done"
    sys.exit(failed)


if __name__ == "__main__":
    main()
