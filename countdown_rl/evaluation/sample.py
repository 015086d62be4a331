"""Results of an evaluation: its graded completions and its figures, and their form in JSON."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from typing_extensions import TypedDict

from countdown_rl.core import typed_json
from countdown_rl.core.errors import ArtifactError, InputError
from countdown_rl.evaluation.statistics import Interval
from countdown_rl.tasks import advice
from countdown_rl.tasks.registry import parse_row
from countdown_rl.tasks.task import Grade, Row

if TYPE_CHECKING:
    from countdown_rl.inference.generate import Completion

#: Kinds of baselines, which take the place of a model in an evaluation.
BASELINE_KINDS = ("floor", "ceiling")

#: Fields of a line of ``samples.jsonl`` beside those of the row.
_FIELDS: Any = TypedDict(
    "_FIELDS",
    {"completion": str, **Grade.__annotations__, "tokens": int | None, "truncated": bool | None},  # type: ignore[misc]
)


@dataclass(frozen=True)
class Sample:
    """A graded completion of *row*; the token limit cut it off if *truncated*.

    *tokens* and *truncated* are None where a file of completions does not tell. *turn* is its number among several
    completions of the row, *details* are further fields, which only a server knows.
    """

    row: Row
    completion: str
    grade: Grade
    tokens: int | None
    truncated: bool | None
    turn: int | None = None
    details: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, row: Row, completion: "Completion", turn: int | None = None) -> Self:
        """The *completion* of *row* with its grade."""
        grade, details = row.grade(completion.text), dict(completion.details)
        grade.reason = details.pop("reason", grade.reason)  # a server refused
        truncated = None if completion.ended is None else not completion.ended
        return cls(row, completion.text, grade, completion.tokens, truncated, turn, details)

    @property
    def verdict(self) -> str:
        """The grade as a phrase, see :func:`advice.verdict`."""
        grade = self.grade
        return advice.verdict(self.row, grade.answer, grade.value, grade.reason, bool(self.truncated))

    def to_json(self) -> dict[str, Any]:
        """A line of ``samples.jsonl``: the row, the completion and its grade."""
        turn = {} if self.turn is None else {"sample": self.turn}
        judged = {"completion": self.completion, **asdict(self.grade)}
        return self.row.kept | turn | judged | {"tokens": self.tokens, "truncated": self.truncated} | self.details

    @classmethod
    def from_json(cls, line: Mapping[str, Any], source: str) -> Self:
        """The sample in *line* of *source*. Raises ArtifactError if a field is missing or wrong."""
        typed_json.check_type(line, _FIELDS, source)
        others = {name: value for name, value in line.items() if name not in {*_FIELDS.__annotations__, "sample"}}
        try:
            row = parse_row(others)
        except InputError as error:
            raise ArtifactError(f"{source} holds no row: {error}.") from error
        grade = Grade(**{name: line[name] for name in Grade.__annotations__})
        details = {name: value for name, value in others.items() if name not in row.kept}
        return cls(row, line["completion"], grade, line["tokens"], line["truncated"], line.get("sample"), details)


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """The mean share of correct completions of *n* rows, and the number that are ``correct``."""

    accuracy: float
    n: int
    correct: int | float
    interval: Interval


@dataclass(frozen=True, kw_only=True)
class Share:
    """Another share of *n* rows, and the ``count`` of those that have it."""

    share: float
    n: int | None = None
    count: int | float | None = None
    interval: Interval


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Lengths in tokens; ``per_right_answer`` is the sum of all lengths over the number of correct answers."""

    median: int | float
    p95: int
    longest: int
    mean_right: float | None
    mean_wrong: float | None
    per_right_answer: float | None


@dataclass(frozen=True, kw_only=True)
class DecodingSettings:
    """Settings that the completions depend on; a baseline has ``samples`` and ``seed`` alone."""

    greedy: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
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
class Figures(Accuracy):
    """Figures of graded completions, see :func:`metrics.measure`."""

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

    def to_json(self) -> dict[str, Any]:
        """The contents of ``details.json``."""
        return typed_json.dump(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any], source: Path | str) -> Self:
        """The figures in *values*, read from *source*. Raises ArtifactError if a field is missing or wrong."""
        figures: Self = typed_json.build({"groups": {}, "rules": [], **values}, cls, source)  # of older versions
        return figures


@dataclass(frozen=True, kw_only=True)
class Metrics(Figures):
    """Every figure of an evaluation, and its model, the file of its rows, and the engine and form of the weights.

    *endpoint* has the requests to a server. A baseline has no engine, precision and path.
    """

    decoding: DecodingSettings
    data: dict[str, Any]
    model: EvaluatedModel
    engine: str | None = None
    precision: str | None = None
    path: str | None = None
    endpoint: dict[str, Any] | None = None

    @property
    def is_baseline(self) -> bool:
        """These are the figures of a baseline."""
        return self.model.kind in BASELINE_KINDS
