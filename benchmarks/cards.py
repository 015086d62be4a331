"""The memory that ``train --check`` estimates for the recipes on common GPUs."""

import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from benchmarks.gpu_settings import ROOT, SHAPES
from countdown_rl.models.shape import ModelShape

#: The shape of each recipe's model.
RECIPES = {
    "qwen3-0.6b-laptop": "qwen3-0.6b",
    "llama-3.1-8b-countdown": "llama-3.1-8b",
    "llama-3.1-8b-gsm8k": "llama-3.1-8b",
    "qwen2.5-3b-areal": "qwen2.5-3b",
}
#: The models of "Start here" in docs/gpu.md, for a card of 24 GB.
START = {"Qwen/Qwen2.5-1.5B-Instruct": "qwen2.5-1.5b", "Qwen/Qwen2.5-3B-Instruct": "qwen2.5-3b"}
#: Tokens of the longest prompt.
PROMPT = 256
#: An RTX 4090: bytes a second that it reads, operations a second of a loss in bf16 (assumed to be a third of its peak),
#: seconds of a kernel in a graph of completions, and kernels of a layer. None was measured by this project.
READS, OPERATIONS, KERNEL, KERNELS = 0.93e12, 53e12, 3e-6, 103


@dataclass(frozen=True)
class Card:
    """GPUs: their number, and the bytes of each."""

    count: int
    memory: float


#: RTX 4090 and H100 SXM: what torch sees of their memory.
CARDS = {
    "24 GB": Card(1, 23.6 * 2**30),
    "80 GB": Card(1, 79.1 * 2**30),
    "8 × 80 GB": Card(8, 79.1 * 2**30),
}


def recipe_commands(recipe: str, out: Path, *words: Any, **environment: str) -> list[list[str]]:
    """The words of each command that *recipe* gives countdown-rl or Python; none is run.

    Args:
        out: the recipe's directory, which it creates.
        environment: variables of the recipe.
    """
    with tempfile.TemporaryDirectory() as place:
        for name in ("countdown-rl", "python", "python3"):
            command = Path(place, name)
            command.write_text("#!/bin/sh\nprintf '%s\\0' \"$@\" && printf '\\n'\n")
            command.chmod(0o755)
        path = {"PATH": f"{place}{os.pathsep}{os.environ['PATH']}"}
        script = ROOT / "stages" / "recipes" / f"{recipe}.sh"
        arguments = [script, *map(str, words), out]
        done = subprocess.run(
            arguments,
            env=os.environ | path | environment,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return [line.split("\0")[:-1] for line in done.stdout.splitlines()]


@cache
def recipe_options(recipe: str) -> Any:
    """The options that *recipe* gives ``train``."""
    with tempfile.TemporaryDirectory() as place:
        commands = recipe_commands(recipe, Path(place, "out"), "--check")
    return _options(next(words for words in commands if words[0] == "train")[1:])


def _options(words: list[str]) -> Any:
    """The options of ``train`` in *words*."""
    from countdown_rl.cli import main
    from countdown_rl.training.options import TrainOptions

    values = main.command("train").make_context("train", words).params
    given = {field.name: values[field.name] for field in fields(TrainOptions)}
    return TrainOptions(
        **{
            name: tuple(value) if isinstance(value, list) else value
            for name, value in given.items()
        }
    )


@cache
def _skeleton(shape_name: str) -> Any:
    from transformers import AutoConfig

    from countdown_rl.models import shape

    settings = dict(SHAPES[shape_name])
    return shape.skeleton(AutoConfig.for_model(settings.pop("model_type"), **settings))


def page_options(model: str) -> Any:
    """The options of the command in docs/gpu.md that trains *model*."""
    text = (ROOT / "docs" / "gpu.md").read_text().replace("\\\n", "")
    words = next(
        line.split()
        for line in text.splitlines()
        if f"--model {model} " in line and "--check" in line
    )
    return _options(words[2:])


def seconds(plan: "Plan", options: Any) -> float:
    """Estimated seconds of a step on an RTX 4090, of completions by graphs as long as their limit and of the loss."""
    rows, tokens = options.step_size, options.max_completion_length
    shape, weights = ModelShape.of(plan.model.config), plan.model.num_parameters()
    cache = 4 * shape.num_layers * shape.num_kv_heads * shape.head_dim * rows * (PROMPT + tokens)
    # Packed weights are read, written in bf16 and read again.
    read = cache + weights * (2 if plan.memory.plain else 4.5)
    step = read / READS + KERNEL * KERNELS * shape.num_layers
    passes = (
        2 + options.gradient_checkpointing + bool(options.beta)
    )  # forward, backward by inputs, recomputed, reference
    scored = rows * tokens + rows * PROMPT
    return tokens * step + 2 * passes * weights * scored / OPERATIONS


class Plan(NamedTuple):
    """A run on a card: its engine, its memory, and its model without weights."""

    engine: str
    memory: Any
    model: Any


def plan(
    shape_name: str,
    options: Any,
    card: Card,
    *,
    device: str = "cuda",
    installed: Sequence[str] = ("vllm",),
) -> Plan:
    """The plan of ``train --check`` where the optional packages *installed* are there."""
    from countdown_rl.inference import engines
    from countdown_rl.models import load
    from countdown_rl.training import memory, weights
    from countdown_rl.training.grpo import trl, vllm

    model = _skeleton(shape_name)
    if options.precision == "auto" and options.quantizes(model.num_parameters()):
        options = replace(options, precision="nf4")
    ref: Any = mock.Mock(base=None, trained_precision=None)
    loaded = load.Loaded(model, None, ref, options.precision, device, "skeleton")
    with (
        mock.patch.object(load, "device_name", return_value=device),
        mock.patch.object(vllm, "unsupported_weights", return_value=""),
        mock.patch.object(
            weights, "computes_in_bf16", return_value=False
        ),  # TRL refuses it where there is no GPU
        mock.patch.object(memory, "_device_memory", return_value=int(card.memory)),
        mock.patch.object(
            memory, "forward_width", lambda precision, *_: 4 if precision == "fp32" else 2
        ),
        mock.patch.object(engines, "find_spec", lambda name: name if name in installed else None),
    ):
        adapted = weights.adapted(ref, model, options)
        make_plan = partial(
            memory.plan,
            model,
            adapted,
            options,
            options.precision,
            length=PROMPT + options.max_completion_length,
            scored=options.max_completion_length,
            sequences=options.step_size * options.steps_per_generation // card.count,
            prompts=options.prompts * options.steps_per_generation // card.count,
            reference=bool(options.beta),
        )
        rewards = [1.0] * len(options.reward)
        config = partial(trl.grpo_config, options, loaded, rewards, Path())
        return Plan(*vllm.plan(options, loaded, adapted, config, make_plan), model)
