"""Experiment trackers beside the log: TensorBoard, Weights & Biases and Trackio, offline by default."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib.util import find_spec
from pathlib import Path

from countdown_rl.core import packages
from countdown_rl.core.errors import CountdownError

#: Project name of all runs, for the trackers that have projects.
PROJECT = "countdown-rl"


def check_trackers(names: Sequence[str]) -> None:
    """Raise CountdownError if one of the trackers *names* is not installed."""
    for name in names:
        if find_spec(name) is None:
            raise CountdownError(f"--report-to {name} needs a package: {packages.pip_install(name)}.")


@contextmanager
def tracking(names: Sequence[str], directory: Path) -> Iterator[None]:
    """Let the trackers *names* write to *directory*, offline unless the environment says otherwise.

    What they print from Python goes to stderr; stdout is for data.
    """
    if not names:
        yield
        return
    directory = directory.absolute()
    for key, value in {
        "TENSORBOARD_LOGGING_DIR": str(directory / "tensorboard"),
        "WANDB_DIR": str(directory),
        "WANDB_MODE": "offline",
        "WANDB_PROJECT": PROJECT,
        "WANDB_SILENT": "true",
        "TRACKIO_DIR": str(directory / "trackio"),
    }.items():
        os.environ.setdefault(key, value)
    with redirect_stdout(sys.stderr):
        yield
