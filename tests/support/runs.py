"""Training runs in tests: killed after a step, and the bytes that they leave."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from countdown_rl.training.run import Reporter


class Killed(BaseException):
    """The process of a run ended."""


def killing(step: int, **callbacks: Callable[..., None]) -> Reporter:
    """A reporter that ends the run after the row of *step*."""

    def on_step(row: Any) -> None:
        if row.step == step:
            raise Killed

    return Reporter(step=on_step, **callbacks)


def files(path: Path) -> dict[str, bytes]:
    """The files in a directory."""
    return {file.name: file.read_bytes() for file in path.iterdir()}
