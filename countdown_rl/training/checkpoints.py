"""Checkpoints of one run of ``sft`` or ``train``.

A checkpoint counts once its bytes, and then its ``complete`` mark, are on disk. Only then is the previous one removed.
So a run that is killed at any moment has a checkpoint to resume from.
"""

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from countdown_rl.core import artifacts
from countdown_rl.core.errors import ArtifactError, UsageError
from countdown_rl.core.identity import RUN, describe_differences

MARK = "complete"


class Checkpoints:
    """The checkpoints under *directory* of the run with *identity*, see :func:`run_identity`."""

    def __init__(self, directory: Path, identity: Mapping[str, Any]) -> None:
        self.directory, self.identity = directory, identity

    def check_paths(self, out: Path, kind: str, log: Path) -> None:
        """Check that a run can keep its checkpoints here, and write an artifact of *kind* at *out* and the CSV *log*.

        Raises:
            ArtifactError: *out* or this directory holds files of other programs, or *out* cannot be written.
            UsageError: this directory or *log* lies in *out*.
        """
        artifacts.check_writable(out, kind)  # before the lock of *checkpoints*, which could be a file in *out*
        for option, path in (("--log", log), ("--checkpoints", self.directory)):
            if path.resolve().is_relative_to(out.resolve()):
                raise UsageError(f"{option} {path} lies in --out {out}, which the run replaces; give another path.")
            artifacts.check_place(path, option)
        if (others := self._directories()) and not (self.directory / RUN).is_file():
            raise ArtifactError(
                f"{others[0]} was not written by countdown-rl; give another directory of --checkpoints."
            )

    def to_resume(self) -> Path | None:
        """The newest complete checkpoint, or None.

        Raises:
            ArtifactError: it belongs to another run.
        """
        newest, unfinished = self.newest(), self._unfinished()
        if newest is None or unfinished == self.identity:
            return newest
        differences = describe_differences(unfinished, self.identity) if unfinished else ""
        raise ArtifactError(
            f"{self.directory} holds an unfinished run that is not this one ({differences or 'it cannot be read'}); "
            "use its options to resume it, or give --restart to begin again."
        )

    def how_to_continue(self) -> str:
        """The sentence for a user who stopped a run."""
        if newest := self.newest():
            return f"The same command continues after step {step_of(newest)}; add --restart to begin again."
        return "There is no checkpoint of this run yet; the same command starts it again."

    def _unfinished(self) -> Any:
        """The identity of the run in the directory."""
        try:
            return json.loads((self.directory / RUN).read_bytes())["run"]
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def newest(self) -> Path | None:
        """The newest complete checkpoint of any run."""
        complete = (path for path in self._directories("checkpoint") if (path / MARK).is_file())
        return max(complete, key=step_of, default=None)

    def start(self) -> None:
        """Clear the directory and write this run's identity into it."""
        self.clear()
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / RUN).write_text(json.dumps({"run": self.identity}, indent=2) + "\n")

    def best(self, step: int) -> Path:
        """The directory of the weights after *step*, the best so far."""
        return self.directory / f"best-{step}"

    def complete(self, checkpoint: Path, best: int | None = None) -> None:
        """Mark *checkpoint* as complete once its bytes are on disk, then remove all others but those of step *best*."""
        artifacts.fsync(checkpoint)
        (checkpoint / MARK).touch()
        artifacts.fsync(checkpoint)
        _remove([other for other in self._directories() if other not in (checkpoint, self.best(best or 0))])

    def _directories(self, kind: str = "checkpoint|best") -> list[Path]:
        paths = sorted(self.directory.glob("*-*"))
        return [path for path in paths if path.is_dir() and re.fullmatch(f"({kind})-[0-9]+", path.name)]

    def clear_own(self) -> None:
        """Remove what is left of this run, not of others."""
        if self._unfinished() == self.identity:
            self.clear()

    def clear(self) -> None:
        """Remove all checkpoints, and the directory if it is empty then."""
        _remove(self._directories())
        (self.directory / RUN).unlink(missing_ok=True)
        if self.directory.is_dir() and not any(self.directory.iterdir()):
            self.directory.rmdir()


def _remove(directories: Sequence[Path]) -> None:
    for path in directories:  # first, so that none that is partly removed counts as complete
        (path / MARK).unlink(missing_ok=True)
    for path in directories:
        shutil.rmtree(path, ignore_errors=True)


def step_of(checkpoint: Path) -> int:
    """The optimizer step after which *checkpoint* was written."""
    return int(checkpoint.name.removeprefix("checkpoint-"))
