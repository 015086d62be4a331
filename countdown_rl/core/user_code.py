"""Functions of the user's own, named as ``module:function``."""

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from countdown_rl.core.errors import UsageError, first_line

#: Functions and objects that a caller of the API gave, by their names.
_GIVEN: dict[str, Callable[..., Any]] = {}


def name_of(function: Callable[..., Any]) -> str:
    """Return the name by which :func:`imported` finds *function*: a function, partial function or callable object."""
    named, state = function, ""
    if isinstance(function, functools.partial):
        named, state = function.func, f"{[*function.args, *function.keywords.items()]}"
    elif not hasattr(function, "__qualname__"):
        named, state = type(function), f"{[*vars(function).items()]}"
    name = f"{named.__module__}:{named.__qualname__}{state.replace('=', ':')}"
    _GIVEN[name] = function
    return name


def imported(name: str) -> Callable[..., Any]:
    """Return the function *name*, of a module that is installed or in the working directory, else a UsageError."""
    if name in _GIVEN:
        return _GIVEN[name]
    if not name.partition(":")[2]:
        raise UsageError(f"{name} is not of the form module:function.")
    if (directory := str(Path.cwd())) not in sys.path:  # of an installed command it is the directory of the command
        sys.path.append(directory)
    try:
        loaded: Callable[..., Any] = resolve_name(name)
    except (Exception, SystemExit) as error:  # anything may happen in a module of the user's
        raise UsageError(f"{name} cannot be imported: {first_line(error)}") from error
    if not callable(loaded):
        raise UsageError(f"{name} is not a function.")
    return loaded


@contextmanager
def running(description: str) -> Iterator[None]:
    """Raise UsageError from an error of the user's code, which *description* names, such as ``reward my:function``."""
    try:
        yield
    except (Exception, SystemExit) as error:
        raise UsageError(f"The {description} failed: {type(error).__name__}: {first_line(error)}") from error
