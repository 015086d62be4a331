"""Where a training run stands on disk: whole checkpoints of one run, told apart from another's.

A checkpoint counts once its ``whole`` mark is on disk, and the one before it goes only then, so a run
killed at any moment has a checkpoint to continue from.
"""

import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from countdown_rl import artifacts
from countdown_rl.training.config import TrainOptions

RUN = "run.json"
MARK = "whole"
#: How many differences are named before the rest are counted.
_NAMED = 3


class Checkpoints:
    """The checkpoints of one run under *directory*. *identity* is all that decides what the run computes."""

    def __init__(self, directory: Path, identity: Mapping[str, Any]) -> None:
        self.directory = directory
        self.identity = json.loads(json.dumps(identity))  # as it comes back from disk

    def differences(self) -> list[str]:
        """What tells this run from the unfinished one that is kept here; empty where there is none, or no other.

        Each is a phrase such as ``--seed was 42, is 1`` or ``other data``; after a few, how many more.
        """
        if self.newest() is None:
            return []
        kept = self._kept()
        if kept == self.identity:
            return []
        found = []
        for section in ("options", "inputs", "versions") if isinstance(kept, dict) else ():
            was, now = (run.get(section, {}) for run in (kept, self.identity))
            for key in [*now, *(key for key in was if key not in now)]:
                if was.get(key) == now.get(key):
                    continue
                if section == "inputs":
                    found.append(f"another {key}" if key == "model" else f"other {key}")
                else:
                    name = "--" + key.replace("_", "-") if section == "options" else key
                    found.append(f"{name} was {_plain(was.get(key))}, is {_plain(now.get(key))}")
        found = found or ["it cannot be read"]
        return found[:_NAMED] + ([f"{len(found) - _NAMED} more"] if len(found) > _NAMED else [])

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
            artifacts.fsync(path)
        (checkpoint / MARK).touch()
        artifacts.fsync(checkpoint / MARK)
        artifacts.fsync(checkpoint)
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


class Due:
    """When a checkpoint is due: after so many steps or minutes, at the end of a round, before the last step."""

    def __init__(self, options: TrainOptions, round_steps: int) -> None:
        self._every = -(-options.save_steps // round_steps) * round_steps
        self._seconds = options.save_minutes * 60
        self._round, self._steps = round_steps, options.max_steps
        self._last = time.monotonic()

    def __call__(self, step: int) -> bool:
        if step % self._round or step >= self._steps:
            return False
        if not (self._every and step % self._every == 0) and not (self._seconds and self._late()):
            return False
        self._last = time.monotonic()
        return True

    def _late(self) -> bool:
        from accelerate.utils import broadcast_object_list

        late = [time.monotonic() - self._last >= self._seconds]
        return bool(broadcast_object_list(late)[0])  # all processes save, or none


def step_of(checkpoint: Path) -> int:
    """The optimiser step that *checkpoint* was written after."""
    return int(checkpoint.name.removeprefix("checkpoint-"))


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value)) or "not given"
    return "not given" if value is None else str(value)
