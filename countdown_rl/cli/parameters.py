"""Parameters of the commands: those that several commands have, and the flags that come from an options dataclass."""

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import typer

from countdown_rl.cli import console
from countdown_rl.core.errors import InputError, UsageError
from countdown_rl.core.options import Option, Options, choices, field_hints, option

AsJson = Annotated[bool, option("Print one JSON object.", name="--json")]
BaseModel = Annotated[str | None, option("Base of an adapter, in place of the one that it records.", metavar="MODEL")]
Data = Annotated[Path, option("Data directory of gen-data, or one JSONL, JSON, CSV or Parquet file.")]
Model = Annotated[str, option("Name of the shipped model, directory of a stage, GGUF file or Hub id.")]
Out = Annotated[Path, option("Directory to write.")]
Overwrite = Annotated[bool, option("Replace a finished artifact at --out.", name="--overwrite")]
Revision = Annotated[str | None, option("Revision of a Hub model.")]
TrustRemoteCode = Annotated[bool, option("Run code that comes with a model.")]


def note_finished(out: Path) -> None:
    console.note(f"{out} is up to date (use --overwrite to rebuild).")


@contextmanager
def input_as_usage() -> Iterator[None]:
    """Report faults of a puzzle that is given as arguments as wrong usage."""
    try:
        yield
    except InputError as error:
        raise UsageError(str(error)) from None


def warn_of_unused_gpu() -> None:
    from countdown_rl.models import load

    if text := load.unused_gpu():
        console.warn(text)


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter of *command* that is annotated with an options dataclass by one flag per field.

    The command is called with one, checked instance of that dataclass. Declarations become those of Typer.
    """
    groups: dict[str, type[Options]] = {}
    parameters: list[inspect.Parameter] = []
    for name, declared in inspect.signature(command, eval_str=True).parameters.items():
        if isinstance(declared.annotation, type) and issubclass(declared.annotation, Options):
            groups[name], hints = declared.annotation, field_hints(declared.annotation)
            defaults = {field.name: field.default for field in fields(groups[name])}
            own = declared.annotation.__annotations__  # listed before those that several stages share
            parameters += [_parameter(key, hints[key], defaults[key]) for key in dict.fromkeys([*own, *hints])]
        else:
            parameters.append(declared.replace(annotation=_declared(declared.annotation)))

    @functools.wraps(command)
    def call(**values: Any) -> None:
        for name, options_type in groups.items():
            given = {field.name: values.pop(field.name) for field in fields(options_type)}
            lists = {key: tuple(map(str, value)) for key, value in given.items() if isinstance(value, list)}
            values[name] = options_type(**given | lists)
        command(**values)

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
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=_declared(hint))


def _declared(hint: Any) -> Any:
    """Return *hint* with Typer's declaration of a flag in place of the package's own."""
    if get_origin(hint) is not Annotated:
        return hint
    kind, *extras = get_args(hint)
    return Annotated[kind, *(_typer_option(extra) if isinstance(extra, Option) else extra for extra in extras)]


def _typer_option(declared: Option) -> Any:
    settings = asdict(declared)
    name = settings.pop("name")
    return typer.Option(*([name] if name else []), **settings)
