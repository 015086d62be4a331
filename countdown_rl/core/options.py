"""Base class of the stages' options: frozen dataclasses whose fields carry default, bounds, choices
and help.

A field is written once, as ``seed: Annotated[int, option("Random seed.", min=0)] = 42``. The
command line makes a flag of it (``cli.parameters``), and pydantic converts and checks it when the
dataclass is constructed, in a library call as well.
"""

import difflib
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from os import PathLike, fspath
from typing import Any, Literal, Self, get_args, get_origin, get_type_hints

from countdown_rl.core import typed_json
from countdown_rl.core.errors import UsageError
from countdown_rl.core.formatting import one_line
from countdown_rl.core.types import JsonObject, Record, as_list

Precision = Literal["auto", "nf4", "bf16", "fp16", "fp32"]

#: Limits of options that have none of their own: seeds of NumPy have 32 bits, and no number here is
#: as large.
MAX_INTEGER, MAX_FLOAT = 2**32 - 1, 1e6


@dataclass(frozen=True)
class Options:
    """Options of one stage, in the types of their annotations; UsageError for others and out of
    bounds.
    """

    @property
    def recorded(self) -> JsonObject:
        """The options in a manifest, which decide the result."""
        return asdict(self)

    def __post_init__(self) -> None:
        for name, hint in field_hints(type(self)).items():
            object.__setattr__(self, name, convert(name, getattr(self, name), hint))

    @classmethod
    def of(cls, given: Record, *others: str) -> Self:
        """Return the options in a mapping.

        Args:
            given: values by the names of the fields.
            others: further names that *given* may have, which are left out.

        Raises:
            UsageError: a name is unknown, or a value is invalid.
        """
        names = [field.name for field in fields(cls)]
        for name in given:
            if name not in names and name not in others:
                raise UsageError(f"there is no option {name}; {advice(name, [*names, *others])}")
        return cls(**{name: given[name] for name in names if name in given})


@dataclass(frozen=True)
class Option:
    """The declaration of a flag, with the fields of ``typer.Option``; ``name`` replaces the flag of
    the field.
    """

    help: str
    rich_help_panel: str | None = None
    name: str | None = None
    min: float | None = None
    max: float | None = None
    metavar: str | None = None
    show_default: str | bool = True
    parser: Callable[[str], object] | None = None


option = Option


def nearest(name: str, names: Collection[str]) -> str | None:
    """Return the one of *names* that *name* most likely means."""
    return next(iter(difflib.get_close_matches(name, names, 1)), None)


def advice(name: str, names: Collection[str]) -> str:
    """Return what to give in place of an unknown option, a clause for an error message.

    Args:
        name: the unknown option.
        names: the options that there are.
    """
    if match := nearest(name, names):
        return f"did you mean {match}?"
    return f"the options are {', '.join(names)}."


def plain(value: object) -> Any:
    """Return *value* with arrays, tensors and columns as lists, their scalars as Python's, and
    paths as text.
    """
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, PathLike):
        return fspath(value)
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def shown(value: object) -> str:
    """Return the beginning of the text of *value*, for messages."""
    return one_line(value if isinstance(value, str) else repr(value))[:60]


def convert(name: str, value: object, hint: object) -> Any:
    """Return the value of an option in the type of its annotation.

    Args:
        name: the name of the option, for the error.
        value: one item becomes a tuple where *hint* is one, and a list the text with commas where
            *hint* is text.
        hint: the annotation, with its :class:`Option`.

    Raises:
        UsageError: the value does not fit, or is out of bounds.
    """
    from pydantic import ValidationError

    kind, declared = get_args(hint)
    value = plain(value)
    if get_origin(kind) is tuple:
        value = as_list(value)
    elif isinstance(value, list) and kind in (str, str | None):
        value = ",".join(map(str, value))
    for item in as_list(value):
        if isinstance(item, str) and ("\0" in item or not item.strip()):
            raise UsageError(f"{item!r:.60} should be text without null bytes.", option=name)

    try:
        converted = _adapter(hint).validate_python(value)
    except ValidationError as error:
        fault = error.errors()[0]
        sentence = f"{shown(fault['input'])} {typed_json.expected(fault)}."
        raise UsageError(sentence, option=name) from None

    if type(converted) in (int, float):
        limit = MAX_INTEGER if isinstance(converted, int) else MAX_FLOAT
        smallest = -limit if declared.min is None else declared.min
        largest = limit if declared.max is None else declared.max
        if not smallest <= converted <= largest:
            raise UsageError(f"{converted} must be from {smallest} to {largest}.", option=name)
    return converted


@cache
def _adapter(hint: Any) -> Any:
    from pydantic import ConfigDict, TypeAdapter

    settings = ConfigDict(coerce_numbers_to_str=True, allow_inf_nan=False)
    return TypeAdapter(hint, config=settings)


def field_hints(options: type) -> JsonObject:
    """Return the full annotation of each field of a dataclass, in their order."""
    hints = get_type_hints(options, include_extras=True)
    return {field.name: hints[field.name] for field in fields(options)}
