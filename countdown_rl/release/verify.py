"""Verification of a release: hashes, grades of its completions, and a new evaluation.

The weights complete the recorded test puzzles again, and new puzzles of the same distribution, from
a seed that the publisher cannot have known. The claim has to fit both measurements, each by a
two-sided exact test at 1%: McNemar's between the recorded and the new grades, Fisher's between the
counts of recorded and of new puzzles solved.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from countdown_rl.core import artifacts, hub, typed_json
from countdown_rl.core.errors import ArtifactError
from countdown_rl.core.formatting import percent
from countdown_rl.core.manifest import ProvenanceEntry, file_sha256
from countdown_rl.data import build
from countdown_rl.data.config import DataOptions
from countdown_rl.evaluation import evaluate, results, statistics
from countdown_rl.evaluation.config import EvalOptions
from countdown_rl.evaluation.metrics import measure
from countdown_rl.evaluation.results import DETAILS, Result
from countdown_rl.evaluation.sample import Sample, Scores
from countdown_rl.models import reference
from countdown_rl.release.templates import short
from countdown_rl.tasks import jsonl
from countdown_rl.tasks.registry import parse_row
from countdown_rl.tasks.task import Row

CONFIRMED, REFUTED, TOO_FEW = "confirmed", "refuted", "too few to tell"
#: Significance level of each test.
LEVEL = 0.01
#: Fewer puzzles, in the claim or in a measurement, confirm nothing.
MIN_PUZZLES = 100


@dataclass(frozen=True)
class Measurement:
    """Accuracy on the "recorded" or the "new" *puzzles*, and the p-value of the claim."""

    puzzles: str
    n: int
    accuracy: float
    interval: statistics.Interval
    p: float

    @classmethod
    def of(cls, puzzles: str, scores: Scores, p: float) -> Self:
        return cls(puzzles, scores.n, scores.accuracy, scores.interval, p)


@dataclass
class Verification:
    """A claimed accuracy with its measurements, and the ``reasons`` that refute it.

    ``seed`` is that of the new puzzles.
    """

    source: str
    revision: str | None
    digest: str
    seed: int
    accuracy: float | None = None
    n: int = 0
    measured: list[Measurement] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    @property
    def conclusion(self) -> str:
        if self.reasons:
            return REFUTED
        counts = [measurement.n for measurement in self.measured]
        return CONFIRMED if min([self.n, *counts]) >= MIN_PUZZLES else TOO_FEW


def verify(
    source: str,
    *,
    fresh: int = 300,
    seed: int | None = None,
    limit: int | None = None,
    data: Sequence[Path] = (),
    on_batch: evaluate.OnBatch | None = None,
) -> Verification:
    """Verify a release.

    Args:
        source: a directory, or ``NAME/MODEL@REVISION`` on the Hub.
        fresh: number of new puzzles.
        seed: seed of the new puzzles, by default a random one.
        limit: complete only the first recorded puzzles again.
        data: files of the recorded puzzles, if no manifest says how to generate them.
        on_batch: called after every batch of completions.

    Raises:
        CountdownError: *source* is not a release with an evaluation, or cannot be measured here.
    """
    folder, revision = _folder(source)
    if artifacts.peek(folder) != "release":
        raise ArtifactError(
            f"{source} is not a release; give a directory that publish wrote, or a copy of one."
        )
    seed = secrets.randbelow(1 << 31) if seed is None else seed
    try:
        manifest = artifacts.read(folder, "release")
    except ArtifactError as error:
        fault = str(error).replace(f"{folder}/", "").partition(";")[0]
        return Verification(source, revision, "unknown", seed, reasons=[fault])
    if "eval" not in manifest.inputs:
        raise ArtifactError(f"{source} holds no evaluation; publish the weights with one.")

    recorded = results.read(folder / "eval")
    chain = manifest.chain("model")
    metrics = recorded.metrics
    report = Verification(source, revision, manifest.digest, seed, metrics.accuracy, metrics.n)
    generated = _generated(recorded, chain)
    rows = _recorded_rows(recorded, generated, data)
    if different := ", ".join(_regraded(recorded, rows)):
        fault = f"eval/{DETAILS} has other metrics than its completions ({different})"
        report.reasons.append(fault)
        return report

    new = []
    if generated:
        options = replace(generated[0], n=max(3, fresh + 1), valid=0, test=fresh, seed=seed)
        new = list(map(parse_row, build.generate(options, "test")))
    gguf = next((name for name in manifest.files if name.endswith(".gguf")), "")
    decoding = _options(recorded, is_adapter=manifest.facts["format"] == "adapter")
    report.measured += _measured(folder / gguf, decoding, recorded, rows[:limit], new, on_batch)
    for measurement in report.measured:
        if measurement.p < LEVEL:
            report.reasons.append(
                f"the weights solve {percent(measurement.accuracy)} of {measurement.n:,} "
                f"{measurement.puzzles} puzzles, and {percent(metrics.accuracy)} of {metrics.n:,} "
                f"is claimed (p {measurement.p:.1g})"
            )
    return report


def _folder(source: str) -> tuple[Path, str | None]:
    """Return the directory of the release, and its commit if it was downloaded."""
    folder = Path(source).expanduser()
    if folder.is_dir():
        return folder, None
    name, _, commit = source.partition("@")
    if not reference.HUB_ID.fullmatch(name):
        raise ArtifactError(f"{source} is not a directory, nor NAME/MODEL[@REVISION] on the Hub.")
    folder = hub.download(name, commit or None)
    return folder, folder.name


def _generated(
    recorded: Result, chain: Sequence[ProvenanceEntry]
) -> tuple[DataOptions, str] | None:
    """Return the options that generated the recorded puzzles, and their split; None if imported."""
    sha256 = recorded.metrics.data["digest"]
    for link in chain:
        for name, file in link.files.items():
            if file["sha256"] == sha256 and link.kind == "data" and not link.inputs:
                where = f"the manifest of {link.name}"
                return typed_json.build(dict(link.options), DataOptions, where), Path(name).stem
    return None


def _recorded_rows(
    recorded: Result, generated: tuple[DataOptions, str] | None, data: Sequence[Path]
) -> list[Row]:
    """Return the recorded puzzles: from the files *data*, of the suite, or generated again."""
    sha256 = recorded.metrics.data["digest"]
    suite = recorded.metrics.data.get("suite")
    with TemporaryDirectory() as scratch:
        files = [Path(f"{jsonl.SUITE}{suite}")] if suite else list(data)
        if generated and not files:
            files = [Path(scratch, "puzzles.jsonl")]
            jsonl.write_rows(files[0], build.generate(*generated))
        for file in map(jsonl.test_file, files):
            if file_sha256(file) == sha256:
                return jsonl.read_rows(file)[: recorded.metrics.n]
    raise ArtifactError(
        f"the recorded puzzles, sha256 {short(sha256)}, are not found; give --data."
    )


def _regraded(recorded: Result, rows: Sequence[Row]) -> list[str]:
    """Return the metrics of *recorded* that differ when its completions are graded again."""
    metrics = recorded.metrics
    per_row = metrics.decoding.samples or 1
    if len(rows) * per_row != len(recorded.samples):
        return ["n"]
    samples: list[Sample] = []
    for index, sample in enumerate(recorded.samples):
        row = rows[index // per_row]
        samples.append(replace(sample, row=row, grade=row.grade(sample.completion)))
    scores = measure(samples)
    names = [field.name for field in fields(Scores)]
    return [name for name in names if getattr(scores, name) != getattr(metrics, name)]


def _measured(
    weights: Path,
    options: EvalOptions,
    recorded: Result,
    rows: Sequence[Row],
    new: Sequence[Row],
    on_batch: evaluate.OnBatch | None,
) -> list[Measurement]:
    """Complete the recorded *rows* and *new* ones, if any, with *weights*, and test the claim."""
    from scipy.stats import fisher_exact

    with TemporaryDirectory() as scratch:
        file = Path(scratch, "puzzles.jsonl")
        jsonl.write_rows(file, map(dict, [*rows, *new]))
        result = evaluate.evaluate(
            options, model=str(weights), data=file, out=Path(scratch, "eval"), on_batch=on_batch
        )
    border = len(rows) * options.samples
    again = result.samples[:border]
    pairs = zip(recorded.samples[:border], again, strict=True)
    changes = [(before.grade.correct, after.grade.correct) for before, after in pairs]
    regressed = changes.count((True, False))
    improved = changes.count((False, True))
    p = statistics.mcnemar(regressed, improved)
    measured = [Measurement.of("recorded", measure(again), p)]
    if new:
        scores = measure(result.samples[border:])
        counts = [_counts(recorded.metrics), _counts(scores)]
        p = float(fisher_exact(counts).pvalue)
        measured.append(Measurement.of("new", scores, p))
    return measured


def _options(recorded: Result, *, is_adapter: bool) -> EvalOptions:
    """Return the options of an evaluation that decodes as the *recorded* one did."""
    settings = typed_json.dump(recorded.metrics.decoding)
    del settings["greedy"]
    if is_adapter and recorded.metrics.precision == "nf4":
        settings["precision"] = "nf4"
    options: EvalOptions = typed_json.build(settings, EvalOptions, DETAILS)
    return options


def _counts(scores: Scores) -> tuple[int, int]:
    """Return the numbers of puzzles solved and not solved."""
    solved = round(scores.accuracy * scores.n)
    return solved, scores.n - solved
