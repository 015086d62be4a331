"""``--config`` of the stages: a YAML file whose keys are the command's flags."""

from pathlib import Path
from typing import Annotated, Any

import typer

from countdown_rl.cli.names import advice
from countdown_rl.core.errors import UsageError, first_line
from countdown_rl.core.types import JsonObject, as_list


def read(ctx: typer.Context, file: str | None) -> None:
    """Use the values in *file* as defaults, so that flags win; ``null`` leaves an option out."""
    if file is None:
        return
    command = str(ctx.info_name)
    options = {}
    for option in ctx.command.params:
        for flag in option.opts:
            options[flag.removeprefix("--")] = option
    del options["config"]
    defaults = {}
    for key, value in _values(Path(file), command).items():
        name = key.replace("_", "-")
        if name not in options:
            remedy = advice(name, [f"--{name}" for name in options])
            raise UsageError(f"{file}: {command} has no option {name}; {remedy}")
        option = options[name]
        if value not in ("", "null"):
            defaults[option.name] = _value(option, value, f"{file}: {name}")
    ctx.default_map = defaults


def _values(file: Path, command: str) -> JsonObject:
    """Return the options of *command* in *file*, with values as text for the command line's parser.

    They may stand below the name of the command, as in ``stages/train.yaml``.
    """
    import yaml

    try:
        values = yaml.load(file.read_text("utf-8"), yaml.BaseLoader) or {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        cause = first_line(error)
        raise UsageError(
            f"{file} cannot be read ({cause}); give a YAML file.", option="config"
        ) from None
    if isinstance(values, dict) and list(values) == [command]:
        values = values[command] or {}
    if not isinstance(values, dict):
        raise UsageError(f"{file} should have a line such as `seed: 42` for each option.")
    return values


def _value(option: Any, value: object, place: str) -> object:
    """Return *value* as the parser of the command line accepts it for *option*."""
    if isinstance(value, dict) and option.multiple:  # such as rewards with their weights
        value = [f"{key}={item}" for key, item in value.items()]
    items = as_list(value)
    if not all(isinstance(item, str) for item in items):
        raise UsageError(f"{place} should be a value or a list of values.")
    return items if option.multiple else ",".join(items)


Config = Annotated[
    str | None,
    typer.Option(
        help="YAML file of options; flags win.", metavar="FILE", is_eager=True, callback=read
    ),
]
