"""The record of a training run: one row a logged step, as the CSV that ``dvc plots`` draws."""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from countdown_rl.errors import InputError


@dataclass(frozen=True)
class StepRow:
    """What one optimiser step (or the mean over the steps since the last row) did. Shares lie in 0..1."""

    step: int
    reward: float  # weighted sum, mean over completions
    correct: float  # share of completions that solve their puzzle
    format: float  # share with the two blocks in order
    length: float  # mean tokens of a completion
    truncated: float  # share that ran into the length limit
    dead_groups: float  # share of groups whose rewards are all equal, which teach nothing
    entropy: float | None  # mean over the tokens the loss saw, in nats; None when every group was dead
    kl: float | None  # to the starting model; None without a KL term
    grad_norm: float
    learning_rate: float
    seconds: float  # the whole step, and the parts of it that follow
    seconds_generation: float
    seconds_reward: float
    seconds_loss: float


COLUMNS = tuple(field.name for field in fields(StepRow))


def thinned(rows: Sequence[StepRow], every: int) -> list[StepRow]:
    """One row for each *every* steps, the mean over them."""
    groups: dict[int, list[StepRow]] = {}
    for row in rows:
        groups.setdefault((row.step - 1) // every, []).append(row)
    return [mean(group) for group in groups.values()]


def mean(rows: Sequence[StepRow]) -> StepRow:
    """One row for several steps: the last step's number, and the mean of everything else."""
    values: dict[str, float | None] = {}
    for name in COLUMNS[1:]:
        present = [value for row in rows if (value := getattr(row, name)) is not None]
        values[name] = rounded(sum(present) / len(present)) if present else None
    return StepRow(step=rows[-1].step, **values)  # type: ignore[arg-type]


def rounded(value: float) -> float:
    """Six significant digits, so that a row is the same number in memory and in the file."""
    return float(f"{value:.6g}")


def write(path: Path, rows: Iterable[StepRow]) -> None:
    """Write the whole log; it is small, and a file made anew is never half a line."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: "" if value is None else value for key, value in asdict(row).items()} for row in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.partial")
    beside.write_text(text.getvalue())
    beside.replace(path)


def read(path: Path) -> list[StepRow]:
    """The rows of a log.

    Raises:
        InputError: it is not a log that :func:`write` wrote.
    """
    with path.open(newline="") as stream:
        reader = csv.DictReader(stream)
        if tuple(reader.fieldnames or ()) != COLUMNS:
            raise InputError(f"{path} is not a training log of this version of countdown-rl.")
        try:
            return [
                StepRow(int(line["step"]), *(float(line[name]) if line[name] else None for name in COLUMNS[1:]))  # type: ignore[arg-type]
                for line in reader
            ]
        except ValueError as error:
            raise InputError(f"{path} line {reader.line_num} is not a row of a training log.") from error
