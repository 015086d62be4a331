"""State of a run beside its weights: log, samples and warnings.

The whole record is in each checkpoint too, so that a resumed run continues it.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from countdown_rl.core import artifacts, processes
from countdown_rl.core.errors import ArtifactError, InputError
from countdown_rl.evaluation.training_log import SftRow, StepRow, read, read_samples, samples_file, write
from countdown_rl.tasks import jsonl

#: The file of a journal in a checkpoint, and its fields beside the rows.
_FILE, _FIELDS = "journal.json", ("start", "warnings", "samples", "outcomes", "threads")


@dataclass
class Journal:
    """The state of a run beside its weights."""

    log: Path | None  # the CSV to write, with the samples in a file beside it; None writes neither
    max_steps: int
    kind: type[StepRow] | type[SftRow] = StepRow
    start: float | None = None  # share of the validation puzzles solved before the first step, if evaluated
    rows: list[Any] = field(default_factory=list)  # one per step
    warnings: dict[str, str] = field(default_factory=dict)  # sentences that were printed, by a short name
    samples: list[dict[str, Any]] = field(default_factory=list)  # completions, oldest first
    outcomes: list[Any] = field(default_factory=list)  # of each round, where a sampler reads them
    threads: int | None = None  # their number decides the rounding of sums

    def best(self) -> tuple[int, float] | None:
        """The first step with the highest ``eval_correct``, 0 for the start, and that share; None without any."""
        shares = [(0, self.start), *((row.step, row.eval_correct) for row in self.rows)]
        return max(
            ((step, share) for step, share in shares if share is not None), key=lambda pair: pair[1], default=None
        )

    def warn(self, texts: Mapping[str, str], warning: Callable[[str], None]) -> None:
        """Call *warning*, in the first process, with those of *texts* whose names are new to the run."""
        for name, text in texts.items():
            if name not in self.warnings and processes.is_main():
                warning(text)
            self.warnings.setdefault(name, text)

    def save(self, checkpoint: Path) -> None:
        """Write the journal into the directory *checkpoint*."""
        values = {name: getattr(self, name) for name in _FIELDS} | {"rows": list(map(asdict, self.rows))}
        (checkpoint / _FILE).write_text(json.dumps(values))

    def load(self, checkpoint: Path) -> None:
        """Restore what :meth:`save` wrote into *checkpoint*."""
        for name, value in json.loads((checkpoint / _FILE).read_bytes()).items():
            setattr(self, name, [self.kind(**row) for row in value] if name == "rows" else value)

    def write(self) -> None:
        """Write log and samples anew, without what an interrupted run added after its last checkpoint."""
        if self.log:
            write(self.log, self.rows)
            samples = samples_file(self.log)
            if self.samples or samples.exists():
                with artifacts.replacing(samples) as partial:
                    jsonl.write_rows(partial, self.samples)

    def add_row(self, row: StepRow | SftRow) -> None:
        """Add *row*, also to the log."""
        self.rows.append(row)
        if self.log:
            write(self.log, self.rows)

    def add_samples(self, samples: list[dict[str, Any]]) -> None:
        """Add *samples*, also to their file."""
        self.samples += samples
        if self.log:
            jsonl.write_rows(samples_file(self.log), samples, append=True)


def check_log(log: Path | None, kind: type[StepRow] | type[SftRow]) -> None:
    """Raise ArtifactError if a run of *kind* that writes *log* would replace anything but a log and its samples."""
    for file in (log, samples_file(log)) if log else ():
        try:
            if file.exists() and (file.stat().st_size or not file.is_file()):
                read(file, kind) if file == log else read_samples(file)
        except (OSError, InputError) as error:
            raise ArtifactError(f"{error} Give --log another path, or remove {file} first.") from error
