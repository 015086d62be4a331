"""Graded completions and their metrics, and the form of both in JSON."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

from countdown_rl.core import typed_json
from countdown_rl.core.types import JsonObject, Record
from countdown_rl.evaluation.statistics import Interval
from countdown_rl.tasks import registry
from countdown_rl.tasks.registry import parse_row
from countdown_rl.tasks.task import Grade, Row

if TYPE_CHECKING:
    from countdown_rl.inference.engine import Completion

#: Fields of a sample of training.
_TRAINING = ("step", "validation", "group", "rewards", "advantage")
#: Kinds of baselines, which replace the model in an evaluation.
BASELINE_KINDS = ("floor", "ceiling")


@dataclass(frozen=True, slots=True)
class Sample:
    """A graded completion of *row*; the fields from *step* on are those of training."""

    row: Row
    completion: str
    grade: Grade
    tokens: int | None  # None if unknown, like the next
    truncated: bool | None
    turn: int | None = None  # the number among the completions of one row
    details: JsonObject = field(default_factory=dict)  # what a server reports
    step: int | None = None
    validation: bool | None = None
    group: int | None = None  # its number in the round
    rewards: dict[str, float | None] | None = None  # by name, without weights
    advantage: float | None = None  # a mean over tokens where it differs by token

    @classmethod
    def of(cls, row: Row, completion: "Completion", turn: int | None = None) -> Self:
        """Grade the *completion* of *row*."""
        grade = row.grade(completion.text)
        details = dict(completion.details)
        grade.reason = details.pop("reason", grade.reason)  # such as a server's refusal
        truncated = None if completion.ended is None else not completion.ended
        return cls(row, completion.text, grade, completion.tokens, truncated, turn, details)

    @property
    def verdict(self) -> str:
        """The grade as a phrase."""
        grade = self.grade
        return registry.verdict(
            self.row, grade.answer, grade.value, grade.reason, bool(self.truncated)
        )

    @property
    def rewarded(self) -> str:
        """The rewards and the advantage, such as ``correct 1, advantage -0.5``; "" without any."""
        amounts = {**(self.rewards or {}), "advantage": self.advantage}
        return ", ".join(f"{name} {x:.3g}" for name, x in amounts.items() if x is not None)

    def to_json(self) -> JsonObject:
        """A line of ``samples.jsonl``."""
        line: JsonObject = {}
        for name in _TRAINING:
            if getattr(self, name) is not None:
                line[name] = getattr(self, name)
        line |= self.row.kept
        if self.turn is not None:
            line["sample"] = self.turn
        line["completion"] = self.completion
        line |= self.grade.to_json()
        line |= {"tokens": self.tokens, "truncated": self.truncated}
        return line | self.details

    @classmethod
    def from_json(cls, line: Record) -> Self:
        """Read a line of ``samples.jsonl``; ArtifactError or InputError if it is none."""
        rest = {name: value for name, value in line.items() if name not in _FIELDS}
        row = parse_row(rest)
        typed_json.build(line, _Line, "a sample")
        return cls(
            row,
            line["completion"],
            Grade(*[line[name] for name in Grade.__annotations__]),
            line["tokens"],
            line["truncated"],
            line.get("sample"),
            {name: value for name, value in rest.items() if name not in row.kept},
            *[line.get(name) for name in _TRAINING],
        )


@dataclass
class _Line(Grade):
    """The fields of a line of ``samples.jsonl`` that are not those of its row."""

    completion: str
    tokens: int | None
    truncated: bool | None
    sample: int | None = None
    step: int | None = None
    validation: bool | None = None
    group: int | None = None
    rewards: dict[str, float | None] | None = None
    advantage: float | None = None


_FIELDS = Grade.__annotations__.keys() | _Line.__annotations__.keys()


def by_puzzle(samples: Sequence[Sample]) -> list[list[Sample]]:
    """Split *samples*, those of a puzzle side by side, into those of each."""
    puzzles: list[list[Sample]] = []
    for sample in samples:
        if not sample.turn or not puzzles:
            puzzles.append([])
        puzzles[-1].append(sample)
    return puzzles


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """Mean share of correct completions of *n* rows, and the number of correct ones."""

    accuracy: float
    n: int
    correct: int | float
    interval: Interval


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """The number of rows of training, and the accuracy on the *others*, if there are any."""

    trained: int
    others: Accuracy | None = None


@dataclass(frozen=True, kw_only=True)
class Share:
    """Another share of *n* rows."""

    share: float
    n: int | None = None
    count: int | float | None = None
    interval: Interval


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Lengths in tokens; ``per_correct_answer`` is the sum of all over the correct answers."""

    median: int | float
    p95: int
    longest: int
    mean_correct: float | None
    mean_incorrect: float | None
    per_correct_answer: float | None


@dataclass(frozen=True, kw_only=True)
class DecodingSettings:
    """Settings that the completions depend on; for a baseline, ``samples`` and ``seed`` alone."""

    greedy: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    samples: int | None = None
    seed: int | None = None
    max_new_tokens: int | None = None


@dataclass(frozen=True, kw_only=True)
class EvaluatedModel:
    """The model of an evaluation, or a baseline, which has no digest."""

    source: str
    kind: str
    digest: str | None = None


@dataclass(frozen=True, kw_only=True)
class Scores(Accuracy):
    """Scores of graded completions, see :func:`metrics.measure`."""

    pass_at: dict[int, Share] = field(default_factory=dict)
    majority: Share | None = None
    groups: dict[str, dict[str, Accuracy]]
    format: float
    strict_format: float | None = None
    truncated: float | None = None
    mean_tokens: float | None = None
    intervals: dict[str, Interval] = field(default_factory=dict)
    tokens: Tokens | None = None
    reasons: dict[str, int]
    task: str
    rules: list[str]

    def to_json(self) -> JsonObject:
        """The contents of ``details.json``."""
        return typed_json.dump(self)

    @classmethod
    def from_json(cls, values: Record, source: Path | str) -> Self:
        """Read *values* of *source*. Raises ArtifactError if a field is missing or wrong."""
        scores: Self = typed_json.build(values, cls, source)
        return scores


@dataclass(frozen=True, kw_only=True)
class Metrics(Scores):
    """Every metric of an evaluation, its model and data, and the engine and form of the weights."""

    decoding: DecodingSettings
    data: JsonObject
    model: EvaluatedModel
    engine: str | None = None
    precision: str | None = None
    path: str | None = None
    endpoint: JsonObject | None = None  # counts of the requests to a server
    of: int | None = None  # the number of rows that completions were asked for, if some have none
    overlap: Overlap | None = None  # with what the model was trained on; None if not known
    grammar: int | None = None  # the version of the answer grammar of the task

    @property
    def is_baseline(self) -> bool:
        return self.model.kind in BASELINE_KINDS
