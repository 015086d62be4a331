"""Where a training run stands on disk: whole checkpoints of one run, told apart from another's.

A checkpoint counts once its ``whole`` mark is on disk, and the one before it goes only then, so a run
killed at any moment has a checkpoint to continue from.
"""

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
        self.identity = json.loads(json.dumps(identity))  # as it comes back from disk

    def differences(self) -> list[str]:
        """What tells this run from the unfinished one that is kept here; empty where there is none, or no other.

        Each is a phrase such as ``--seed was 42, is 1`` or ``other data``.
        """
        if self.newest() is None:
            return []
        kept = self._kept()
        if kept == self.identity:
            return []
        found = []
        for section in ("options", "inputs", "versions"):
            was, now = (run.get(section, {}) if isinstance(run, dict) else {} for run in (kept, self.identity))
            for key in [*now, *(key for key in was if key not in now)]:
                if was.get(key) == now.get(key):
                    continue
                if section == "inputs":
                    found.append(f"another {key}" if key == "model" else f"other {key}")
                else:
                    name = "--" + key.replace("_", "-") if section == "options" else key
                    found.append(f"{name} was {_plain(was.get(key))}, is {_plain(now.get(key))}")
        return found or ["it cannot be read"]

    def _kept(self) -> Any:
        try:
            return json.loads((self.directory / RUN).read_bytes())["run"]
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def latest(self) -> Path | None:
        """The newest whole checkpoint of this very run."""
        return self.newest() if self._kept() == self.identity else None

    def newest(self) -> Path | None:
        """The newest whole checkpoint, whoever left it."""
        found = [path.parent for path in self.directory.glob(f"checkpoint-*/{MARK}")]
        return max(found, key=step_of, default=None)

    def begin(self) -> None:
        """Clear what another run left, and write down whose directory this is now."""
        self.clear()
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / RUN).write_text(json.dumps({"run": self.identity}, indent=2) + "\n")

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


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value)) or "not given"
    return "not given" if value is None else str(value)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
