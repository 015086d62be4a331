"""Functions of the user's own, named as ``module:function``."""

import ast
import functools
import hashlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from countdown_rl.core.errors import UsageError, first_line

_PACKAGE = __name__.partition(".")[0]
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


def digests(names: Iterable[str]) -> dict[str, str]:
    """Return the digest of the source of each of *names* that has one and is not of this package.

    It covers the file of the module and the files beside it that it imports; of a notebook, or of the program that is
    running, the function alone.
    """
    found = {f"code of {name}": _source(name) for name in names if name.partition(".")[0] != _PACKAGE}
    return {key: hashlib.sha256(source).hexdigest()[:12] for key, source in found.items() if source}


def _source(name: str) -> bytes:
    function: Any = imported(name)
    module = name.partition(":")[0]
    file = getattr(sys.modules.get(module), "__file__", None)
    if module != "__main__" and file and file.endswith(".py"):
        return b"".join(path.read_bytes() for path in sorted(_files(Path(file))))
    while isinstance(function, functools.partial):
        function = function.func
    try:
        return inspect.getsource(function if hasattr(function, "__qualname__") else type(function)).encode()
    except (OSError, TypeError):  # written at a prompt, or in C
        return b""


def _files(file: Path) -> set[Path]:
    """Return *file* and the Python files beside it that it imports, and so on."""
    found, waiting = set[Path](), [file]
    while waiting:
        found.add(path := waiting.pop())
        names = set[str]()
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                origin = node.module or "" if isinstance(node, ast.ImportFrom) else ""
                full = [f"{origin}.{alias.name}" for alias in node.names]
                names.update(part for name in full for part in name.split(".") if _PACKAGE not in name.split("."))
        beside = [path.parent / tail for name in names - {""} for tail in (f"{name}.py", f"{name}/__init__.py")]
        waiting += [other for other in beside if other not in found and other.is_file()]
    return found


@contextmanager
def running(description: str) -> Iterator[None]:
    """Raise UsageError from an error of the user's code, which *description* names, such as ``reward my:function``.

    The working directory and torch's settings are restored; random states are not, as the code may go on from its own.
    """
    directory, torch = os.getcwd(), sys.modules.get("torch")
    settings = torch and (torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads())
    try:
        yield
    except (Exception, SystemExit) as error:
        raise UsageError(f"The {description} failed: {type(error).__name__}: {first_line(error)}") from error
    finally:
        os.chdir(directory)
        if torch and settings:
            for restore, value in zip(
                (torch.set_default_dtype, torch.set_grad_enabled, torch.set_num_threads), settings, strict=True
            ):
                restore(value)
