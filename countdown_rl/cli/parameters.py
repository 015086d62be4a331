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
    """Replace each parameter of *command* that is annotated with an options dataclass by one flag per field.

    The command is called with one, checked instance of that dataclass.
    """
    own = inspect.signature(command, eval_str=True).parameters
    groups = {name: declared.annotation for name, declared in own.items() if _is_options(declared.annotation)}
    parameters: list[inspect.Parameter] = []
    for name, declared in own.items():
        parameters += _flags(groups[name]) if name in groups else [declared]

    @functools.wraps(command)
    def call(**values: Any) -> None:
        for name, options_type in groups.items():
            given = {field.name: values.pop(field.name) for field in fields(options_type)}
            values[name] = options_type(
                **{key: tuple(map(str, v)) if isinstance(v, list) else v for key, v in given.items()}
            )
        command(**values)

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def _is_options(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Options)


def _flags(options_type: type[Options]) -> list[inspect.Parameter]:
    hints = field_hints(options_type)
    return [_parameter(field.name, hints[field.name], field.default) for field in fields(options_type)]


def _parameter(name: str, hint: Any, default: Any) -> inspect.Parameter:
    """Return the command's parameter for a field; a tuple becomes a list, which Typer takes as a repeatable flag."""
    kind, *extras = get_args(hint)
    if get_origin(kind) is tuple:
        allowed = choices(kind)  # Typer knows no list of a Literal
        item = StrEnum(name, {choice: choice for choice in allowed}) if allowed else get_args(kind)[0]
        hint, default = Annotated[list[item], *extras], list(default)  # type: ignore[valid-type]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)
