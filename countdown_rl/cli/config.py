"""``--config`` of the stages: a YAML file whose keys are the command's flags."""

import difflib
from pathlib import Path
from typing import Annotated, Any

import typer

from countdown_rl.cli.names import hint
from countdown_rl.core.errors import UsageError, first_line


def read(ctx: typer.Context, file: str | None) -> None:
    """Use the values in *file* as defaults of the options, so that flags win; ``null`` leaves an option out."""
    if file is None:
        return
    options = {
        key.removeprefix("--"): option
        for option in ctx.command.params
        if option.name not in ("config", "help")
        for key in option.opts
    }
    defaults = {}
    for name, value in options_in(Path(file), str(ctx.info_name)).items():
        if name not in options:
            advice = _advice(name, options, str(ctx.info_name))
            raise UsageError(f"{file}: {ctx.info_name} has no option {name}; {advice}")
        if value not in ("", "null"):
            defaults[options[name].name] = _value(options[name], value, f"{file}: {name}")
    ctx.default_map = defaults


def options_in(file: Path, command: str) -> dict[str, Any]:
    """Return the options of *command* in *file*, where they may stand below its name, as in ``stages/train.yaml``.

    Values are text, for the parser of the command line to read.
    """
    import yaml

    try:
        values = _plain(yaml.compose(file.read_text("utf-8"))) or {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UsageError(
            f"{file} cannot be read ({first_line(error)}); give a YAML file.", option="config"
        ) from None
    if isinstance(values, dict) and [*values] == [command]:
        values = values[command] or {}
    if not isinstance(values, dict):
        raise UsageError(f"{file} should have a line such as `seed: 42` for each option.")
    return values


def _plain(node: Any) -> Any:
    """Return a node of YAML as dictionaries, lists and text; keys are spelled with hyphens."""
    import yaml

    if isinstance(node, yaml.SequenceNode):
        return [_plain(item) for item in node.value]
    if not isinstance(node, yaml.MappingNode):
        return node and node.value
    values: dict[str, Any] = {}
    for key, item in node.value:
        name = str(key.value).replace("_", "-")
        if name in values:
            raise yaml.YAMLError(f"{name} occurs twice")
        values[name] = _plain(item)
    return values


def _value(option: Any, value: Any, place: str) -> Any:
    """Return *value* as the parser of the command line accepts it for *option*."""
    if isinstance(value, dict) and option.multiple:  # such as rewards with their weights
        value = [f"{key}={item}" for key, item in value.items()]
    items = value if isinstance(value, list) else [value]
    if not all(isinstance(item, str) for item in items):
        raise UsageError(f"{place} should be a value or a list of values.")
    if option.is_flag and str(value).lower() not in ("true", "false"):
        raise UsageError(f"{place} should be true or false.")
    return items if option.multiple else ",".join(items)


def _advice(name: str, options: dict[str, Any], command: str) -> str:
    close = difflib.get_close_matches(name, options, 1)
    advice = hint(name, {f"--{key}" for key in options})
    advice = advice or f"did you mean {close[0]}?" if close or advice else ""
    advice = advice or f"see `countdown-rl {command} --help`."
    if "trl" in options:
        advice += (
            f" A field of TRL's configuration is written `trl: {name.replace('-', '_')}=VALUE`."
        )
    return advice


Config = Annotated[
    str | None,
    typer.Option(
        help="YAML file of options; flags win.", metavar="FILE", is_eager=True, callback=read
    ),
]
