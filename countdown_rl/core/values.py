"""Doorway of the public API: arguments as its callers have them, in the types that an annotation asks for."""

import difflib
import errno
import functools
import inspect
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from numbers import Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from countdown_rl.core.errors import InputError, UsageError, first_line
from countdown_rl.core.formatting import flag, one_line

Function = TypeVar("Function", bound=Callable[..., Any])

#: Names of options in other programs or commands, and the options that stand for them here; the first that exists.
OTHER_NAMES = {
    "lr": ("learning_rate",),
    "steps": ("max_steps",),
    "epochs": ("num_train_epochs", "max_steps"),
    "num_train_epochs": ("max_steps",),
    "per_device_train_batch_size": ("micro_batch",),
    "batch_size": ("prompts",),
    "group_size": ("num_generations",),
    "rank": ("lora_r",),
    "kl": ("beta",),
    "max_tokens": ("max_new_tokens", "max_completion_length"),
    "max_new_tokens": ("max_completion_length",),
    "max_completion_length": ("max_new_tokens",),
    "n": ("limit",),
    "num_samples": ("samples", "n"),
    "adapter": ("model",),
    "model": ("adapter",),
    "model_name_or_path": ("model",),
    "dataset": ("data", "from_hub"),
    "output_dir": ("out",),
    "load_in_4bit": ("precision",),
    "reward_funcs": ("reward",),
    "num_processes": ("processes",),
    "use_vllm": ("rollouts",),
}
_NOUNS = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
}


def nearest(name: str, names: Collection[str]) -> str | None:
    """Return the one of *names* that *name* most likely means."""
    known = [other for other in OTHER_NAMES.get(name, ()) if other in names]
    return next(iter([*known, *difflib.get_close_matches(name, names, 1)]), None)


def check_names(given: Iterable[str], names: Collection[str]) -> None:
    """Raise UsageError if one of *given* is not among *names*."""
    for name in given:
        if name not in names:
            match = nearest(name, names)
            advice = (
                f"did you mean {flag(match)}?"
                if match
                else f"the options are {', '.join(map(flag, names))}."
            )
            raise UsageError(f"there is no option {flag(name)}; {advice}")


def plain(value: Any) -> Any:
    """Return *value* with arrays and columns as lists, their scalars as Python's, and missing cells as None."""
    if type(value) in (str, int, bool, NoneType):
        return value
    if hasattr(value, "tolist"):  # NumPy, torch, pandas' columns
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return (
        None if type(value).__name__ in ("NAType", "NaTType") or (value != value) is True else value
    )


def records(source: Any, name: str) -> list[dict[str, Any]]:
    """Return a data frame, data set, row or iterable of rows as a list of rows with plain values, else InputError."""
    if hasattr(source, "to_dict") and hasattr(source, "columns"):
        source = source.to_dict("records")
    rows = [source] if isinstance(source, Mapping) else source
    if not isinstance(rows, Iterable) or isinstance(rows, str | bytes):
        raise InputError(f"should be a path or rows, not {shown(source)}.", option=name)
    converted = []
    for index, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise InputError(f"{flag(name)}: row {index} should be a mapping, not {shown(row)}.")
        converted.append(
            {str(key): value for key, cell in row.items() if (value := plain(cell)) is not None}
        )
    return converted


def shown(value: Any) -> str:
    """Return the type and the beginning of the text of *value*, for messages."""
    return f"{type(value).__name__} {one_line(repr(value)):.40}"


def convert(name: str, value: Any, hint: Any) -> Any:
    """Return *value*, given as the option *name*, in the type of its annotation *hint*; UsageError if that loses data.

    One item or a mapping becomes a tuple where *hint* is one, a list the text that the command line takes.
    """
    kinds = _kinds(hint)
    if any(
        get_origin(kind) is None and kind not in (*_NOUNS, NoneType) for kind in kinds
    ):  # such as a quoted one
        return value
    if any(get_origin(kind) is Callable for kind in kinds):
        if not callable(value):
            raise UsageError(f"should be a function, not {shown(value)}.", option=name)
        return value
    value = (
        float(value) if isinstance(value, float) else plain(value)
    )  # not a number is no missing option
    if value is None and NoneType in kinds:
        return None
    if sequence := next(
        (kind for kind in kinds if get_origin(kind) in (tuple, list, Iterable)), None
    ):
        return _items(name, value, get_args(sequence))
    if isinstance(value, list) and value and str in kinds and Path not in kinds:
        value = ",".join(map(str, value))
    if {Path, str} & {*kinds} and isinstance(value, str | os.PathLike):
        check_text(flag(name), os.fsdecode(value))
        return str(value) if str in kinds else Path(value)
    if type(value) in (bool, int) and type(value) in kinds:
        return value
    if float in kinds and isinstance(value, Real) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise UsageError(f"{value!s:.20}... is too large.", option=name) from None
    if str in kinds and type(value) is int and Path not in kinds:
        return str(value)
    allowed = [choice for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]
    if isinstance(value, str) and value in allowed:
        return allowed[allowed.index(value)]  # of a value that Typer made an enumeration of
    if allowed:
        raise UsageError(
            f"{one_line(str(value)):.60} is not one of: {', '.join(allowed)}.", option=name
        )
    nouns = " or ".join(_NOUNS[kind] for kind in kinds if kind in _NOUNS)
    raise UsageError(f"{one_line(repr(value)):.60} should be {nouns}.", option=name)


def check_text(option: str, text: str) -> None:
    """Raise UsageError if *text*, the value of *option* as the user spells it, is empty or has a null byte."""
    if not text.strip():
        raise UsageError(f"{option} is empty; give it a value, or leave it out.")
    if "\0" in text:
        raise UsageError(f"{option} {text!r:.60} should have no null byte.")


def _kinds(hint: Any) -> tuple[Any, ...]:
    """Return the types of an annotation, of which a value has one."""
    if get_origin(hint) is Annotated:
        return _kinds(get_args(hint)[0])
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _items(name: str, value: Any, kinds: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return *value* as a tuple of items of *kinds*: of one type and any number, or one type for each item."""
    if isinstance(value, Mapping):
        value = [f"{key}={item}" for key, item in value.items()]
    items = (
        [value]
        if isinstance(value, str | bytes | os.PathLike) or not isinstance(value, Iterable)
        else [*value]
    )
    of_one_kind = len(kinds) == 1 or kinds[-1] is Ellipsis
    if not of_one_kind and len(items) != len(kinds):
        raise UsageError(f"{one_line(repr(value)):.60} should be {len(kinds)} values.", option=name)
    return tuple(
        convert(name, item, kinds[0] if of_one_kind else kinds[i]) for i, item in enumerate(items)
    )


def public(function: Function) -> Function:
    """Make *function* public: arguments are converted by their unquoted annotations."""
    signature = inspect.signature(function)
    parameters = signature.parameters
    is_open = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())

    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        if not is_open:
            check_names(keywords, parameters)
        given = signature.bind(*args, **keywords)
        for name, value in given.arguments.items():
            given.arguments[name] = convert(name, value, parameters[name].annotation)
        try:
            return function(*given.args, **given.kwargs)
        except (OSError, RuntimeError) as error:  # any text may be a path
            if "Symlink loop" in str(error) or getattr(error, "errno", 0) == errno.ENAMETOOLONG:
                raise UsageError(f"{first_line(error)}; give another path.") from error
            raise

    return call  # type: ignore[return-value]
