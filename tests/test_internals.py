"""Private names of libraries, listed as PRIVATE: few, still there and called (ruff finds all others)."""

import importlib
import inspect
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
#: Most private names that the package may rely on.
BUDGET = 20
FILES = sorted((ROOT / "countdown_rl").rglob("*_internals.py"))
#: TRL's, for overriding.
GRPO = ROOT / "countdown_rl" / "training" / "grpo"
FILES += [GRPO / "policy.py", GRPO / "trainer.py"]
MODULES = {
    file: importlib.import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))
    for file in FILES
}
PRIVATE = [(file, name) for file, module in MODULES.items() for name in module.PRIVATE]


def owner_of(path):
    """The module or class at a dotted *path*."""
    module, _, attribute = path.rpartition(".")
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError:
        return getattr(owner_of(module), attribute)


@pytest.mark.parametrize(("file", "name"), PRIVATE, ids=[name for _, name in PRIVATE])
def test_a_private_name_still_exists_and_is_used(file, name):
    path, _, attribute = name.rpartition(".")
    owner = owner_of(path)
    assert attribute.startswith("_")
    assert attribute in file.read_text().replace(f'"{name}"', "")
    if not inspect.isclass(owner):
        assert hasattr(owner, attribute)
        return
    # Its methods read the name: an override that nothing calls would change nothing.
    modules = {sys.modules[base.__module__] for base in owner.__mro__}
    modules -= {sys.modules["builtins"]}
    assert re.search(rf"\.{attribute}\b", "".join(map(inspect.getsource, modules)))


def test_there_are_few_private_names_and_each_is_listed_once():
    names = [name for _, name in PRIVATE]
    assert len(set(names)) == len(names) <= BUDGET
    assert sum(name.startswith("trl.") for name in names) <= 3
