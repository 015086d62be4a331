"""Private names of libraries: few, each in the module for its library (``*_internals.py``), still there and called."""

import ast
import importlib
import inspect
import sys
import textwrap
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = {
    path: ast.parse(path.read_text())
    for path in sorted((ROOT / "countdown_rl").rglob("*.py"))
    if not path.name.startswith("__")
}
#: Most private names that the package may rely on.
BUDGET = 20
#: Private by their underscore alone: the documentation of Python and NamedTuple names them.
DOCUMENTED = {"_replace", "_asdict", "_fields", "_exit", "_getframe"}


def module_of(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


INTERNALS = [path for path in FILES if path.stem.endswith("_internals")]
PRIVATE = [(module_of(path), name) for path in INTERNALS for name in importlib.import_module(module_of(path)).PRIVATE]


def private(name):
    return name.startswith("_") and not name.startswith("__") and name != "_" and name not in DOCUMENTED


def is_of_library(base):
    """True for a class of a library that is written in Python."""
    package = base.__module__.partition(".")[0]
    return package not in {"countdown_rl", *sys.stdlib_module_names} and base.__module__ != "torch._C"


@cache
def classes_of(owner):
    """The syntax of a class of a library and of its base classes, as far as their source can be found."""
    trees = []
    for base in filter(is_of_library, owner.__mro__):
        with suppress(OSError):  # raised for a class whose __module__ names another module than its own
            trees.append(ast.parse(textwrap.dedent(inspect.getsource(base))))
    return trees


@cache
def names_of(owner):
    """The private names of a class of a library: its attributes, and those that its methods read or set on ``self``."""
    read = {
        node.attr
        for tree in classes_of(owner)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    }
    return {name for name in {*dir(owner), *read} if private(name)}


@pytest.mark.parametrize(("module", "name"), PRIVATE)
def test_a_private_name_still_exists_and_is_called(module, name):
    *path, attribute = name.split(".")
    for count in range(len(path), 0, -1):
        try:
            owner = importlib.import_module(".".join(path[:count]))
            break
        except ModuleNotFoundError:
            continue
    for part in path[count:]:
        owner = getattr(owner, part)
    assert private(attribute)
    assert attribute in names_of(owner) if inspect.isclass(owner) else hasattr(owner, attribute)
    if inspect.isclass(owner):  # also called: an override that nothing calls would change nothing
        reads = (node for tree in classes_of(owner) for node in ast.walk(tree) if isinstance(node, ast.Attribute))
        assert any(node.attr == attribute and isinstance(node.ctx, ast.Load) for node in reads)
    assert attribute in (ROOT / (module.replace(".", "/") + ".py")).read_text().replace(f'"{name}"', "")


def test_there_are_few_private_names_and_each_is_listed_once():
    names = [name for _, name in PRIVATE]
    assert len(set(names)) == len(names)
    assert len(names) <= BUDGET


def own_names(tree):
    """The private names that a file itself defines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr


def library_bases(path, node):
    """The classes of libraries that the class *node* derives from."""
    names = {base.id if isinstance(base, ast.Name) else getattr(base, "attr", "") for base in node.bases}
    if not names - {"Protocol", "NamedTuple", "Enum", "Exception", "object"}:
        return []
    try:
        own = getattr(importlib.import_module(module_of(path)), node.name, None)
    except ModuleNotFoundError as error:  # an optional package
        pytest.skip(str(error))
    return [base for base in getattr(own, "__mro__", ()) if is_of_library(base)]


def uses(path, tree):
    """Uses of private names of libraries in a file: imports, attributes, and what a class overrides or reads."""
    own = set(own_names(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None) or ""
            for alias in node.names:
                parts = f"{module}.{alias.name}".strip(".").split(".")
                if parts[0] not in ("countdown_rl", "__future__") and any(map(private, parts)):
                    yield ".".join(parts)
        elif isinstance(node, ast.Attribute) and private(node.attr):
            to_self = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if not to_self and not ast.unparse(node.value).startswith("super()") and node.attr not in own:
                yield ast.unparse(node)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "setattr", "hasattr", "delattr"):
            attribute = node.args[1]
            if isinstance(attribute, ast.Constant) and private(attribute.value):
                yield ast.unparse(node)
        elif isinstance(node, ast.ClassDef):
            names = {name for base in library_bases(path, node) for name in names_of(base)}
            defined = {*own_names(node), *(part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute))}
            yield from (f"{node.name}.{name}" for name in sorted(names & defined))


@pytest.mark.parametrize("path", [path for path in FILES if path not in INTERNALS], ids=lambda path: path.name)
def test_no_other_module_uses_a_private_name(path):
    assert list(uses(path, FILES[path])) == []
