"""The command line, run in this process as the installed command runs it, its flags, and Python in another process."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from countdown_rl.cli import main


def status(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    """Run ``countdown-rl`` with *words* as arguments and return its exit status."""
    monkeypatch.setattr(sys, "argv", ["countdown-rl", *map(str, words)])
    with pytest.raises(SystemExit) as done:
        main.main()
    return done.value.code or 0


def python(
    code: str, env: Mapping[str, str] = os.environ, cwd: Path = Path(__file__).parents[2]
) -> str:
    """Run *code* in a new interpreter, which must succeed, and return its stdout."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=env, cwd=cwd, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    return done.stdout


def flags(command: str) -> set[str]:
    return {
        flag
        for param in main.command(command).params
        for flag in (*param.opts, *param.secondary_opts)
    }
