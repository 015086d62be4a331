"""The package and its pipeline name nothing that only Unix has."""

import ast
import re

import pytest
import yaml

from tests.support.imports import ROOT
from tests.test_structure import FILES

#: Modules of the standard library that Windows lacks.
UNIX = {"fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty"}
#: Syntax of sh or bash that cmd.exe lacks or reads otherwise; ``${name}`` is DVC's.
SHELL = re.compile(r"""[;|&<>`'*?~]|\$(?!\{)|^\s*\w+=|\b(?:export|source|set|test|cp|mv|rm|mkdir)\s""")


def imported_at_once(statements):
    """The modules that a module imports as it is imported, but for those in a ``try``."""
    for node in statements:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.If | ast.With | ast.ClassDef):
            yield from imported_at_once(node.body)


@pytest.mark.parametrize("file", FILES)
def test_no_module_needs_unix_to_be_imported(file):
    assert not UNIX.intersection(imported_at_once(ast.parse((ROOT / file).read_text("utf-8")).body))


def commands(node):
    """The values of ``cmd`` anywhere below *node*."""
    for key, value in node.items():
        if key == "cmd":
            yield value
        elif isinstance(value, dict):
            yield from commands(value)


def test_stages_are_commands_without_syntax_of_a_shell():
    lines = list(commands(yaml.safe_load((ROOT / "dvc.yaml").read_text())))
    assert len(lines) == 8
    assert [line for line in lines if not line.startswith("countdown-rl ") or SHELL.search(line)] == []
