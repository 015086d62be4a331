"""Log of a training run, and samples beside it.

The log is a CSV of one row per step, which ``dvc plots`` and the report draw.
"""

import csv
import hashlib
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from itertools import groupby
from pathlib import Path
from typing import ClassVar, TypeVar

from countdown_rl.core import artifacts, typed_json
from countdown_rl.core.errors import ArtifactError, InputError
from countdown_rl.core.manifest import ProvenanceEntry
from countdown_rl.core.types import JsonObject
from countdown_rl.evaluation.sample import Sample
from countdown_rl.tasks.registry import task
from countdown_rl.tasks.task import Row

#: Completions sampled during training, beside the ``log.csv`` of the run.
SAMPLES = "samples.jsonl"
#: Prefix of the column of a group's value: ``correct_numbers_4``.
GROUP = "correct_"
#: Column of the mean or deviation of one of several rewards, as TRL names it.
PART = r"rewards/.+/(mean|std)"
#: Characters of such a value in a column name.
_IN_NAME = r"\w.+-"
_GROUP_COLUMN = re.compile(rf"{GROUP}[{_IN_NAME}]+|{PART}")


@dataclass(frozen=True)
class StepRow:
    """Metrics of one optimizer step, or their means since the last row. Shares lie in 0..1."""

    step: int
    reward: float  # weighted sum, mean over completions
    correct: float  # share of completions that solve their puzzle
    format: float  # share with both blocks, in order
    mean_length: float  # tokens per completion
    truncated: float  # share that reached the length limit
    frac_reward_zero_std: float  # share of groups without reward variance
    entropy: float | None  # nats per token of the rows with an advantage; None if there were none
    kl: float | None  # from the initial model; None without a KL term
    grad_norm: float
    learning_rate: float
    seconds: float  # of the whole step; its parts follow
    seconds_generation: float
    seconds_reward: float
    seconds_loss: float
    seconds_rest: float = 0.0  # data, optimizer, logging
    eval_correct: float | None = None  # share of correct validation completions
    eval_correct_before: float | None = None  # the same before the first step, in the first row
    eval_format: float | None = None
    eval_truncated: float | None = None
    eval_kl: float | None = None  # from the initial policy, nats per token of the first 64 of these
    importance_sampling_ratio: float | None = None  # mean, of the policy's probabilities to vLLM's
    draws: float | None = None  # groups sampled for the round; None without dynamic sampling
    hacking: float | None = None  # share that are wrong and a proxy reward scores 1
    #: Share correct by breakdown, under its column (``correct_numbers_4``), and the mean and standard
    #: deviation of each of several rewards (``rewards/NAME/mean``); None in a step without such a row.
    groups: Mapping[str, float | None] = field(default_factory=dict)

    #: The metrics that progress shows, a format of the fields.
    summary: ClassVar[str] = (
        "reward {reward:.3f}, training accuracy {correct:.0%}, mean length {mean_length:.0f}"
    )


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
    eval_correct_before: float | None = None
    eval_format: float | None = None
    eval_truncated: float | None = None
    groups: Mapping[str, float | None] = field(default_factory=dict)

    summary: ClassVar[str] = "loss {loss:.3f}, token accuracy {token_accuracy:.1%}"


LogRow = StepRow | SftRow
AnyRow = TypeVar("AnyRow", bound=LogRow)


def group_columns(row: Row) -> tuple[str, ...]:
    """The columns of the main breakdowns of *row*, such as ``correct_numbers_4``."""
    columns = []
    for name, value in row.groups.items():
        if task(row.task).group(name).main:
            columns.append(f"{GROUP}{name}_{re.sub(rf'[^{_IN_NAME}]+', '-', value)}")
    return tuple(columns)


def thinned(rows: Sequence[AnyRow], every: int) -> list[AnyRow]:
    """The mean row of each *every* steps."""
    parts = groupby(rows, lambda row: (row.step - 1) // every)
    return [mean(list(part)) for _, part in parts]


def mean(rows: Sequence[AnyRow]) -> AnyRow:
    """The means of *rows*, under the step of the last one."""
    kind = type(rows[-1])
    groups = _group_columns(rows)
    lines = [{**vars(row), **row.groups} for row in rows]
    means: dict[str, float | None] = {}
    for name in (*columns_of(kind), *groups):
        present = [line[name] for line in lines if line.get(name) is not None]
        means[name] = rounded(sum(present) / len(present)) if present else None
    shares = {name: means.pop(name) for name in groups}
    return kind(**means | {"step": rows[-1].step, "groups": shares})  # type: ignore[arg-type]


def columns_of(kind: type) -> dict[str, bool]:
    """The columns of a class of rows, and True for those that every log has."""
    columns = {column.name: column.default is MISSING for column in fields(kind)}
    del columns["groups"]
    return columns


def _group_columns(rows: Iterable[LogRow]) -> list[str]:
    return sorted({name for row in rows for name in row.groups})


def rounded(value: float) -> float:
    """*value* to six significant digits, so that a row is equal in memory and in the file."""
    return float(f"{value:.6g}")


def write(path: Path, rows: Sequence[LogRow]) -> None:
    """Write the whole log, atomically; a column that is empty in every row is left out."""
    lines = [{**vars(row), **row.groups} for row in rows]
    columns = []
    for name, required in columns_of(type(rows[0]) if rows else StepRow).items():
        if required or any(line[name] is not None for line in lines):
            columns.append(name)
    columns += _group_columns(rows)
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)  # None is an empty field
    with artifacts.replacing(path) as partial:
        partial.write_text(text.getvalue(), "utf-8")


def read(path: Path, kind: type[AnyRow] = StepRow) -> list[AnyRow]:  # type: ignore[assignment]
    """The rows of the log at *path*. Raises InputError if it is not a log of *kind*."""
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            reader = csv.DictReader(stream)
            names = set(reader.fieldnames or ())
            groups = {name for name in names if _GROUP_COLUMN.fullmatch(name)}
            columns = columns_of(kind)
            required = {name for name in columns if columns[name]}
            if not required <= names - groups <= columns.keys():
                raise ValueError("other columns")
            return [_row(kind, line, sorted(groups)) for line in reader]
    except (TypeError, ValueError, csv.Error) as error:
        raise InputError(
            f"{path} is not a training log of this version of countdown-rl: {error}."
        ) from error


def _row(kind: type[AnyRow], line: Mapping[str, str], groups: Sequence[str]) -> AnyRow:
    values: JsonObject = {}
    for name, text in line.items():
        values[name] = None if text == "" else float(text)
    shares = {name: values.pop(name) for name in groups}
    return kind(**values | {"step": int(line["step"]), "groups": shares})


def beside(log: Path, name: str) -> Path:
    """The file *name* of the run of *log*, named after it: each log of a directory has its own."""
    return log.with_name(name if log.stem == "log" else f"{log.stem}-{name}")


def samples_of(log: Path) -> list[Sample]:
    """The samples of the training run of *log*; none if they were not kept."""
    file = beside(log, SAMPLES)
    return read_samples(file) if file.is_file() else []


def read_samples(path: Path) -> list[Sample]:
    """The samples of a training run at *path*; a line cut off at the end is left out."""
    data = path.read_bytes()
    try:
        if not data or data.startswith(b'{"step": '):
            lines = data.split(b"\n")[:-1]  # of text, they would end at characters of a model, too
            return [Sample.from_json(typed_json.parse(line, path)) for line in lines]
    except (ArtifactError, InputError):
        pass
    raise InputError(
        f"{path} holds no samples of a training run; "
        "grade others by `countdown-rl eval --completions`."
    )


def digest(rows: Sequence[StepRow]) -> str:
    """The sha256 of *rows* without their times, which alone differ between equal runs."""
    lines = []
    for row in rows:
        line = {}
        for name, value in sorted({**vars(row), **row.groups}.items()):
            if isinstance(value, int | float) and not name.startswith("seconds"):
                line[name] = float(value)
        lines.append(line)
    return hashlib.sha256(json.dumps(lines).encode()).hexdigest()


def is_log_of(log: Path, links: Sequence[ProvenanceEntry]) -> bool:
    """Return True if *log* records the GRPO training in the chain *links*, by its facts."""
    recorded = [link.facts.get("log_digest") for link in links if link.by_grpo]
    try:
        return digest(read(log)) in recorded[:1]
    except (OSError, InputError):
        return False
