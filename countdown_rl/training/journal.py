"""Record of one training run: kept whole in its checkpoints, and written beside its log while it grows."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from countdown_rl.core import artifacts
from countdown_rl.core.errors import ArtifactError, InputError
from countdown_rl.tasks import jsonl
from countdown_rl.training import log as trainlog
from countdown_rl.training.log import SftRow, StepRow

#: Completions sampled during training, beside the ``log.csv`` of the run.
SAMPLES = "samples.jsonl"
#: Files of a journal in a checkpoint.
_ROWS, _REST = "steps.csv", "journal.json"


@dataclass
class Journal:
    """Everything that a resumed run must know of its past, beside the weights.

    Attributes:
        log: the CSV to write, with the samples in a file beside it; None writes neither.
        max_steps: the last step.
        kind: the class of the rows.
        start: share of the validation puzzles solved before the first step, if that was evaluated.
        rows: one per step.
        warnings: sentences that were printed, by a short name.
        samples: completions, oldest first.
        evidence: state of the curriculum, if there is one.
        threads: CPU threads, on whose number the rounding of sums depends.
    """

    log: Path | None
    max_steps: int
    kind: type[StepRow] | type[SftRow] = StepRow
    start: float | None = None
    rows: list[Any] = field(default_factory=list)
    warnings: dict[str, str] = field(default_factory=dict)
    samples: list[dict[str, Any]] = field(default_factory=list)
    evidence: list[dict[str, Any]] = field(default_factory=list)
    threads: int | None = None

    def best(self) -> tuple[int, float] | None:
        """The first step with the highest ``eval_correct``, 0 for the start, and that share; None without any."""
        scored = [(0, self.start), *((row.step, row.eval_correct) for row in self.rows)]
        return max(
            ((step, share) for step, share in scored if share is not None), key=lambda pair: pair[1], default=None
        )

    def save(self, checkpoint: Path) -> None:
        """Write the journal into the directory *checkpoint*."""
        trainlog.write(checkpoint / _ROWS, self.rows)
        names = ("start", "warnings", "samples", "evidence", "threads")
        rest = {name: getattr(self, name) for name in names}
        (checkpoint / _REST).write_text(json.dumps(rest))

    def load(self, checkpoint: Path) -> None:
        """Restore what :meth:`save` wrote into *checkpoint*."""
        self.rows = trainlog.read(checkpoint / _ROWS, self.kind)
        for name, value in json.loads((checkpoint / _REST).read_bytes()).items():
            setattr(self, name, value)

    def write(self) -> None:
        """Write log and samples anew, without what an interrupted run added after its last checkpoint."""
        if self.log:
            trainlog.write(self.log, self.rows)
            if self.kind is StepRow:  # sft samples nothing
                with artifacts.replacing(samples_file(self.log)) as partial:
                    jsonl.write_rows(partial, self.samples)

    def add_row(self, row: StepRow | SftRow) -> None:
        """Add *row*, also to the log."""
        self.rows.append(row)
        if self.log:
            trainlog.write(self.log, self.rows)

    def add_samples(self, samples: list[dict[str, Any]]) -> None:
        """Add *samples*, also to their file."""
        self.samples += samples
        if self.log:
            jsonl.write_rows(samples_file(self.log), samples, append=True)


def samples_file(log: Path) -> Path:
    """The file of completions beside *log*, named after it so that runs with logs in one directory keep their own."""
    return log.with_name(SAMPLES if log.stem == "log" else f"{log.stem}-{SAMPLES}")


def check_log(log: Path | None, kind: type[StepRow] | type[SftRow], *, resumes: bool = False) -> None:
    """Check that a run of rows of *kind* that writes *log* replaces no other file than those of such a run.

    Args:
        resumes: the run continues one that wrote samples; its log may be gone, as DVC removes it.

    Raises:
        ArtifactError: there is one.
    """
    if log is None:
        return
    samples = samples_file(log)
    for file, read in ((log, lambda file: trainlog.read(file, kind)), (samples, read_samples)):
        if not file.exists() or (kind is SftRow and file == samples):
            continue
        if not file.is_file():
            raise ArtifactError(f"{file} is no ordinary file; give --log another path.")
        try:
            if file.stat().st_size:
                read(file)
                if file == samples and not file.read_bytes().startswith(b'{"step": '):  # a line that was cut off
                    raise InputError(f"{file} holds no samples of a training run.")
                if not (resumes or log.exists()):
                    raise InputError(f"{file} is there without {log}, so it is of another run.")
        except InputError as error:
            fault = str(error).rstrip(".")
            raise ArtifactError(f"{fault}; give --log another path, or remove {file} first.") from error


def read_samples(path: Path) -> list[dict[str, Any]]:
    """The samples of a training run at *path*; a line cut off at the end is left out."""
    # Bytes, because a text's lines also end at characters that a model may have written.
    lines = path.read_bytes().split(b"\n")[:-1]
    try:
        samples = [json.loads(line) for line in lines]
        if all({"step", "completion", "correct", "reason"} <= sample.keys() for sample in samples):
            return samples
    except (ValueError, AttributeError):
        pass
    raise InputError(f"{path} holds no samples of a training run.")
