"""Functions of the user's own, named as ``module:function``, and digests of their code."""

import ast
import copyreg
import dis
import functools
import hashlib
import importlib.util
import inspect
import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath
from pkgutil import resolve_name
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from countdown_rl.core.errors import UsageError, first_line, is_users

#: Names that a function changes, such as a cache or a counter, in its source.
_CHANGED = re.compile(
    r"\b(\w+)(?:\.(?:add|append|clear|extend|insert|pop|setdefault|update)\(|\[[^]]*\] *[-+*/|&]?=(?!=))"
    r"|\b(?:global|nonlocal) (.+)"
)
#: What imports a module by a text, and what may be such a text.
_IMPORT, _MODULE = (
    re.compile(r"\bimportlib\b|\b__import__\b|\bimport_module\b"),
    re.compile(r"\.*[^\W\d][\w.]{0,99}"),
)
#: Attributes that a method changes, likewise.
_SET = re.compile(
    r"\bself\.(\w+)(?:\.(?:add|append|clear|extend|insert|pop|setdefault|update)\(|(?:\[[^]]*\])? *[-+*/|&]?=(?!=))"
)
#: Loaded plug-ins, as ``module:name``.
PLUGINS: set[str] = set()
#: Functions and objects that a caller of the API gave, by their names.
_GIVEN: dict[str, Callable[..., Any]] = {}
#: What a module of the user's was imported from: its spec, which a reload replaces, and its text.
_IMPORTED: dict[str, tuple[Any, str]] = {}
#: Modules of objects that are told by how they are pickled.
_PICKLED = {"datetime", "decimal", "fractions", "numpy", "re", "types"}


def name_of(function: Callable[..., Any]) -> str:
    """Return the name by which :func:`imported` finds *function* in this process: ``module:function``, with
    a number if another function or object has that name."""
    named = function.func if isinstance(function, functools.partial) else function
    named = named if hasattr(named, "__qualname__") else type(named)
    plain = name = f"{named.__module__}:{named.__qualname__}"
    while _GIVEN.setdefault(name, function) is not function:
        name = f"{plain}#{int(name.partition('#')[2] or 1) + 1}"
    return name


def imported(name: str) -> Callable[..., Any]:
    """Return the function *name*, of a module that is installed or in the working directory, else a UsageError."""
    if name in _GIVEN:
        return _GIVEN[name]
    if not name.partition(":")[2]:
        raise UsageError(f"{name} is not of the form module:function.")
    if (
        directory := str(Path.cwd())
    ) not in sys.path:  # of an installed command it is the directory of the command
        sys.path.append(directory)
    try:
        loaded: Callable[..., Any] = resolve_name(name)
    except (Exception, SystemExit) as error:  # anything may happen in a module of the user's
        raise UsageError(f"{name} cannot be imported: {first_line(error)}.") from error
    if not callable(loaded):
        raise UsageError(f"{name} is not a function.")
    return loaded


def named(options: Mapping[str, Any]) -> list[str]:
    """Return the functions that *options* name: ``module:function``, also with ``=weight``."""
    texts = [
        text
        for value in options.values()
        for text in (value if isinstance(value, list | tuple) else [value])
    ]
    names = [text.partition("=")[0] for text in texts if isinstance(text, str)]
    return [
        name
        for name in names
        if name in _GIVEN or re.fullmatch(r"[^\W\d][\w.]*:[^\W\d][\w.]*", name)
    ]


def digests(names: Iterable[str]) -> dict[str, str]:
    """Return the digest of the code of each of *names* that is the user's.

    It covers the user's files of its module and imports, and the values in a closure or a partial function. A function
    of a notebook or of the running program counts by its source, and by the functions and constants it refers to.
    """
    found = {}
    for name in names:
        module, _, path = name.partition(":")
        value: Any = _GIVEN.get(name, sys.modules.get(module))
        for part in () if name in _GIVEN else path.split("."):
            value = getattr(value, part, None)
        if parts := [*_texts(module), *_parts(value, {})]:
            found[f"code of {name}"] = hashlib.sha256(
                "\0".join(parts).encode("utf-8", "replace")
            ).hexdigest()[:12]
    return found


def files(module: str, *directories: Path) -> dict[str, Path]:
    """Return the user's files of *module* and its imports, by module: loaded, in *directories* or on ``sys.path``."""
    found, waiting = dict[str, Path | None](), [module]
    while waiting:
        name = waiting.pop()
        if name and name not in found:
            found[name] = file = _file(name, [*map(str, directories), *sys.path])
            waiting += [name.rpartition(".")[0], *(_imports(name, file) if file else ())]
    return {name: file for name, file in found.items() if file}


def _file(module: str, roots: Iterable[str]) -> Path | None:
    loaded = getattr(sys.modules.get(module), "__file__", None)
    tails = [module.replace(".", "/") + end for end in (".py", "/__init__.py")]
    places = [Path(loaded)] if loaded else [Path(root, tail) for root in roots for tail in tails]
    file = next((place for place in places if place.suffix == ".py" and place.is_file()), None)
    return file if file and module != "__main__" and is_users(str(file.absolute())) else None


def _imports(module: str, file: Path) -> Iterator[str]:
    """Yield the names of what *module* imports: modules, and what may be modules."""
    try:
        tree = ast.parse(text := file.read_bytes())
    except (SyntaxError, ValueError) as error:
        raise UsageError(
            f"{file} cannot be read as Python ({first_line(error)}); correct it."
        ) from None
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: package.count(".") + 2 - node.level] if node.level else []
            origin = [*above, *filter(None, [node.module])]
            yield from (".".join([*origin, alias.name]) for alias in node.names)
        elif (
            isinstance(node, ast.Constant)
            and _MODULE.fullmatch(str(node.value))
            and _IMPORT.search(str(text))
        ):
            with suppress(ImportError):  # it leads out of the package
                yield importlib.util.resolve_name(str(node.value), package)


def _texts(module: str) -> list[str]:
    texts = {}
    for name, file in files(module).items():
        texts[file] = text = file.read_text("utf-8", "replace")
        spec = getattr(sys.modules.get(name), "__spec__", None)
        if spec and _IMPORTED.get(name, (None,))[0] is not spec:
            _IMPORTED[name] = spec, text
        if spec and _IMPORTED[name][1] != text:
            raise UsageError(
                f"{file} was changed after it was imported; reload {name}, or start Python again."
            )
    return [text for _, text in sorted(texts.items())]


def _parts(value: Any, seen: dict[int, Any]) -> Iterator[str]:
    """Yield texts that tell what *value*, a function, an object with one or a constant, does."""
    if isinstance(value, bool | int | float | complex | str | bytes | range | PurePath):
        yield repr(value)
    elif isinstance(value, list | tuple | set | frozenset | dict | deque):
        texts = [
            "".join(_parts(item, seen))
            for item in (value.items() if isinstance(value, dict) else value)
        ]
        yield (
            repr(sorted(texts) if isinstance(value, set | frozenset) else texts)
            if any(texts)
            else ""
        )
    elif id(value) not in seen:
        seen[id(value)] = value
        if not isinstance(value, FunctionType | type) and (
            isinstance(value, functools.partial | property | MethodType)
            or hasattr(value, "__wrapped__")
        ):
            names = ("func", "args", "keywords", "fget", "__func__", "__self__", "__wrapped__")
            yield from _parts([getattr(value, name, None) for name in names], seen)
            return
        kind = value if isinstance(value, type | FunctionType) else type(value)
        module = value.__name__ if isinstance(value, ModuleType) else kind.__module__
        texts = _texts(module)
        yield from texts
        if isinstance(value, FunctionType):
            yield from _of_function(value, seen, alone=not texts)
        elif isinstance(value, type) and module == "__main__":
            yield from _parts([value.__bases__, dict(vars(value))], seen)
        elif (
            value is not kind
            and (texts or module == "__main__")
            and not isinstance(value, ModuleType)
        ):
            yield from _parts([kind, _state(value)], seen)
        elif module in _PICKLED:
            with suppress(TypeError):  # it cannot be pickled
                reduce = copyreg.dispatch_table.get(type(value))
                yield from _parts(reduce(value) if reduce else value.__reduce_ex__(2), seen)


def _state(value: Any) -> dict[str, Any]:
    """Return the attributes of *value*, without those that its methods change, such as a counter."""
    names = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    values = {name: getattr(value, name) for name in names if hasattr(value, name)} | getattr(
        value, "__dict__", {}
    )
    changed = set()
    for kind in type(value).__mro__:
        for name, method in vars(kind).items():
            if isinstance(method, FunctionType) and name not in ("__init__", "__post_init__"):
                changed |= {match[1] for match in _SET.finditer(_source(method))}
    return {name: value for name, value in sorted(values.items()) if name not in changed}


def _source(function: FunctionType) -> str:
    try:
        return inspect.getsource(function.__code__)
    except (OSError, TypeError):  # written at a prompt
        return ""


def _of_function(function: FunctionType, seen: dict[int, Any], *, alone: bool) -> Iterator[str]:
    """Yield texts that tell what *function* does beside its file; *alone*, it has none that is the user's."""
    if alone and function.__module__ != "__main__":
        return
    code, values = function.__code__, dict[str, Any]()
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # it is empty
            values[name] = cell.cell_contents
    source = _source(function)
    if alone:
        steps = [step for part in _codes(code) for step in dis.get_instructions(part)]
        names = {step.argval for step in steps if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
        loads = {
            "IMPORT_NAME",
            *(["LOAD_CONST"] if any(_IMPORT.search(str(step.argval)) for step in steps) else []),
        }
        for name in sorted({str(step.argval) for step in steps if step.opname in loads}):
            yield from _texts(name) if _MODULE.fullmatch(name) else ()
        yield source or repr(
            [(part.co_code, part.co_names, [*_parts(part.co_consts, {})]) for part in _codes(code)]
        )
        values |= {name: function.__globals__[name] for name in names & function.__globals__.keys()}
        values |= {"": [function.__defaults__, function.__kwdefaults__]}
    changed = {
        name
        for match in _CHANGED.finditer(source)
        for name in re.findall(r"\w+", match[1] or match[2])
    }
    yield from _parts(
        [value for name, value in sorted(values.items()) if name not in changed], seen
    )


def _codes(code: CodeType) -> list[CodeType]:
    """Return *code* and that of the functions in it."""
    return [
        code,
        *(
            part
            for value in code.co_consts
            if isinstance(value, CodeType)
            for part in _codes(value)
        ),
    ]


@contextmanager
def running(description: str) -> Iterator[None]:
    """Raise UsageError from an error in the user's *description*."""
    try:
        yield
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"The {description} failed: {type(error).__name__}: {first_line(error)}."
        ) from error
