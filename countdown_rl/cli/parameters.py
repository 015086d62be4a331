"""Parameters that several commands share, and the flags of an options dataclass."""

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import typer

from countdown_rl.cli import config, console
from countdown_rl.core.errors import UsageError
from countdown_rl.core.options import Option, Options, convert, field_hints, option
from countdown_rl.core.types import JsonObject

AsJson = Annotated[bool, option("Print one JSON object.", name="--json")]
BaseModel = Annotated[
    str | None, option("Base of an adapter, in place of the recorded one.", metavar="MODEL")
]
Data = Annotated[Path, option("Data directory of gen-data, or a JSONL, JSON, CSV or Parquet file.")]
Model = Annotated[
    str, option("countdown-tiny, a directory of a stage, a GGUF file or a Hub id, NAME[@REVISION].")
]
Out = Annotated[Path, option("Directory to write.")]
Overwrite = Annotated[bool, option("Replace a finished artifact at --out.", name="--overwrite")]
TrustRemoteCode = Annotated[bool, option("Run code that comes with the model.")]


def numbers_in(words: Iterable[str]) -> list[int]:
    """Return the numbers of arguments such as ``3 7 50`` or ``3,7,50``."""
    parts = " ".join(words).replace(",", " ").split()
    if wrong := next((part for part in parts if not part.isdecimal()), None):
        raise UsageError(f"{wrong} is not a whole number; give numbers such as 3 7 50.")
    return list(map(int, parts))


def with_options(command: Callable[..., None], configured: bool) -> Callable[..., None]:
    """Replace each parameter that is an options dataclass by flags, and add ``--json``.

    Args:
        command: the function of a command.
        configured: add ``--config``.
    """
    groups: dict[str, type[Options]] = {}
    hints: JsonObject = {}
    defaults: JsonObject = {"as_json": False}
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        kind = parameter.annotation
        if isinstance(kind, type) and issubclass(kind, Options):
            groups[name] = kind
            own = [field for field in kind.__annotations__ if not hasattr(kind.__base__, field)]
            hints |= dict.fromkeys(own) | field_hints(kind)  # before the fields of its base class
            defaults |= {field.name: field.default for field in fields(kind)}
        else:
            hints[name], defaults[name] = kind, parameter.default
    hints["as_json"] = AsJson
    if configured:
        hints["config"] = config.Config
    parameters = [_parameter(name, hint, defaults.get(name)) for name, hint in hints.items()]

    @functools.wraps(command)
    def call(**given: Any) -> None:
        given.pop("config", None)  # its callback has read the file
        given = {name: _converted(name, value, hints[name]) for name, value in given.items()}
        for name, kind in groups.items():
            given[name] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
        console.as_json = given.pop("as_json")
        try:
            command(**given)
        finally:
            console.as_json = False

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def _parameter(name: str, hint: object, default: Any) -> inspect.Parameter:
    """Return Typer's parameter for *hint*. A tuple becomes a list, a repeatable flag, and what is
    no number text.
    """
    kind, declared = get_args(hint)
    if get_origin(kind) is tuple:
        kind, default = list[get_args(kind)[0]], list(default)  # type: ignore[misc]
    parser = None if {int, float, bool} & {*(get_args(kind) or [kind])} else str
    if isinstance(declared, Option):
        settings = asdict(declared) | {"parser": parser}
        declared = typer.Option(*filter(None, [settings.pop("name")]), **settings)
    else:
        declared.parser = parser
    annotation = Annotated[kind, declared]  # type: ignore[valid-type]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def _converted(name: str, value: Any, hint: object) -> Any:
    """Return *value*, which Typer read for the parameter *name*, as its *hint* says."""
    declared = get_args(hint)[1]
    if isinstance(declared, Option):
        name = (declared.name or name).lstrip("-")
        if declared.parser and value is not None:
            value = declared.parser(value)
    return convert(name, value, hint)
