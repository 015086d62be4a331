"""State of an unfinished run of ``sft`` or ``train``: its journal and its checkpoints.

The journal (log, samples, warnings) is in each checkpoint too, so that a resumed run continues it.
A checkpoint counts once its bytes, and then its ``complete`` mark, are on disk. Only then is the
previous one removed. So a run that is killed at any moment has a checkpoint to resume from.
"""

import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from countdown_rl.core import artifacts
from countdown_rl.core.errors import ArtifactError, InputError, UsageError
from countdown_rl.core.identity import Identity
from countdown_rl.core.types import JsonObject
from countdown_rl.evaluation.training_log import (
    SAMPLES,
    LogRow,
    StepRow,
    beside,
    read,
    read_samples,
    write,
)
from countdown_rl.tasks import files, jsonl
from countdown_rl.training.options import RunArguments, TuningOptions

MARK = "complete"
#: Beginning of the name of the directory of checkpoints, beside the log.
CHECKPOINTS = "checkpoints"
#: The file beside the checkpoints of an unfinished run.
RUN = "run.json"
#: The file of a journal in a checkpoint, and its fields beside the rows.
_FILE, _FIELDS = "journal.json", ("start", "warnings", "samples", "outcomes", "threads")


@dataclass
class Journal:
    """The state of a run beside its weights."""

    #: The CSV to write, with the samples in a file beside it; None writes neither.
    log: Path | None
    max_steps: int
    kind: type[LogRow] = StepRow
    #: Share of the validation puzzles solved before the first step, if evaluated.
    start: float | None = None
    rows: list[Any] = field(default_factory=list)  # of *kind*, one per step
    #: Sentences that were printed, by a short name.
    warnings: dict[str, str] = field(default_factory=dict)
    samples: list[JsonObject] = field(default_factory=list)  # completions, oldest first
    #: Of each round, where a sampler observes them.
    outcomes: list[Any] = field(default_factory=list)
    threads: int | None = None  # their number decides the rounding of sums
    #: Metrics of the last evaluation, which the row of its step gets.
    evaluation: dict[str, Any] = field(default_factory=dict)

    def best(self) -> tuple[int, float] | None:
        """The first step with the highest ``eval_correct`` and that share; None if none is known.

        Step 0 is the initial policy.
        """
        shares = {0: self.start} | {row.step: row.eval_correct for row in self.rows}
        evaluated = [(step, share) for step, share in shares.items() if share is not None]
        return max(evaluated, key=lambda pair: pair[1], default=None)

    def warn(self, texts: Mapping[str, str], warning: Callable[[str], None]) -> None:
        """Call *warning* with the *texts* whose names are new to the run."""
        for name, text in texts.items():
            if name not in self.warnings:
                warning(text)
                self.warnings[name] = text

    def save(self, checkpoint: Path) -> None:
        """Write the journal into the directory *checkpoint*."""
        values = {name: getattr(self, name) for name in _FIELDS}
        values["rows"] = list(map(asdict, self.rows))
        (checkpoint / _FILE).write_text(json.dumps(values))

    def load(self, checkpoint: Path) -> None:
        """Restore what :meth:`save` wrote into *checkpoint*."""
        values = json.loads((checkpoint / _FILE).read_bytes())
        self.rows = [self.kind(**row) for row in values.pop("rows")]
        vars(self).update(values)

    def write(self) -> None:
        """Write log and samples anew, without those that follow the last checkpoint."""
        if self.log:
            write(self.log, self.rows)
            samples = beside(self.log, SAMPLES)
            if self.samples or samples.exists():
                with artifacts.replacing(samples) as partial:
                    jsonl.write_rows(partial, self.samples)

    def add_row(self, row: LogRow) -> None:
        """Add *row*, also to the log."""
        self.rows.append(row)
        if self.log:
            write(self.log, self.rows)

    def add_samples(self, samples: list[JsonObject]) -> None:
        """Add *samples*, also to their file."""
        self.samples += samples
        if self.log:
            jsonl.write_rows(beside(self.log, SAMPLES), samples, append=True)


def check_log(log: Path, kind: type[LogRow]) -> None:
    """Raise ArtifactError if *log* or its samples are other files than a run of *kind* writes."""
    for file in (log, beside(log, SAMPLES)):
        try:
            if file.exists() and (file.stat().st_size or not file.is_file()):
                read(file, kind) if file == log else read_samples(file)
        except (OSError, InputError) as error:
            raise ArtifactError(
                f"{error} Give --log another path, or remove {file} first."
            ) from error


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of a run under *directory*."""

    directory: Path

    def check_paths(self, out: Path, kind: str, log: Path) -> None:
        """Check that a run can write checkpoints, an artifact of *kind* at *out* and the CSV *log*."""
        artifacts.check_writable(out, kind)  # before the locks, which could be files in *out*
        if log.resolve().is_relative_to(out.resolve()):
            raise UsageError(
                f"--log {log} lies in --out {out}, which is replaced; give another path."
            )
        others = self._directories()
        if self.directory.is_file() or (others and not (self.directory / RUN).is_file()):
            raise ArtifactError(
                f"{self.directory} is not of countdown-rl; give --log another directory."
            )

    def to_resume(self, run: Identity, max_steps: int) -> Path | None:
        """Return the newest complete checkpoint of at most *max_steps*, or None.

        Raises:
            ArtifactError: it does not belong to *run*.
        """
        newest = self.newest(max_steps)
        if newest is None:
            return None
        try:
            unfinished = json.loads((self.directory / RUN).read_bytes())["run"]
        except (OSError, ValueError, KeyError, TypeError):
            unfinished = None
        if differences := run.differences(unfinished):
            raise ArtifactError(
                f"{self.directory} holds a run that is not this one ({differences}); use its "
                f"options to resume it, or remove {self.directory} to begin again."
            )
        return newest

    def how_to_continue(self) -> str:
        """The sentence for a user who stopped a run: the step from which it resumes."""
        if newest := self.newest():
            return (
                f"Stopped. The same command continues after step {step_of(newest)}; "
                f"remove {self.directory} to begin again."
            )
        return "Stopped before the first checkpoint. The same command starts from step 0."

    def newest(self, max_steps: float = inf) -> Path | None:
        """Return the newest complete checkpoint of at most *max_steps*."""
        complete = [path for path in self._directories("checkpoint") if (path / MARK).is_file()]
        early = (path for path in complete if step_of(path) <= max_steps)
        return max(early, key=step_of, default=None)

    def start(self, run: Identity) -> None:
        """Clear the directory and write the identity of *run* into it."""
        self.clear()
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / RUN).write_text(json.dumps({"run": run.to_json()}, indent=2) + "\n")

    def best(self, step: int) -> Path:
        """The directory of the weights after *step*, the best so far."""
        return self.directory / f"best-{step}"

    def complete(self, checkpoint: Path, count: int, best: int | None = None) -> None:
        """Mark *checkpoint* as complete once its bytes are on disk, then remove older ones.

        Args:
            checkpoint: directory of the checkpoint.
            count: checkpoints to keep.
            best: step of the best weights, which are kept too.
        """
        artifacts.fsync(checkpoint)
        (checkpoint / MARK).touch()
        artifacts.fsync(checkpoint)
        newest = sorted(self._directories("checkpoint"), key=step_of)[-count:]
        needed = {checkpoint, *newest, self.best(best or 0)}
        _remove([other for other in self._directories() if other not in needed])

    def _directories(self, kind: str = "checkpoint|best") -> list[Path]:
        paths = sorted(filter(Path.is_dir, self.directory.glob("*-*")))
        return [path for path in paths if re.fullmatch(f"({kind})-[0-9]+", path.name)]

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


def step_of(checkpoint: Path | None) -> int:
    """The optimizer step after which *checkpoint* was written; 0 if there is none."""
    return int(checkpoint.name.removeprefix("checkpoint-")) if checkpoint else 0


@dataclass(frozen=True, kw_only=True)
class Places:
    """The paths that a run writes, and the kind of artifact at *out*."""

    kind: str
    out: Path
    log: Path
    checkpoints: Checkpoints

    @classmethod
    def of(cls, arguments: RunArguments, options: TuningOptions) -> "Places":
        """Return the paths in *arguments*, or their defaults; an error if one cannot be used."""
        kind = "adapter" if options.tune == "lora" else "model"
        grpo = options.method == "grpo"
        out = arguments.out or Path("artifacts", kind if grpo else "sft")
        has_default = grpo and not arguments.out
        directory = out.with_name("train") if has_default else Path(f"{out}-run")
        log = arguments.log or directory / "log.csv"
        checkpoints = Checkpoints(log.with_name(CHECKPOINTS + log.stem.removeprefix("log")))
        checkpoints.check_paths(out, kind, log)
        for file in [arguments.data, *getattr(arguments, "files", ())]:
            jsonl.check_training(file)
            if file == arguments.data and file and not file.is_file():
                artifacts.read(file, "data", verify=False)
            elif file:
                next(files.records(file))
        return cls(kind=kind, out=out, log=log, checkpoints=checkpoints)
