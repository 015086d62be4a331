"""What a run remembers beside its weights (rows, warnings, samples, evidence), and shows beside its log."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from countdown_rl.data import jsonl
from countdown_rl.errors import InputError
from countdown_rl.runlog import log as trainlog
from countdown_rl.runlog import plots
from countdown_rl.runlog.log import StepRow

#: In each checkpoint.
_ROWS, _REST = "steps.csv", "history.json"
#: Beside the log: completions as they were while the model learnt, and the run as a picture.
SAMPLES, PICTURE = "samples.jsonl", "curves.png"


@dataclass
class History:
    """The past of one run.

    Attributes:
        rows: one a step.
        warnings: sentences that were said, by a short name.
        samples: completions as they were while the model learnt, oldest first.
        evidence: what the curriculum goes by, if there is one.
    """

    rows: list[StepRow] = field(default_factory=list)
    warnings: dict[str, str] = field(default_factory=dict)
    samples: list[dict[str, Any]] = field(default_factory=list)
    evidence: list[dict[str, Any]] = field(default_factory=list)

    def save(self, checkpoint: Path) -> None:
        """Write it into the directory *checkpoint*."""
        trainlog.write(checkpoint / _ROWS, self.rows)
        rest = {"warnings": self.warnings, "samples": self.samples, "evidence": self.evidence}
        (checkpoint / _REST).write_text(json.dumps(rest))


def load(checkpoint: Path) -> History:
    """The history that :meth:`History.save` wrote there."""
    return History(trainlog.read(checkpoint / _ROWS), **json.loads((checkpoint / _REST).read_bytes()))


def read_samples(path: Path) -> list[dict[str, Any]]:
    """The samples of a run, as its :class:`Journal` wrote them at *path*; a line cut off at the end is left out.

    Raises:
        InputError: they are not.
    """
    # Bytes, because a text's lines also end at characters that a model may have written.
    lines = path.read_bytes().split(b"\n")[:-1]
    try:
        samples = [json.loads(line) for line in lines]
        if all({"step", "completion", "correct", "reason"} <= sample.keys() for sample in samples):
            return samples
    except (ValueError, AttributeError):
        pass
    raise InputError(f"{path} holds no samples of a training run.")


class Journal:
    """The files beside the log *log* (none where it is None) that show *past* to a person while it grows.

    Args:
        steps: of the whole run, after which the log is written whatever *every* says.
        every: steps a row of the log.
    """

    def __init__(self, past: History, log: Path | None, *, steps: int, every: int) -> None:
        self._past, self._log = past, log
        self._steps, self._every = steps, every

    def begin(self) -> None:
        """Write what there is so far; whatever a run that was killed had written after it goes."""
        if self._log:
            self._write_log(self._log)
            jsonl.write_rows(self._log.parent / SAMPLES, self._past.samples)
            (self._log.parent / PICTURE).unlink(missing_ok=True)

    def step(self, row: StepRow) -> None:
        """Take note of *row*, which is in the past already."""
        if self._log and (row.step % self._every == 0 or row.step == self._steps):
            self._write_log(self._log)

    def sample(self, samples: list[dict[str, Any]]) -> None:
        """Add *samples* to the past and to its file."""
        self._past.samples += samples
        if self._log:
            jsonl.append_rows(self._log.parent / SAMPLES, samples)

    def end(self) -> None:
        """Draw the finished run."""
        if self._log:
            plots.draw(self._log, self._log.parent / PICTURE)

    def _write_log(self, log: Path) -> None:
        trainlog.write(log, trainlog.thinned(self._past.rows, self._every))
