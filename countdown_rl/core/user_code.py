"""Functions of the user's own, named as ``module:function``."""

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from countdown_rl.core.errors import UsageError, first_line


def imported(name: str) -> Callable[..., Any]:
    """Return the function *name*, of a module that is installed or in the working directory, else a UsageError."""
    module, _, function = name.partition(":")
    if not function:
        raise UsageError(f"{name} is not of the form module:function.")
    if (directory := str(Path.cwd())) not in sys.path:  # of an installed command it is the directory of the command
        sys.path.append(directory)
    try:
        loaded: Callable[..., Any] = getattr(importlib.import_module(module), function)
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
