"""The commands and options of the recipes, and the shapes of their models."""

import json
import os
import subprocess
import tempfile
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
#: Published dimensions (config.json of each model); qwen2-small is for what does not depend on
#: size.
SHAPES = json.loads((ROOT / "benchmarks" / "shapes.json").read_text())
#: Bytes of a card of 24 GB (RTX 4090) that torch sees.
CARD = int(23.6 * 2**30)


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
