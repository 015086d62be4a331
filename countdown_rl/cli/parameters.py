"""Parameters of the commands: those that several commands have, and the flags that come from an options dataclass."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import typer

from countdown_rl.options import Options, choices, field_hints

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Data = Annotated[Path, typer.Option(help="Data directory of gen-data, or one JSONL file.")]
Out = Annotated[Path, typer.Option(help="Directory to write.")]
Revision = Annotated[str | None, typer.Option(help="Revision of a Hub model.")]
TrustRemoteCode = Annotated[bool, typer.Option(help="Run code that comes with a model.")]


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameter ``options`` of *command* by one flag per field of the dataclass it is annotated with.

    The command is called with one, checked instance of that dataclass.
    """
    own = inspect.signature(command, eval_str=True).parameters
    options_type: type[Options] = own["options"].annotation
    hints = field_hints(options_type)
    flags = [_parameter(field.name, hints[field.name], field.default) for field in fields(options_type)]
    parameters = [
        parameter for name, declared in own.items() for parameter in (flags if name == "options" else [declared])
    ]

    @functools.wraps(command)
    def call(**values: Any) -> None:
        given = {name: values.pop(name) for name in hints}
        options = options_type(**{name: tuple(map(str, v)) if isinstance(v, list) else v for name, v in given.items()})
        command(options=options, **values)

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def _parameter(name: str, hint: Any, default: Any) -> inspect.Parameter:
    """Return the command's parameter for a field; a tuple becomes a list, which Typer takes as a repeatable flag."""
    kind, *extras = get_args(hint)
    if get_origin(kind) is tuple:
        allowed = choices(kind)  # Typer knows no list of a Literal
        item = StrEnum(name, {choice: choice for choice in allowed}) if allowed else get_args(kind)[0]
        hint, default = Annotated[list[item], *extras], list(default)  # type: ignore[valid-type]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)
