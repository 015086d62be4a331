"""The pipeline, its options and its commands stay one thing."""

import re
from collections.abc import Callable
from pathlib import Path

import grimp
import pytest
import yaml

from countdown_rl.cli import main
from countdown_rl.core.manifest import MADE_BY
from tests.support.command import flags

ROOT = Path(__file__).parents[1]
PIPELINE = yaml.safe_load((ROOT / "dvc.yaml").read_text())
#: Syntax of sh or bash that cmd.exe lacks or reads otherwise; ``${name}`` is DVC's.
SHELL = re.compile(
    r"""[;|&<>`'*?~]|\$(?!\{)|^\s*\w+=|\b(?:export|source|set|test|cp|mv|rm|mkdir)\s"""
)


def test_every_stage_of_the_pipeline_is_a_command_with_a_file_of_options():
    for name, stage in PIPELINE["stages"].items():
        words = stage.get("do", stage)["cmd"].split()
        assert words[:2] == ["countdown-rl", name]
        assert not SHELL.search(" ".join(words))
        assert {word for word in words if word.startswith("--")} <= flags(name)
        assert (words[-1] == f"${{{name}}}") == (ROOT / "stages" / f"{name}.yaml").is_file()
        assert (ROOT / "countdown_rl" / "cli" / f"{name.replace('-', '_')}.py").is_file()


def test_every_dependency_of_a_stage_is_there_or_made_by_another():
    made = {
        out if isinstance(out, str) else next(iter(out))
        for stage in PIPELINE["stages"].values()
        for kind in ("outs", "metrics", "plots")
        for out in stage.get("do", stage).get(kind, [])
    }
    keys = {key for stage in PIPELINE["stages"].values() for key in stage.get("foreach", ())}
    made |= {out.replace("${key}", key) for out in made for key in keys}
    for stage in PIPELINE["stages"].values():
        for dep in stage.get("do", stage)["deps"]:
            inside = any(out.startswith(dep) or dep.startswith(out) for out in made)
            assert inside or "${" in dep or (ROOT / dep).exists(), dep


def test_every_kind_of_artifact_names_a_command_that_exists():
    commands = {name for panel in main.COMMANDS.values() for name in panel}
    assert {made_by.split()[1] for made_by in MADE_BY.values()} <= commands


@pytest.fixture(scope="module")
def upstream() -> Callable[[str], set[str]]:
    """The modules that a command imports, directly or not, but not those of other commands."""
    graph = grimp.build_graph("countdown_rl", exclude_type_checking_imports=True, cache_dir=None)
    commands = {module for module in graph.modules if module.startswith("countdown_rl.cli.")}

    def upstream(command: str) -> set[str]:
        name = command.replace("-", "_")
        imported = graph.find_modules_directly_imported_by(f"countdown_rl.cli.{name}") - commands
        assert "countdown_rl.stages" not in imported  # the functions of all commands
        return imported | {
            module for each in imported for module in graph.find_upstream_modules(each)
        }

    return upstream


@pytest.mark.parametrize("stage", sorted(PIPELINE["stages"]))
def test_a_stage_depends_on_every_package_that_its_command_imports(stage, upstream):
    body = PIPELINE["stages"][stage]
    deps = {dep.replace("/", ".") for dep in body.get("do", body)["deps"]}
    assert {f"countdown_rl.{module.split('.')[1]}" for module in upstream(stage)} <= deps
