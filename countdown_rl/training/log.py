"""Training log: one row per logged step, as the CSV that ``dvc plots`` and the report draw."""

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from countdown_rl.core import artifacts
from countdown_rl.core.artifacts import ProvenanceEntry
from countdown_rl.core.errors import InputError
from countdown_rl.tasks.registry import task_of
from countdown_rl.tasks.task import Row


@dataclass(frozen=True)
class StepRow:
    """Figures of one optimiser step, or their means over the steps since the last row. Shares lie in 0..1."""

    step: int
    reward: float  # weighted sum, mean over completions
    correct: float  # share of completions that solve their puzzle
    format: float  # share with both blocks, in order
    mean_length: float  # tokens per completion
    truncated: float  # share that reached the length limit
    frac_reward_zero_std: float  # share of groups with equal rewards; no gradient without a discount
    entropy: float | None  # nats per token of the rows with an advantage; None if there were none
    kl: float | None  # from the initial model; None without a KL term
    grad_norm: float
    learning_rate: float
    seconds: float  # of the whole step; its parts follow
    seconds_generation: float
    seconds_reward: float
    seconds_loss: float
    seconds_rest: float = 0.0  # data, optimiser, logging
    eval_correct: float | None = None  # share of the validation puzzles solved greedily; None between evaluations
    importance_sampling_ratio: float | None = None  # of the policy to vLLM, whose completions it corrects; mean
    draws: float | None = None  # groups that were sampled for the round; None without dynamic sampling
    #: Share correct by group, under its column (``correct_numbers_4``); None in a step without such a row.
    groups: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class SftRow:
    """The same for supervised fine-tuning."""

    step: int
    loss: float  # nats per token of the completions
    token_accuracy: float  # share of their tokens that are the likeliest
    tokens: float  # read so far, prompts included
    grad_norm: float
    learning_rate: float
    seconds: float
    eval_correct: float | None = None
    groups: Mapping[str, float | None] = field(default_factory=dict)


AnyRow = TypeVar("AnyRow", bound=StepRow | SftRow)

COLUMNS = tuple(column.name for column in fields(StepRow) if column.name != "groups")
#: Prefix of the column of a group's value: ``correct_numbers_4``.
GROUP = "correct_"
#: Characters that no column has: the report shows columns.
_NO_NAME = r"[^\w.+-]+"


def group_columns(row: Row) -> tuple[str, ...]:
    """The columns that the *row* of a task counts in: one for each main group, its value in characters of a name."""
    task = task_of({"task": row.task})
    groups = {group: value for group, value in row.groups.items() if task.group(group).main}
    return tuple(f"{GROUP}{group}_{re.sub(_NO_NAME, '-', value)}" for group, value in groups.items())


def thinned(rows: Sequence[AnyRow], every: int) -> list[AnyRow]:
    """The mean row of each *every* steps."""
    groups: dict[int, list[AnyRow]] = {}
    for row in rows:
        groups.setdefault((row.step - 1) // every, []).append(row)
    return [mean(group) for group in groups.values()]


def mean(rows: Sequence[AnyRow]) -> AnyRow:
    """The means of *rows*, under the step of the last one."""
    kind = type(rows[-1])
    values = {name: _mean(getattr(row, name) for row in rows) for name in _columns(kind)}
    shares = {name: _mean(row.groups.get(name) for row in rows) for name in _group_columns(rows)}
    return kind(**values | {"step": rows[-1].step, "groups": shares})  # type: ignore[arg-type]


def _columns(kind: type, *, required: bool = False) -> list[str]:
    """The columns of a class of rows; those that every log has, the others where they were measured."""
    known = (column for column in fields(kind) if column.name != "groups")
    return [column.name for column in known if not required or column.default is MISSING]


def _mean(values: Iterable[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return rounded(sum(present) / len(present)) if present else None


def _group_columns(rows: Iterable[StepRow | SftRow]) -> list[str]:
    return sorted({name for row in rows for name in row.groups})


def rounded(value: float) -> float:
    """*value* to six significant digits, so that a row is equal in memory and in the file."""
    return float(f"{value:.6g}")


def write(path: Path, rows: Sequence[StepRow | SftRow]) -> None:
    """Write the whole log, atomically."""
    kind = type(rows[0]) if rows else StepRow
    shares, required = _group_columns(rows), _columns(kind, required=True)
    measured = {name for row in rows for name in _columns(kind) if getattr(row, name) is not None}
    columns = [name for name in _columns(kind) if name in required or name in measured]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*columns, *shares])
    for row in rows:  # csv writes None as an empty field
        writer.writerow([*(getattr(row, name) for name in columns), *(row.groups.get(name) for name in shares)])
    with artifacts.replacing(path) as partial:
        partial.write_text(text.getvalue(), "utf-8")


def read(path: Path, kind: type[Any] = StepRow) -> list[Any]:
    """The rows of the log at *path*. Raises InputError if it is not a log that :func:`write` wrote."""
    with path.open(encoding="utf-8", newline="") as stream:
        reader = csv.DictReader(stream)
        try:
            names = tuple(reader.fieldnames or ())
            shares = tuple(name for name in names if name.startswith(GROUP))
            if not set(_columns(kind, required=True)) <= set(names) - set(shares) <= set(_columns(kind)):
                raise InputError(f"{path} is not a training log of this version of countdown-rl.")
            if name := next((name for name in shares if re.search(_NO_NAME, name)), None):
                raise InputError(f"{path} has the column {name!r}, which is no name of a group; remove it.")
            rows: list[Any] = []
            for line in reader:
                rows.append(_row(line, shares, kind))
                if rows[-1].step <= (rows[-2].step if rows[1:] else 0):
                    raise ValueError("the steps do not increase")
            return rows
        except InputError:
            raise
        except (TypeError, ValueError, csv.Error) as error:
            raise InputError(f"{path}, line {reader.line_num}: not a row of a training log.") from error


def _row(line: Mapping[str, str], shares: Sequence[str], kind: type[AnyRow]) -> AnyRow:
    values: dict[str, Any] = {name: float(text) if text != "" else None for name, text in line.items()}
    groups = {name: values.pop(name) for name in shares}
    return kind(**values | {"step": int(line["step"]), "groups": groups})


def is_log_of(log: Path, links: Sequence[ProvenanceEntry]) -> bool:
    """Return True if the training log at *log* is of the training in the chain *links*, by its facts."""
    policy = next((link for link in links if link.by_grpo), None)
    try:
        rows = read(log)
    except (OSError, InputError):
        return False
    if policy is None or not rows or rows[-1].step != policy.facts.get("steps"):
        return False
    if policy.options.get("logging_steps", 1) != 1:  # of earlier versions, whose rows may be means
        return True
    rewards = (rows[0].reward, max(row.reward for row in rows))
    return rewards == (policy.facts.get("reward_first"), policy.facts.get("reward_best"))
