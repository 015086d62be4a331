"""The command line, run in this process as the installed command runs it, and its flags."""

import sys

import pytest

from countdown_rl.cli import main


def status(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    """Run ``countdown-rl`` with *words* as arguments and return its exit status."""
    monkeypatch.setattr(sys, "argv", ["countdown-rl", *map(str, words)])
    with pytest.raises(SystemExit) as done:
        main.main()
    return done.value.code or 0


def flags(command: str) -> set[str]:
    return {flag for param in main.command(command).params for flag in (*param.opts, *param.secondary_opts)}
