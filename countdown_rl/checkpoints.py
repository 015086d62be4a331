"""Where a training run stands on disk: whole checkpoints of one run, told apart from another's.

A checkpoint counts once its ``whole`` mark is on disk, and the one before it goes only then, so a run
killed at any moment has a checkpoint to continue from.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RUN = "run.json"
MARK = "whole"


class Checkpoints:
    """The checkpoints of one run under *directory*. *identity* is all that decides what the run computes."""

    def __init__(self, directory: Path, identity: Mapping[str, Any]) -> None:
        self.directory = directory
        self.identity = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()

    def foreign(self) -> bool:
        """Whether there is something to continue, but of another run than this."""
        return self.newest() is not None and not self._same_run()

    def _same_run(self) -> bool:
        try:
            return bool(json.loads((self.directory / RUN).read_bytes())["identity"] == self.identity)
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def latest(self) -> Path | None:
        """The newest whole checkpoint of this very run."""
        return self.newest() if self._same_run() else None

    def newest(self) -> Path | None:
        """The newest whole checkpoint, whoever left it."""
        found = [path.parent for path in self.directory.glob(f"checkpoint-*/{MARK}")]
        return max(found, key=step_of, default=None)

    def begin(self) -> None:
        """Clear what another run left, and write down whose directory this is now."""
        self.clear()
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / RUN).write_text(json.dumps({"identity": self.identity}) + "\n")

    def keep(self, checkpoint: Path) -> None:
        """Mark *checkpoint* as whole once its bytes are on disk, then drop every other one."""
        for path in [*checkpoint.rglob("*"), checkpoint]:
            _flush(path)
        (checkpoint / MARK).touch()
        _flush(checkpoint / MARK)
        _flush(checkpoint)
        for other in self.directory.glob("checkpoint-*"):
            if other != checkpoint:
                shutil.rmtree(other, ignore_errors=True)

    def clear(self) -> None:
        """Remove all checkpoints, and nothing that is not ours."""
        for path in self.directory.glob("checkpoint-*"):
            shutil.rmtree(path, ignore_errors=True)
        (self.directory / RUN).unlink(missing_ok=True)
        if self.directory.is_dir() and not any(self.directory.iterdir()):
            self.directory.rmdir()


def step_of(checkpoint: Path) -> int:
    """The optimiser step that *checkpoint* was written after."""
    return int(checkpoint.name.removeprefix("checkpoint-"))


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
