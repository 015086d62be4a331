"""The parts of ``benchmarks.gpu``: each takes its settings and returns its figures."""

import gc
import hashlib
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import yaml

from benchmarks import cards, learning
from benchmarks.gpu_settings import ROOT, SHAPES, TINY, Settings, Skipped, environment, varied
from countdown_rl.cli.quiet import silence_libraries
from countdown_rl.models import load, reference

VARIED = ("benchmarks.gpu_settings:varied=1",)


def command(settings: Settings, *words: Any, check: bool = True) -> dict[str, Any]:
    """Run a command of countdown-rl in the part's directory; its JSON and its seconds."""
    begin = time.perf_counter()
    done = subprocess.run(
        _words(*words), cwd=settings.place, env=environment(), stdout=subprocess.PIPE, text=True
    )
    if check and done.returncode:
        raise RuntimeError(
            f"countdown-rl {' '.join(map(str, words))} failed with status {done.returncode}"
        )
    return json.loads(done.stdout) | {"command_seconds": round(time.perf_counter() - begin, 1)}


def _words(*words: Any) -> list[str]:
    return [sys.executable, "-m", "countdown_rl", *map(str, words), "--json"]


def make_data(settings: Settings) -> Path:
    command(
        settings,
        "gen-data",
        "--n",
        300,
        "--valid",
        100,
        "--test",
        10,
        "--seed",
        42,
        "--out",
        "data",
    )
    return settings.place / "data"


def make_checkpoint(settings: Settings, name: str) -> Path:
    """A checkpoint of random weights in the shape *name*, with the tokenizer of countdown-tiny."""
    from transformers import AutoConfig, AutoModelForCausalLM

    silence_libraries()
    tokenizer = load.load_tokenizer(reference.find_model("countdown-tiny"))
    ends = {
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
    }
    shape = SHAPES[name] | (TINY if settings.tiny else {}) | ends
    config = AutoConfig.for_model(shape.pop("model_type"), **shape)
    torch.manual_seed(0)
    with torch.device(load.device_name("auto")):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    path = settings.place / name
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    del model
    reset_peak()
    return path


def reset_peak() -> None:
    gc.collect()  # a trainer refers to itself
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


@contextmanager
def decoding(way: str) -> Iterator[None]:
    """Decode by ``generate``, or by ``graphs``, whose steps run one by one on a CPU."""
    from countdown_rl.inference import cpu_decoder, graph_decoder

    supports = graph_decoder.supports if way == "graphs" else lambda model: False
    with (
        mock.patch.object(cpu_decoder, "supports", supports),
        mock.patch.object(
            cpu_decoder, "Decoder", lambda model, _: graph_decoder.GraphDecoder(model)
        ),
        mock.patch.object(graph_decoder, "supports", supports),
    ):
        yield


def complete(loaded: Any, prompts: list[list[int]], tokens: int) -> float:
    """Complete *prompts* (token ids) greedily; tokens a second."""
    from countdown_rl.inference.generate import Decoding, Generator

    generator = Generator(loaded, Decoding(tokens))
    begin = time.perf_counter()
    completions = generator.complete(prompts)
    seconds = time.perf_counter() - begin
    count = sum(completion.tokens or 0 for completion in completions)
    return round(count / seconds, 1)


@torch.no_grad()
def logit_difference(model: Any, prompts: list[list[int]], tokens: int) -> float:
    """The largest difference of logits between graphs and whole sequences of the same tokens, after eight *prompts*, in
    standard deviations of the logits; texts of random weights differ at the first near tie."""
    from countdown_rl.inference.graph_decoder import GraphDecoder

    shortest = min(map(len, prompts))  # of one length, so that no row is padded
    prompts = [prompt[:shortest] for prompt in prompts[:8]]
    _, steps = GraphDecoder(model)._read(prompts, tokens)  # noqa: SLF001 - decoding samples its own tokens
    forced = torch.randint(
        5, 3_000, (steps.rows, tokens), generator=torch.Generator().manual_seed(2)
    )
    forced = forced.to(model.device)
    ours = torch.stack([steps.step(column).clone() for column in forced.T], 1)[
        : len(prompts)
    ].float()
    ids = torch.cat([torch.tensor(prompts, device=model.device), forced[: len(prompts)]], 1)
    theirs = model(input_ids=ids, use_cache=False).logits[:, shortest:].float()
    return round(float((ours - theirs).abs().max() / theirs.std()), 4)


def train(settings: Settings, model: Path, data: Path, options: Any, name: str) -> dict[str, Any]:
    """Train a few steps: seconds and tokens a second of the last one, and the peak against ``train --check``."""
    from countdown_rl.training import run as training
    from countdown_rl.training.grpo.run import prepare
    from countdown_rl.training.options import RunArguments

    reset_peak()
    place = settings.place / name
    arguments = RunArguments(
        model=str(model), data=data, out=place / "adapter", checkpoints=place / "checkpoints"
    )
    prepared = prepare(arguments, options)
    rows = training.train(prepared).rows
    last = rows[-1]
    tokens = last.mean_length * options.step_size
    result: dict[str, Any] = {
        "options": {
            key: getattr(options, key) for key in ("prompts", "num_generations", "micro_batch")
        },
        "completion_tokens": last.mean_length,
        "gradient_norms": [row.grad_norm for row in rows],
        "seconds": {
            key: getattr(last, f"seconds{key and '_'}{key}") for key in ("", "generation", "loss")
        },
        "tokens_a_second": {
            "generation": round(tokens / last.seconds_generation, 1),
            "loss": round(tokens / max(last.seconds_loss, 1e-9), 1),
        },
        "importance_sampling_ratios": [row.importance_sampling_ratio for row in rows],
        "adapter_bytes": (place / "adapter" / "adapter_model.safetensors").stat().st_size,
        "estimate": prepared.memory.estimates[-1].as_dict(),
    }
    if torch.cuda.is_available():
        peak = torch.cuda.max_memory_allocated()
        result |= {"peak": peak, "reserved": torch.cuda.max_memory_reserved()}
        result["peak_over_estimate"] = round(peak / prepared.memory.estimates[-1].peak, 3)
    return result


def recipe_llama(settings: Settings) -> dict[str, Any]:
    """Two steps of the Llama-3.1-8B recipe over random NF4 weights on 24 GB, by ``generate`` and by graphs."""
    from countdown_rl.training import memory

    options = replace(
        cards.recipe_options("llama-3.1-8b-countdown"), max_steps=2, save_steps=0, reward=VARIED
    )
    if settings.tiny:
        options = replace(
            options, prompts=2, num_generations=2, micro_batch=4, max_completion_length=8
        )
    model, data = make_checkpoint(settings, "llama-3.1-8b"), make_data(settings)
    available = int(cards.CARDS["24 GB"].memory)
    if torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(available / torch.cuda.mem_get_info()[1])
    result: dict[str, Any] = {"available": available}
    for way in ("generate", "graphs"):
        with decoding(way), mock.patch.object(memory, "_device_memory", return_value=available):
            result[way] = train(settings, model, data, options, way)
        settings.save_progress(result)
    from countdown_rl.models import chat_template
    from countdown_rl.tasks import jsonl

    loaded = load.load_model(
        reference.find_model(str(settings.place / "graphs" / "adapter")), precision="nf4"
    )
    rows = jsonl.read_rows(data / "train.jsonl")[: settings.pick(8, 2)]
    prompts = chat_template.encode(loaded.tokenizer, [row.messages() for row in rows])
    return result | {
        "logit_difference": logit_difference(loaded.model, prompts, options.max_completion_length)
    }


def recipe_smollm2(settings: Settings) -> dict[str, Any]:
    """GRPO of the SmolLM2-135M recipe from its supervised start: accuracy before and after, greedy and sampled."""
    if settings.model is None and not settings.tiny:
        raise Skipped("no supervised start was given (--model)")
    model = settings.model or make_checkpoint(settings, "smollm2-135m")
    gguf = settings.place / "model.gguf"
    gguf.touch()  # the recipe's own start, which is not used
    quick = settings.pick((), ("--quick",))
    commands = cards.recipe_commands("smollm2-135m", settings.place / "recipe", gguf, *quick)
    words = {command[0]: command for command in commands}  # the last evaluation samples
    greedy = next(command for command in commands if command[0] == "eval")
    command(settings, *words["gen-data"])
    result: dict[str, Any] = {}

    def evaluate(name: str, model: Any) -> None:
        for way, words_of_way in (("greedy", greedy), ("sampled", words["eval"])):
            out = f"eval/{name}-{way}"
            metrics = command(settings, *words_of_way, "--model", model, "--out", out)
            keys = ("accuracy", "n", "interval", "pass_at", "mean_tokens", "command_seconds")
            result[f"{name}_{way}"] = {key: metrics[key] for key in keys if key in metrics}
            settings.save_progress(result)

    evaluate("start", model)
    facts = command(
        settings,
        *words["train"],
        "--model",
        model,
        "--eval-every",
        settings.pick(20, 1),
        "--seed",
        44,
    )
    keys = ("reward_first", "reward_last_tenth", "correct_last_tenth", "steps", "command_seconds")
    result["training"] = {key: facts[key] for key in keys}
    evaluate("trained", "adapter")
    return result


#: What ``--tiny`` adds to the commands of the pipeline.
_TINY = {
    "gen-data": ("--n", 300, "--valid", 20, "--test", 20),
    "train": (
        "--max-steps",
        2,
        "--prompts",
        2,
        "--num-generations",
        4,
        "--max-completion-length",
        16,
    ),
    "eval": ("--limit", 10, "--max-new-tokens", 16),
}


def pipeline(settings: Settings) -> dict[str, Any]:
    """Every stage of ``dvc.yaml`` on the shipped model, and ``verify``: seconds and accuracies."""
    seconds, accuracies = {}, {}
    for stage, words in pipeline_commands():
        facts = command(settings, *words, *(_TINY.get(words[0], ()) if settings.tiny else ()))
        seconds[stage] = facts["command_seconds"]
        if words[0] == "eval":
            accuracies[stage.partition("@")[2]] = facts["accuracy"]
        settings.save_progress({"stage_seconds": seconds, "accuracies": accuracies})
    limits = settings.pick((), ("--limit", 4, "--fresh", 4))
    report = command(
        settings, "verify", "artifacts/release", *limits, check=False
    )  # it fails if nothing is confirmed
    return {"stage_seconds": seconds, "accuracies": accuracies, "verify": report}


def pipeline_commands() -> list[tuple[str, list[str]]]:
    """The commands of ``dvc.yaml`` by stage (``eval@base``), each after those that write what it reads."""
    file = yaml.safe_load((ROOT / "dvc.yaml").read_text())
    values: dict[str, Any] = {}
    for variable in file["vars"]:
        values |= (
            variable
            if isinstance(variable, dict)
            else yaml.safe_load((ROOT / variable).read_text())
        )
    waiting = {}
    for name, stage in file["stages"].items():
        for key, item in stage.get("foreach", {"": ""}).items():
            own = values | {"key": key, "item": item}
            body = stage.get("do", stage)
            paths = {
                kind: [_resolved(path, own) for path in _paths(body.get(kind, []))]
                for kind in ("deps", "outs")
            }
            waiting[f"{name}@{key}" if key else name] = (
                _resolved(body["cmd"], own).split()[1:],
                paths,
            )
    commands = []
    while waiting:
        missing = [out for _, paths in waiting.values() for out in paths["outs"]]
        ready = [
            name
            for name, (_, paths) in waiting.items()
            if not any(
                out == dep or out.startswith(f"{dep}/") for out in missing for dep in paths["deps"]
            )
            and not any(dep.startswith(f"{out}/") for out in missing for dep in paths["deps"])
        ]
        commands += [(name, waiting.pop(name)[0]) for name in ready]
    return commands


def _paths(entries: list[Any]) -> list[str]:
    return [entry if isinstance(entry, str) else next(iter(entry)) for entry in entries]


def _resolved(text: str, values: dict[str, Any]) -> str:
    """*text* with DVC's ``${name}`` replaced, and sections of options by their flags."""

    def value(match: re.Match[str]) -> str:
        found = reduce(lambda part, key: part[key], match[1].split("."), values)
        return _resolved(
            " ".join(learning.flags(match[1])) if isinstance(found, dict) else str(found), values
        )

    return re.sub(r"\$\{([\w.-]+)\}", value, text)


def vllm_rollouts(settings: Settings, precision: str = "bf16") -> dict[str, Any]:
    """Memory, tokens a second and importance ratios of a few steps with rollouts by vLLM, at a high learning rate."""
    from countdown_rl.training.options import TrainOptions

    if find_spec("vllm") is None:
        raise Skipped("vllm is not installed")
    if not settings.tiny and not torch.cuda.is_available():
        raise Skipped("there is no GPU")
    options = TrainOptions(
        max_steps=settings.pick(3, 2),
        prompts=settings.pick(8, 2),
        num_generations=settings.pick(8, 2),
        micro_batch=settings.pick(8, 2),
        max_completion_length=settings.pick(256, 8),
        learning_rate=1e-2,
        gradient_checkpointing=True,
        precision=precision,  # type: ignore[arg-type]
        rollouts="vllm",
        reward=VARIED,
        save_steps=0,
    )
    return train(
        settings, make_checkpoint(settings, "qwen2.5-3b"), make_data(settings), options, "vllm"
    )


def decode(settings: Settings) -> dict[str, Any]:
    """Tokens a second of graphs and of ``generate``, and the difference of logits, by shape and precision."""
    tokens, result = settings.pick(64, 8), {}
    draw = torch.Generator().manual_seed(1)
    for shape in ("smollm2-135m", "qwen2.5-3b", "llama-3.1-8b"):
        model = make_checkpoint(settings, shape)
        for precision in ("nf4", "bf16"):
            loaded = load.load_model(reference.find_model(str(model)), precision=precision)
            for rows in settings.pick((64, 256, 1024), (4,)):
                lengths = torch.randint(60, 100, (rows,), generator=draw).tolist()
                prompts = [torch.randint(5, 3_000, (n,), generator=draw).tolist() for n in lengths]
                speeds = {}
                for way in ("graphs", "generate"):
                    with decoding(way):
                        complete(loaded, prompts[:2], 2)  # loads kernels
                        speeds[way] = complete(loaded, prompts, tokens)
                figures = {
                    "tokens_a_second": speeds,
                    "logit_difference": logit_difference(loaded.model, prompts, tokens),
                }
                result[f"{shape} {precision} {rows}"] = figures
                settings.save_progress(result)
            del loaded
            reset_peak()
    return result


def resume(settings: Settings) -> dict[str, Any]:
    """A run killed after its first checkpoint and continued, against one that was not, over NF4 weights."""
    from safetensors.torch import load_file

    make_data(settings)
    model = make_checkpoint(settings, "qwen2-small").name
    options = (
        "--precision",
        "nf4",
        "--max-steps",
        6,
        "--save-steps",
        2,
        "--prompts",
        2,
        "--num-generations",
        4,
    )
    options += (
        "--micro-batch",
        4,
        "--max-completion-length",
        settings.pick(400, 8),
        "--rollouts",
        "transformers",
    )

    def words(name: str) -> tuple[Any, ...]:
        paths = ("--out", name, "--log", f"{name}.csv", "--checkpoints", f"{name}-checkpoints")
        return ("train", "--model", model, "--data", "data", *paths, "--reward", *VARIED, *options)

    command(settings, *words("whole"))
    process = subprocess.Popen(_words(*words("killed")), cwd=settings.place, env=environment())
    while process.poll() is None and not list(
        settings.place.glob("killed-checkpoints/checkpoint-*/complete")
    ):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    continued = command(settings, *words("killed"))
    if not continued["resumed"]:
        raise RuntimeError("the killed run left no checkpoint to resume from")
    files = [settings.place / name / "adapter_model.safetensors" for name in ("whole", "killed")]
    whole, killed = map(load_file, files)
    digests = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
    difference = max(float((whole[key] - killed[key]).abs().max()) for key in whole)
    return {
        "resumed": continued["resumed"],
        "same_bytes": digests[0] == digests[1],
        "largest_difference": difference,
    }


def gradients(settings: Settings) -> dict[str, Any]:
    """Gradients of one step over NF4 weights: this package's trainer against TRL's, on the same completions."""
    import datasets
    import peft
    from torch.optim.optimizer import register_optimizer_step_pre_hook
    from trl import GRPOConfig, GRPOTrainer

    from countdown_rl.inference.generate import STOP
    from countdown_rl.inference.sampling import Stop
    from countdown_rl.models import lora
    from countdown_rl.tasks import jsonl
    from countdown_rl.training.grpo import rollouts, trl
    from countdown_rl.training.grpo.prompts import in_turn
    from countdown_rl.training.grpo.run import prepare
    from countdown_rl.training.options import RunArguments, TrainOptions
    from countdown_rl.training.run import train

    base, data = make_checkpoint(settings, "qwen2-small"), make_data(settings)
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
        reward=VARIED,
        save_steps=0,
    )
    # Both start from one adapter, neither half of which is zero.
    loaded = load.load_model(reference.find_model(str(base)), precision="nf4")
    torch.manual_seed(1)
    config = peft.LoraConfig(
        r=8, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False
    )
    adapter = settings.place / "start"
    adapter.mkdir()
    lora.save(peft.get_peft_model(loaded.model, config), adapter, base=str(base))
    loaded.tokenizer.save_pretrained(adapter)

    def completions(self: Any, prompt_ids: list[list[int]], *_: Any) -> Any:
        draw = torch.Generator().manual_seed(2)
        longest = options.max_completion_length
        lengths = torch.randint(2, longest + 1, (len(prompt_ids),), generator=draw).tolist()
        return [torch.randint(5, 3_000, (n,), generator=draw).tolist() for n in lengths], [
            None
        ] * len(lengths)

    recorded: list[torch.Tensor] = []

    def record(optimizer: Any, *_: Any) -> None:
        parameters = [
            parameter for group in optimizer.param_groups for parameter in group["params"]
        ]
        recorded.append(
            torch.cat([parameter.grad.double().cpu().flatten() for parameter in parameters])
        )

    hook = register_optimizer_step_pre_hook(record)
    try:
        with mock.patch.object(rollouts.Rollouts, "complete", completions):
            paths = {"out": settings.place / "adapter", "checkpoints": settings.place / "kept"}
            train(prepare(RunArguments(model=str(adapter), data=data, **paths), options))
            loaded = load.load_model(
                reference.find_model(str(adapter)), precision="nf4", trainable=True
            )
            rows = jsonl.read_rows(data / "train.jsonl")
            order = in_turn(len(rows), options.seed)
            prompts = [{"prompt": next(order)} for _ in range(options.prompts)]
            plain = GRPOTrainer(
                model=loaded.model,
                reward_funcs=varied,
                args=GRPOConfig(
                    output_dir=str(settings.place / "plain"),
                    max_steps=1,
                    per_device_train_batch_size=options.per_device_batch,
                    gradient_accumulation_steps=options.step_size // options.per_device_batch,
                    num_generations=options.num_generations,
                    max_completion_length=options.max_completion_length,
                    max_grad_norm=1e6,
                    learning_rate=0.0,
                    epsilon_high=options.aggregation.epsilon_high,
                    scale_rewards=options.scale_rewards,
                    gradient_checkpointing=False,
                    bf16=trl.grpo_config(options, loaded, [1.0], settings.place).bf16,
                    use_cpu=loaded.device == "cpu",
                    shuffle_dataset=False,
                    save_strategy="no",
                    report_to="none",
                    disable_tqdm=True,
                ),
                train_dataset=datasets.Dataset.from_list(prompts),
                rollout_func=rollouts.Rollouts(
                    rows, Stop(loaded.tokenizer, loaded.model, STOP), {}
                ),
                processing_class=loaded.tokenizer,
            )
            plain.train()
    finally:
        hook.remove()
    *_, ours, theirs = recorded  # a step of each, after that of the trial which --trl asks for
    return {
        "parameters": len(ours),
        "norms": [float(ours.norm()), float(theirs.norm())],
        "cosine": float(torch.nn.functional.cosine_similarity(ours, theirs, dim=0)),
        "relative_difference": float((ours - theirs).norm() / theirs.norm()),
    }


PARTS: dict[str, Callable[[Settings], dict[str, Any]]] = {
    "recipe-llama-3.1-8b-countdown": recipe_llama,
    "recipe-smollm2": recipe_smollm2,
    "pipeline": pipeline,
    "vllm-rollouts": vllm_rollouts,
    "vllm-rollouts-nf4": lambda settings: vllm_rollouts(settings, "nf4"),
    "decode": decode,
    "gradients": gradients,
    "resume": resume,
}
