"""Experiment trackers beside the log: TensorBoard, Weights & Biases and Trackio, offline by default."""

import contextlib
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from countdown_rl.core import packages
from countdown_rl.core.errors import CountdownError

#: Project name of all runs, for the trackers that have projects.
PROJECT = "countdown-rl"


def prints_to_stderr(names: Sequence[str]) -> contextlib.AbstractContextManager[object]:
    """Redirect to stderr what the trackers *names* print from Python; stdout is for data."""
    return contextlib.redirect_stdout(sys.stderr) if names else contextlib.nullcontext()


def check_trackers(names: Sequence[str]) -> None:
    """Raise CountdownError if one of the trackers *names* is not installed."""
    for name in names:
        if find_spec(name) is None:
            raise CountdownError(f"--report-to {name} needs a package: {packages.pip_install(name)}.")


def prepare(names: Sequence[str], directory: Path) -> None:
    """Set up the trackers *names*: files in *directory*, offline unless the environment says otherwise."""
    if not names:
        return
    # While it is imported, transformers prints on stdout that W&B is offline if that is set already.
    with prints_to_stderr(names):
        import transformers.integrations.integration_utils  # noqa: F401
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
