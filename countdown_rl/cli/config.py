"""``--config`` and ``--save-config`` of every command: a YAML file whose keys are the command's flags."""

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer

from countdown_rl.core.errors import UsageError, first_line
from countdown_rl.core.options import check_text, nearest

#: Parameters that no file contains.
_OWN = ("config", "save_config", "help")


def read(ctx: typer.Context, file: str | None) -> None:
    """Use the values in *file* as defaults of the options, so that flags win; ``null`` leaves an option out."""
    if file is None:
        return
    check_text("config", file)
    values = options_in(Path(file), str(ctx.info_name))
    options, defaults = {key: option for option in _options(ctx) for key in _keys(option)}, {}
    for name, value in values.items():
        key = str(name).replace("_", "-")
        if key not in options:
            names = {option.name: _keys(option)[0] for option in options.values()}
            close = names.get(nearest(key.replace("-", "_"), names) or "")
            remedy = (
                f"did you mean {close}?" if close else f"see `countdown-rl {ctx.info_name} --help`."
            )
            if "trl" in names:
                remedy += f" An option of TRL is written `trl: {key.replace('-', '_')}=VALUE`."
            raise UsageError(
                f"{file}: {ctx.info_name} has no option {name}; {remedy}", option="config"
            )
        if value is not None:
            defaults[options[key].name] = _value(options[key], value, f"--config {file}: {name}")
    ctx.default_map = defaults


def options_in(file: Path, command: str) -> dict[str, Any]:
    """Return the options of *command* in *file*, where they may stand below its name, as in ``stages/train.yaml``."""
    import yaml

    if not file.is_file():
        raise UsageError(f"{file} does not exist or is no file; give a YAML file of options.")
    try:
        values = yaml.load(file.read_text("utf-8"), _loader()) or {}  # noqa: S506 - a SafeLoader
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UsageError(f"{file} cannot be read: {first_line(error)}.") from None
    if isinstance(values, dict) and [*values] == [command]:
        values = values[command] or {}
    if not isinstance(values, dict):
        raise UsageError(f"{file} should have a line such as `seed: 42` for each option.")
    return values


@cache
def _loader() -> Any:
    """YAML of null, true, false and text, which the parser of the command line reads; no key twice."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = Counter(str(key.value).replace("_", "-") for key, _ in node.value)
            if twice := [key for key, count in keys.items() if count > 1]:
                raise yaml.YAMLError(f"{twice[0]} occurs twice")
            return super().construct_mapping(node, deep)

    Loader.yaml_implicit_resolvers = {}
    for kind, pattern, first in (
        ("merge", "<<", "<"),
        ("null", "~|null|Null|NULL|", "~nN"),
        ("bool", "(?i:true|false)", "tTfF"),
    ):
        Loader.add_implicit_resolver(
            f"tag:yaml.org,2002:{kind}", re.compile(f"^(?:{pattern})$"), [*first, ""]
        )
    return Loader


def save(ctx: Any) -> None:
    """Write the options in force to the file of ``--save-config``."""
    if (file := ctx.params.pop("save_config", None)) is None:
        return
    import yaml

    check_text("save_config", file)
    values = {_keys(option)[0]: ctx.params[option.name] for option in _options(ctx)}
    plain = {key: value for key, value in values.items() if value not in (None, [], ())}
    try:
        Path(file).write_text(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True), "utf-8")
    except OSError as error:
        fault = f"{file} cannot be written ({first_line(error)}); give another."
        raise UsageError(fault, option="save_config") from None


Config = Annotated[
    str | None,
    typer.Option(
        help="YAML file of options; flags win.", metavar="FILE", is_eager=True, callback=read
    ),
]
SaveConfig = Annotated[
    str | None, typer.Option(help="Write the options in force to a YAML file.", metavar="FILE")
]


def _options(ctx: typer.Context) -> Iterator[Any]:
    for param in ctx.command.params:
        if param.param_type_name == "option" and param.name not in _OWN:
            yield param


def _keys(option: Any) -> list[str]:
    return [flag.removeprefix("--") for flag in option.opts if flag.startswith("--")]


def _value(option: Any, value: Any, place: str) -> Any:
    """Return *value* as the parser of the command line accepts it for *option*."""
    if isinstance(value, dict) and option.multiple:  # such as rewards with their weights
        value = [f"{key}={item}" for key, item in value.items()]
    items = value if isinstance(value, list) else [value]
    if any(isinstance(item, dict | list) or item is None for item in items):
        raise UsageError(f"{place} should be a value or a list of values.")
    if any(isinstance(item, bool) is not option.is_flag for item in items):
        raise UsageError(f"{place} should {'be' if option.is_flag else 'not be'} true or false.")
    if option.multiple:
        return items
    return value if value is not items else ",".join(map(str, items))
