"""Parameters that several commands share, and the flags of an options dataclass."""

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import typer

from countdown_rl.cli import config, console
from countdown_rl.core.errors import InputError, UsageError
from countdown_rl.core.options import Option, Options, choices, field_hints, option

AsJson = Annotated[bool, option("Print one JSON object.", name="--json")]
BaseModel = Annotated[str | None, option("Base of an adapter, in place of the recorded one.", metavar="MODEL")]
Data = Annotated[Path, option("Data directory of gen-data, or a JSONL, JSON, CSV or Parquet file.")]
Model = Annotated[str, option("countdown-tiny, a directory of a stage, a GGUF file or a Hub id.")]
Out = Annotated[Path, option("Directory to write.")]
Overwrite = Annotated[bool, option("Replace a finished artifact at --out.", name="--overwrite")]
Revision = Annotated[str | None, option("Revision of a Hub model.")]
TrustRemoteCode = Annotated[bool, option("Run code that comes with the model.")]


def numbers_in(words: Iterable[str]) -> list[int]:
    """Return the numbers of arguments such as ``3 7 50`` or ``3,7,50``."""
    parts = " ".join(words).replace(",", " ").split()
    if wrong := next((part for part in parts if not part.isdecimal()), None):
        raise UsageError(f"{wrong} is not a whole number.")
    return list(map(int, parts))


@contextmanager
def input_as_usage() -> Iterator[None]:
    """Report an invalid puzzle in the arguments as wrong usage."""
    try:
        yield
    except InputError as error:
        raise UsageError(str(error)) from None


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter of *command* that is an options dataclass by flags; add those that every command has."""
    groups: dict[str, type[Options]] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        kind = parameter.annotation
        if isinstance(kind, type) and issubclass(kind, Options):
            groups[name], hints = kind, field_hints(kind)
            defaults = {field.name: field.default for field in fields(kind)}
            own = [field for field in kind.__annotations__ if not hasattr(kind.__base__, field)]
            own_first = dict.fromkeys([*own, *hints])  # before the fields of its base class
            parameters += [_parameter(field, hints[field], defaults[field]) for field in own_first]
        else:
            parameters.append(parameter.replace(annotation=_declared(kind)))
    for name, kind in (("as_json", _declared(AsJson)), ("config", config.Config), ("save_config", config.SaveConfig)):
        default = False if name == "as_json" else None
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind))

    @functools.wraps(command)
    def call(*, as_json: bool, config: Any = None, save_config: Any = None, **values: Any) -> None:
        for name, kind in groups.items():
            values[name] = kind(**{field.name: values.pop(field.name) for field in fields(kind)})
        console.as_json = as_json  # the other two have done their work
        try:
            command(**values)
        finally:
            console.as_json = False

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def _parameter(name: str, hint: Any, default: Any) -> inspect.Parameter:
    """Return the parameter for a field. A tuple becomes a list, Typer's repeatable flag."""
    kind, *extras = get_args(hint)
    if kind == int | str:  # Typer knows no unions
        hint = Annotated[str, *extras]
    if get_origin(kind) is tuple:
        allowed = choices(kind)  # Typer has no list of a Literal
        item = StrEnum(name, {choice: choice for choice in allowed}) if allowed else get_args(kind)[0]
        hint, default = Annotated[list[item], *extras], list(default)  # type: ignore[valid-type]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=_declared(hint))


def _declared(hint: Any) -> Any:
    """Return *hint* with ``typer.Option`` in place of :class:`Option`."""
    if get_origin(hint) is not Annotated:
        return hint
    kind, *extras = get_args(hint)
    for index, extra in enumerate(extras):
        if isinstance(extra, Option):
            settings = asdict(extra)
            name = settings.pop("name")
            extras[index] = typer.Option(*filter(None, [name]), **settings)
    return Annotated[kind, *extras]
