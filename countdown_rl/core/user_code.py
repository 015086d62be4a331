"""Functions of the user's own, named as ``module:function``, and digests of their code."""

import functools
import hashlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from countdown_rl.core.errors import UsageError, first_line, is_users
from countdown_rl.core.types import Record, as_list

#: A function or callable object of the user's.
Function = Callable[..., Any]
#: Loaded plug-ins, as ``module:name``.
PLUGINS: set[str] = set()
#: The digest of code that has no source: a run with it is never up to date.
UNKNOWN = "unknown"
#: Functions and objects that a caller of the API gave, by their names.
_GIVEN: dict[str, Function] = {}
_NAME = re.compile(r"[^\W\d][\w.]*:[^\W\d][\w.]*")


def name_of(function: Function) -> str:
    """Return the name by which :func:`imported` finds *function* in this process:
    ``module:function``, with a number if another function or object has that name.
    """
    named = _definition(function)
    plain = name = f"{named.__module__}:{named.__qualname__}"
    number = 1
    while _GIVEN.setdefault(name, function) is not function:
        number += 1
        name = f"{plain}#{number}"
    return name


def imported(name: str) -> Function:
    """Return the function *name*, of a module that is installed or in the working directory, else a
    UsageError.
    """
    if name in _GIVEN:
        return _GIVEN[name]
    file, _, function = name.partition(":")
    if file.endswith(".py"):
        module = file.removesuffix(".py").replace("/", ".")
        raise UsageError(f"{name} names a file; give its module, {module}:{function}.")
    directory = str(Path.cwd())
    if directory not in sys.path:  # of an installed command it is the directory of the command
        sys.path.append(directory)
    try:
        loaded: Function = resolve_name(name)
    except (Exception, SystemExit) as error:  # anything may happen in a module of the user's
        raise UsageError(f"{name} cannot be imported: {first_line(error)}.") from error
    if not callable(loaded):
        raise UsageError(f"{name} is not a function.")
    return loaded


def named(options: Record) -> list[str]:
    """Return the functions that *options* name: ``module:function``, also with ``=weight``."""
    names = []
    for value in options.values():
        for text in as_list(value):
            name = text.partition("=")[0] if isinstance(text, str) else ""
            if name in _GIVEN or _NAME.fullmatch(name):
                names.append(name)
    return names


def digests(names: Iterable[str]) -> dict[str, str]:
    """Return the digest of the source of each of *names* that is the user's, or ``UNKNOWN``.

    It covers the file of its module, and the modules that are loaded from the same folder or below.
    A function of a notebook or of the running program counts by its own source.
    """
    found = {}
    for name in names:
        module = name.partition(":")[0]
        file = _file(module)
        if file is None and name not in _GIVEN and module != "__main__":
            continue  # of a library or of this package
        text = _folder(file) if file else _source(_GIVEN.get(name) or imported(name))
        found[f"code of {name}"] = hashlib.sha256(text).hexdigest()[:12] if text else UNKNOWN
    return found


def _file(module: str) -> Path | None:
    """Return the file of a loaded *module* if it is the user's; None for the running program."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return Path(file) if file and module != "__main__" and is_users(file) else None


def _folder(file: Path) -> bytes:
    """Return the sources in *file* and of the modules that are loaded from its folder or below."""
    loaded = {_file(name) for name in [*sys.modules]}
    near = {other for other in loaded if other and other.is_relative_to(file.parent)}
    return b"\0".join(path.read_bytes() for path in sorted(near | {file}) if path.is_file())


def _source(function: Function) -> bytes:
    try:
        return inspect.getsource(_definition(function)).encode()
    except (OSError, TypeError):  # written at a prompt
        return b""


def _definition(function: Function) -> Any:
    """Return what has the name and the source of *function*: the function of a partial, the class
    of an object.
    """
    if isinstance(function, functools.partial):
        function = function.func
    return function if hasattr(function, "__qualname__") else type(function)


@contextmanager
def running(description: str) -> Iterator[None]:
    """Raise UsageError from an error in the user's *description*."""
    try:
        yield
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"The {description} failed: {type(error).__name__}: {first_line(error)}."
        ) from error
