"""The README says what the commands do and what the pipeline measured."""

import re
from pathlib import Path

from countdown_rl.cli import main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_its_table_is_the_one_that_the_pipeline_made():
    assert (ROOT / "artifacts/eval/comparison/comparison.md").read_text().strip() in README


def test_each_command_and_flag_it_names_exists():
    commands = {name: main.command(name) for panel in main.COMMANDS.values() for name in panel}
    for block in re.findall(r"```\n(.*?)```", README, re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = line.split("#")[0].split()
            if words[:1] == ["countdown-rl"]:
                flags = {flag for param in commands[words[1]].params for flag in (*param.opts, *param.secondary_opts)}
                assert {word for word in words if word.startswith("--")} <= flags
    for command in re.findall(r"`countdown-rl ([a-z-]+)", README):
        assert command in commands


def test_each_path_it_names_exists():
    for path in re.findall(r"`((?:stages|countdown_rl|tests|benchmarks)/[\w./-]+)`", README):
        assert (ROOT / path).exists(), path
