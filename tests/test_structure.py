"""The layers of the package: imports go down only, and the light layers stay light."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.imports import ROOT, imports

#: From the top down; modules that lie directly in the package come last.
LAYERS = (
    "cli",
    "hub",
    "report",
    "export",
    "training",
    "sft",
    "evaluation",
    "runlog",
    "tiny",
    "inference",
    "integrations",
    "data",
    "models",
    "tasks",
    "puzzle",
    "",
)
FILES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "countdown_rl").rglob("*.py"))


def layer(file: str) -> int:
    parts = Path(file).parts
    return LAYERS.index(parts[1] if len(parts) > 2 else "")


def test_every_package_has_a_layer_and_an_empty_init():
    packages = {path.parent for path in (ROOT / "countdown_rl").rglob("__init__.py")} - {ROOT / "countdown_rl"}
    assert {package.name for package in packages} == set(LAYERS) - {""}
    assert all(not (package / "__init__.py").read_text() for package in packages)


@pytest.mark.parametrize("file", [file for file in FILES if not file.endswith("__main__.py")])
def test_imports_go_down_the_layers_only(file):
    assert [used for used in sorted(imports(file)) if layer(used) < layer(file)] == []


def test_no_other_package_imports_the_one_of_the_shipped_model():
    """A user of another model loads none of it: only the hooks of a task reach it, by names in strings."""
    others = [file for file in FILES if not file.startswith("countdown_rl/tiny/")]
    assert [file for file in others if any(used.startswith("countdown_rl/tiny/") for used in imports(file))] == []


@pytest.mark.parametrize("package", ["puzzle", "tasks"])
def test_the_puzzle_and_its_tasks_load_no_torch(package):
    modules = [
        file.removesuffix(".py").replace("/", ".") for file in FILES if file.startswith(f"countdown_rl/{package}/")
    ]
    code = f"import sys, {', '.join(modules)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
