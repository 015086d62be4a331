"""Where else a run is reported to: TensorBoard, Weights & Biases, Trackio, each into files beside the log."""

import contextlib
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from countdown_rl.errors import CountdownError

#: What the runs of this tool are called together, where a tracker asks.
PROJECT = "countdown-rl"


def aside(names: Sequence[str]) -> contextlib.AbstractContextManager[object]:
    """Within it what trackers print goes to stderr; stdout is for data."""
    return contextlib.redirect_stdout(sys.stderr) if names else contextlib.nullcontext()


def prepare(names: Sequence[str], beside: Path) -> None:
    """Make the trackers *names* ready: offline unless the environment says otherwise, their files in *beside*.

    Raises:
        CountdownError: one of them is not installed.
    """
    for name in names:
        if find_spec(name) is None:
            raise CountdownError(f"--report-to {name} needs a package: pip install 'countdown-rl[{name}]'.")
    if not names:
        return
    # transformers says on stdout, which is for data, that W&B is offline, if it knows while it is imported.
    with aside(names):
        import transformers.integrations.integration_utils  # noqa: F401
    where = beside.absolute()
    for key, value in {
        "TENSORBOARD_LOGGING_DIR": str(where / "tensorboard"),
        "WANDB_DIR": str(where),
        "WANDB_MODE": "offline",
        "WANDB_PROJECT": PROJECT,
        "WANDB_SILENT": "true",
        "TRACKIO_DIR": str(where / "trackio"),
    }.items():
        os.environ.setdefault(key, value)
