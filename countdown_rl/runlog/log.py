"""The record of a training run: one row a logged step, as the CSV that ``dvc plots`` draws."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

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
    seconds_rest: float = 0.0  # everything else: drawing, the optimiser's own step, the log
    #: Share right of the completions of one kind of puzzle, by column: `correct_3`, `correct_mul_div`, and
    #: None where the step had no such puzzle.
    kinds: Mapping[str, float | None] = field(default_factory=dict)


COLUMNS = tuple(column.name for column in fields(StepRow) if column.name != "kinds")
#: What the name of a kind's column begins with.
KIND = "correct_"
#: Columns that a log written before they were thought of lacks.
_LATER = ("seconds_rest",)


def kinds(row: Mapping[str, Any]) -> tuple[str, ...]:
    """The columns that count a completion for the puzzle *row*: by its numbers, by the operators it needs."""
    size = row.get("size") or len(row.get("nums") or ())
    names = [str(size)] if size else []
    if row.get("needs"):
        names.append(row["needs"].replace("-", "_"))
    return tuple(KIND + name for name in names)


def thinned(rows: Sequence[StepRow], every: int) -> list[StepRow]:
    """One row for each *every* steps, the mean over them."""
    groups: dict[int, list[StepRow]] = {}
    for row in rows:
        groups.setdefault((row.step - 1) // every, []).append(row)
    return [mean(group) for group in groups.values()]


def mean(rows: Sequence[StepRow]) -> StepRow:
    """One row for several steps: the last step's number, and the mean of everything else."""
    values = {name: _mean([getattr(row, name) for row in rows]) for name in COLUMNS[1:]}
    shares = {name: _mean([row.kinds.get(name) for row in rows]) for name in _kinds_of(rows)}
    return StepRow(step=rows[-1].step, kinds=shares, **values)  # type: ignore[arg-type]


def _mean(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return rounded(sum(present) / len(present)) if present else None


def _kinds_of(rows: Iterable[StepRow]) -> list[str]:
    return sorted({name for row in rows for name in row.kinds})


def rounded(value: float) -> float:
    """Six significant digits, so that a row is the same number in memory and in the file."""
    return float(f"{value:.6g}")


def write(path: Path, rows: Iterable[StepRow]) -> None:
    """Write the whole log; it is small, and a file made anew is never half a line."""
    rows = list(rows)
    shares = _kinds_of(rows)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*COLUMNS, *shares])
    # csv writes None as nothing at all.
    writer.writerows(
        [*(getattr(row, name) for name in COLUMNS), *(row.kinds.get(name) for name in shares)] for row in rows
    )
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
        names = tuple(reader.fieldnames or ())
        fixed = tuple(name for name in COLUMNS if name in names or name not in _LATER)
        shares = names[len(fixed) :]
        if names[: len(fixed)] != fixed or not all(name.startswith(KIND) for name in shares):
            raise InputError(f"{path} is not a training log of this version of countdown-rl.")
        try:
            return [_row(line, fixed[1:], shares) for line in reader]
        except (TypeError, ValueError) as error:
            raise InputError(f"{path} line {reader.line_num} is not a row of a training log.") from error


def _row(line: Mapping[str, str], fixed: Sequence[str], shares: Sequence[str]) -> StepRow:
    def number(name: str) -> float | None:
        return float(line[name]) if line[name] else None

    values: dict[str, Any] = {name: number(name) for name in fixed}
    return StepRow(step=int(line["step"]), kinds={name: number(name) for name in shares}, **values)
