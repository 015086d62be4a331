"""Private names of libraries in the modules ``*_internals.py``: few, still there and called (ruff finds all others)."""

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
