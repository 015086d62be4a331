"""The memory that ``train --check`` estimates for the recipes on common GPUs."""

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

ROOT = Path(__file__).parents[1]
#: Published dimensions (config.json of each model); qwen2-small is for what does not depend on size.
SHAPES = json.loads((ROOT / "benchmarks" / "shapes.json").read_text())
#: The shape of each recipe's model.
RECIPES = {
    "qwen3-0.6b-laptop": "qwen3-0.6b",
    "llama-3.1-8b-countdown": "llama-3.1-8b",
    "llama-3.1-8b-gsm8k": "llama-3.1-8b",
    "qwen2.5-3b-areal": "qwen2.5-3b",
}
#: Tokens of the longest prompt.
PROMPT = 256


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


def environment() -> dict[str, str]:
    """The environment of a process that imports this checkout."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}


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
            sequences=options.step_size // card.count,
            prompts=options.prompts // card.count,
            reference=bool(options.beta),
        )
        rewards = [1.0] * len(options.reward)
        config = partial(trl.grpo_config, options, loaded, rewards, Path())
        return Plan(*vllm.plan(options, loaded, adapted, config, make_plan), model)
