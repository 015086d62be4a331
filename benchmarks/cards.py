"""What the recipes need on common GPUs: the memory that ``train --check`` shows there, and an estimate of the hours."""

import os
import subprocess
import tempfile
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from benchmarks import gpu

#: The shape of each recipe's model.
RECIPES = {
    "qwen3-0.6b-laptop": "qwen3-0.6b",
    "llama-3.1-8b-countdown": "llama-3.1-8b",
    "llama-3.1-8b-gsm8k": "llama-3.1-8b",
    "qwen2.5-3b-areal": "qwen2.5-3b",
}
#: Share of a card's operations and of its bandwidth that is reached, seconds a layer and token of ``generate``, which
#: Python takes whatever the batch, and tokens of a prompt.
REACHED, BANDWIDTH, LAYER_SECONDS, PROMPT = 0.4, 0.6, 0.002, 150
#: Optional packages that a plan finds.
INSTALLED = ("vllm",)


@dataclass(frozen=True)
class Card:
    """GPUs: their number, and of each its bytes, its dense operations a second in bf16, and bytes a second."""

    count: int
    memory: float
    operations: float
    bandwidth: float


#: RTX 4090 and H100 SXM by their data sheets; the memory is what torch sees of it.
CARDS = {
    "24 GB": Card(1, 23.6 * 2**30, 165e12, 1.01e12),
    "80 GB": Card(1, 79.1 * 2**30, 989e12, 3.35e12),
    "8 × 80 GB": Card(8, 79.1 * 2**30, 989e12, 3.35e12),
}


@cache
def recipe_options(recipe: str) -> Any:
    """The options that *recipe* gives ``train``."""
    from countdown_rl.cli import main
    from countdown_rl.training.config import TrainOptions

    with tempfile.TemporaryDirectory() as place:
        command = Path(place, "countdown-rl")
        command.write_text('#!/bin/sh\n[ "$1" != train ] || printf "%s\\n" "$@"\n')
        command.chmod(0o755)
        script = gpu.ROOT / "stages" / "recipes" / f"{recipe}.sh"
        environment = os.environ | {"PATH": f"{place}{os.pathsep}{os.environ['PATH']}"}
        done = subprocess.run([script, f"{place}/out", "--check"], env=environment, stdout=subprocess.PIPE, check=True)
    values = main.command("train").make_context("train", done.stdout.decode().splitlines()[1:]).params
    given = {field.name: values[field.name] for field in fields(TrainOptions)}
    return TrainOptions(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()})


@cache
def _skeleton(shape_name: str) -> Any:
    from transformers import AutoConfig

    from countdown_rl.models import shape

    settings = dict(gpu.SHAPES[shape_name])
    return shape.skeleton(AutoConfig.for_model(settings.pop("model_type"), **settings))


class Plan(NamedTuple):
    """A run on a card: its engine, its memory, and its model without weights."""

    engine: str
    memory: Any
    model: Any


def plan(shape_name: str, options: Any, card: Card, *, device: str = "cuda", zero: int = 0) -> Plan:
    """The plan of ``train --check`` with prompts as long as *options* allow, where vLLM is installed."""
    from countdown_rl.models import load
    from countdown_rl.sft import memory, tuning
    from countdown_rl.training import prepare, rollouts

    model = _skeleton(shape_name)
    ref: Any = mock.Mock(base=None, trained_precision=None)
    loaded = load.Loaded(model, None, ref, options.precision, device, "skeleton")
    paths = dict.fromkeys(("data", "out", "checkpoints"), Path())
    run = prepare.TrainRun(model=shape_name, sharded=False, zero=zero, processes=card.count, **paths)
    with (
        mock.patch.object(load, "device_name", return_value=device),
        mock.patch.object(load, "stored_format", return_value="plain"),
        mock.patch.object(tuning, "computes_in_bf16", return_value=False),  # TRL refuses it where there is no GPU
        mock.patch.object(memory, "_device_memory", return_value=int(card.memory)),
        mock.patch.object(memory, "forward_width", lambda precision, *_: 4 if precision == "fp32" else 2),
        mock.patch.object(rollouts, "find_spec", lambda name: name if name in INSTALLED else None),
    ):
        weights = [1.0] * len(options.reward)
        return Plan(*prepare.plan(run, options, loaded, weights, options.max_prompt_length), model)


def hours(planned: Plan, options: Any, card: Card) -> float:
    """Hours of a run with completions as long as *options* allow, by the formula of docs/gpu.md."""
    from countdown_rl.models.shape import ModelShape
    from countdown_rl.training import rollouts

    shape, parameters = ModelShape.of(planned.model.config), planned.model.num_parameters()
    limit, vllm = options.max_completion_length, planned.engine == "vllm"
    completions = options.prompts * options.num_generations / card.count
    tokens = completions * (PROMPT + limit)
    passes = 3 + options.gradient_checkpointing + bool(options.beta) + (options.steps_per_generation > 1)
    compute = tokens * parameters * 2 * passes / (REACHED * card.operations)
    weights, cache = 2 * parameters, tokens * 4 * shape.num_layers * shape.num_kv_heads * shape.head_dim
    waves = 1.0
    if vllm:
        waves = max(1, cache / (planned.memory.estimates[0].engine - weights - rollouts.ENGINE))
    token = (waves * weights + cache / 2) / (BANDWIDTH * card.bandwidth)
    decode = limit * (token if vllm else max(token, shape.num_layers * LAYER_SECONDS))
    return options.max_steps * (compute + decode) / 3600
