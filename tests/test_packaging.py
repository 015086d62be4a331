"""What pyproject.toml declares is what the code imports, and CI runs everywhere the same."""

import ast
import graphlib
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import grimp
import yaml

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
#: Modules whose distribution is not installed for the tests.
ELSEWHERE = {"vllm": "vllm", "wandb": "wandb", "trackio": "trackio", "deepspeed": "deepspeed"}
#: Files for another program, which brings what they import.
OF_OTHERS = ("integrations/verifiers", "integrations/lm_eval")


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def imported() -> set[str]:
    """Return the top-level modules of others that the package imports anywhere."""
    modules = set()
    for path in (ROOT / "countdown_rl").rglob("*.py"):
        if path.relative_to(ROOT / "countdown_rl").as_posix().startswith(OF_OTHERS):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                modules |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                modules.add(node.module.partition(".")[0])
    return modules - set(sys.stdlib_module_names) - {"countdown_rl"}


def test_every_package_that_is_imported_is_declared():
    extras = PROJECT["optional-dependencies"].values()
    lists = [PROJECT["dependencies"], *extras]
    declared = {normal(re.match(r"[\w.-]+", text)[0]) for texts in lists for text in texts}
    distributions = packages_distributions()
    for module in sorted(imported()):
        names = distributions.get(module) or [ELSEWHERE[module]]
        assert declared & set(map(normal, names)), f"{module} of {names}"


def test_no_two_modules_import_each_other_lazily_or_for_types():
    graph = grimp.build_graph("countdown_rl")
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert graphlib.TopologicalSorter(imports).prepare() is None  # CycleError names them


def test_the_host_runs_the_parts_of_ci_run():
    make = (ROOT / ".ci/run").read_text().splitlines()[-1]
    parts = [f"make {word}" for word in make.split()[2:] if word[0] != "-"]
    workflow = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())
    assert sorted(workflow["jobs"]["part"]["strategy"]["matrix"]["run"]) == sorted(parts)
