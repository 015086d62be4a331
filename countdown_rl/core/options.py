"""Base class of the stages' options: frozen dataclasses whose fields carry default, bounds, choices and help.

A field is written once, as ``seed: Annotated[int, option("Random seed.", min=0)] = 42``. The command line makes a flag
of it (``cli.parameters``), and constructing the dataclass checks it, in a library call as well.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, get_args, get_origin, get_type_hints

from countdown_rl.core import typed_json, values
from countdown_rl.core.errors import ArtifactError, UsageError, first_line

Device = Literal["auto", "cpu", "cuda", "mps"]
Precision = Literal["auto", "nf4", "bf16", "fp16", "fp32"]
PROMPT = "Prompt"
#: Help of the flag of a rule of Countdown.
RULE = "Rule: exactly-once, at-most-once or television."

#: Limits of options that have none of their own: seeds of NumPy have 32 bits, and no number here is as large.
MAX_INTEGER, MAX_FLOAT = 2**32 - 1, 1e6


@dataclass(frozen=True)
class Options:
    """Options of one stage, converted to the types of their annotations; UsageError for others and out of bounds."""

    #: Past defaults, for manifests of earlier versions: of a removed option, the value that does what this version
    #: does; of an option whose default has changed, the first one, which a manifest without the option means.
    past: ClassVar[dict[str, Any]] = {}

    @classmethod
    def completed(cls, recorded: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options in a manifest, *recorded*, with the past or present defaults of those that it lacks."""
        present = {**cls.past, **recorded}
        known = {field.name: present[field.name] for field in fields(cls) if field.name in present}
        try:
            return typed_json.build(known, cls, "the manifest").recorded | present
        except (ArtifactError, UsageError):  # a choice of another version
            return {field.name: field.default for field in fields(cls)} | present

    @property
    def recorded(self) -> dict[str, Any]:
        """The options in a manifest, which decide the result."""
        return asdict(self)

    def __post_init__(self) -> None:
        for name, hint in field_hints(type(self)).items():
            value = values.convert(name, getattr(self, name), hint)
            object.__setattr__(self, name, value)
            for item in value if isinstance(value, tuple) else (value,):
                _check(name, item, hint)

    @classmethod
    def of(cls, given: Mapping[str, Any], *others: str) -> Self:
        """Return the options in *given*, which may also have the names *others*; UsageError names unknown ones."""
        names = [field.name for field in fields(cls)]
        values.check_names(given, [*names, *others])
        return cls(**{name: given[name] for name in names if name in given})


@dataclass(frozen=True)
class Option:
    """The declaration of a flag, with the fields of ``typer.Option``; ``name`` replaces the flag of the field."""

    help: str
    rich_help_panel: str | None = None
    name: str | None = None
    min: float | None = None
    max: float | None = None
    metavar: str | None = None
    show_default: str | bool = True
    parser: Callable[[str], Any] | None = None


option = Option


def _read_prompt(file: str) -> str:
    try:
        text = Path(file).read_text("utf-8")
    except (OSError, UnicodeError) as error:
        raise UsageError(
            f"{file} cannot be read ({first_line(error)}); give another.", option="prompt"
        ) from error
    values.check_text(f"the file of --prompt, {file},", text)
    return text


#: The text of a prompt template; its flag takes the file.
Prompt = Annotated[
    str | None,
    option(
        "Jinja file of a prompt, see docs/models.md.",
        PROMPT,
        name="--prompt",
        metavar="FILE",
        parser=_read_prompt,
    ),
]


def field_hints(options: type) -> dict[str, Any]:
    """Return the full annotation of each field of a dataclass, in their order."""
    hints = get_type_hints(options, include_extras=True)
    return {field.name: hints[field.name] for field in fields(options)}


def choices(hint: Any) -> tuple[Any, ...]:
    """Return the values that the ``Literal`` in *hint* allows; none if there is no ``Literal``."""
    if get_origin(hint) is Literal:
        return get_args(hint)
    return tuple(choice for part in get_args(hint) for choice in choices(part))


def _check(name: str, value: Any, hint: Any) -> None:
    if not isinstance(value, int | float):
        return
    if not math.isfinite(value):
        raise UsageError(f"{value} is not a finite number.", option=name)
    limit = MAX_INTEGER if isinstance(value, int) else MAX_FLOAT
    for bounds in get_args(hint)[1:]:  # the Option beside the type
        smallest = -limit if bounds.min is None else bounds.min
        largest = limit if bounds.max is None else bounds.max
        if not smallest <= value <= largest:
            fault = "too small" if value < smallest else "too large"
            raise UsageError(
                f"{value} is {fault}; it must be from {smallest} to {largest}.", option=name
            )
