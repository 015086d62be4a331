"""The pipeline, its options and its commands stay one thing."""

import re
from itertools import chain
from pathlib import Path

import grimp
import yaml

from countdown_rl.cli import main
from countdown_rl.core.manifest import MADE_BY
from tests.support.command import flags

ROOT = Path(__file__).parents[1]
PIPELINE = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
STAGES = {name: stage.get("do", stage) for name, stage in PIPELINE.items()}
#: Syntax of sh or bash that cmd.exe lacks or reads otherwise; ``${name}`` is DVC's.
SHELL = re.compile(
    r"""[;|&<>`'*?~]|\$(?!\{)|^\s*\w+=|\b(?:export|source|set|test|cp|mv|rm|mkdir)\s"""
)


def test_every_stage_of_the_pipeline_is_a_command_with_a_file_of_options():
    for name, stage in STAGES.items():
        words = stage["cmd"].split()
        assert words[:2] == ["countdown-rl", name]
        assert not SHELL.search(" ".join(words))
        assert {word for word in words if word.startswith("--")} <= flags(name)
        assert (words[-1] == f"${{{name}}}") == (ROOT / "stages" / f"{name}.yaml").is_file()
        assert (ROOT / "countdown_rl" / "cli" / f"{name.replace('-', '_')}.py").is_file()


def test_every_dependency_of_a_stage_is_there_or_made_by_another():
    made: set[str] = set()
    for stage in STAGES.values():
        for out in chain(*(stage.get(kind, ()) for kind in ("outs", "metrics", "plots"))):
            name = out if isinstance(out, str) else next(iter(out))
            made.add(name.partition("${")[0])
    for dep in chain(*(stage["deps"] for stage in STAGES.values())):
        inside = any(out.startswith(dep) or dep.startswith(out) for out in made)
        assert inside or "${" in dep or (ROOT / dep).exists(), dep


def test_every_kind_of_artifact_names_a_command_that_exists():
    commands = {name for panel in main.COMMANDS.values() for name in panel}
    assert {made_by.split()[1] for made_by in MADE_BY.values()} <= commands


def test_a_stage_depends_on_every_package_that_its_command_imports():
    graph = grimp.build_graph("countdown_rl", exclude_type_checking_imports=True, cache_dir=None)
    commands = {module for module in graph.modules if module.startswith("countdown_rl.cli.")}
    for name, stage in STAGES.items():
        module = f"countdown_rl.cli.{name.replace('-', '_')}"
        imported = graph.find_modules_directly_imported_by(module) - commands
        assert "countdown_rl.stages" not in imported  # the functions of all commands
        upstream = imported.union(*map(graph.find_upstream_modules, imported))
        deps = {dep.replace("/", ".") for dep in stage["deps"]}
        assert {".".join(module.split(".")[:2]) for module in upstream} <= deps
