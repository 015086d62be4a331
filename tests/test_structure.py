"""The layers of the package: imports go down only, the light layers stay light, and only a task knows of itself."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.imports import ROOT, imports

#: From the top down; modules that lie directly in the package come last.
LAYERS = (
    "cli",
    "release",
    "training",
    "evaluation",
    "export",
    "inference",
    "integrations",
    "data",
    "models",
    "tasks",
    "core",
    "",
)
#: The public API, above all layers.
PUBLIC = ("countdown_rl/__init__.py", "countdown_rl/rewards.py", "countdown_rl/stages.py")
FILES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "countdown_rl").rglob("*.py"))


def layer(file: str) -> int:
    parts = Path(file).parts
    return LAYERS.index(parts[1] if len(parts) > 2 else "")


def test_every_package_has_a_layer_and_an_empty_init():
    packages = {path.parent for path in (ROOT / "countdown_rl").rglob("__init__.py")} - {ROOT / "countdown_rl"}
    assert {package.relative_to(ROOT / "countdown_rl").parts[0] for package in packages} == set(LAYERS) - {""}
    assert all(not (package / "__init__.py").read_text() for package in packages)


@pytest.mark.parametrize("file", [file for file in FILES if not file.endswith(("__main__.py", *PUBLIC))])
def test_imports_go_down_the_layers_only(file):
    assert [used for used in sorted(imports(file)) if layer(used) < layer(file)] == []


@pytest.mark.parametrize("package", ["core", "tasks", "data"])
def test_the_light_packages_load_neither_torch_nor_typer(package):
    modules = [
        file.removesuffix(".py").replace("/", ".") for file in FILES if file.startswith(f"countdown_rl/{package}/")
    ]
    code = f"import sys, {', '.join(modules)}; sys.exit(bool({'torch', 'typer'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


#: Modules of one task: the puzzle, its data, its commands and its demo; word problems; the registry.
OF_A_TASK = (
    *("tasks/countdown/", "data/countdown", "data/distribution", "data/enumeration", "data/generate"),
    *("inference/ask", "cli/ask", "cli/solve", "release/demo", "tasks/gsm8k", "tasks/registry"),
)
#: Fields of their rows, and their names.
WORDS = {"nums", "gold", "question", "countdown", "gsm8k"}


def task_knowledge(source: str) -> set[str]:
    """The fields, names and modules of single tasks that *source* speaks of."""
    words = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            words |= {node.value} & WORDS
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules = {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            words |= modules & {"countdown_rl.tasks.countdown.task", "countdown_rl.tasks.gsm8k"}
    return words


def test_generic_modules_know_of_no_single_task():
    others = [file for file in FILES if file not in PUBLIC]
    generic = [file for file in others if not file.removeprefix("countdown_rl/").startswith(OF_A_TASK)]
    assert {file: words for file in generic if (words := task_knowledge((ROOT / file).read_text()))} == {}
    assert task_knowledge('row["nums"]') == {"nums"}
    assert task_knowledge("from countdown_rl.tasks import gsm8k") == {"countdown_rl.tasks.gsm8k"}
