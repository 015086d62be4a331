"""Verification of a release: its hashes, the grades of its completions, and a new evaluation of its weights.

The weights complete the recorded test puzzles again, and new puzzles of the same distribution, from a seed that the
publisher cannot have known. The claim has to fit both measurements, each by a two-sided exact test at 1%: McNemar's
between the recorded and the new grades, Fisher's between the counts of recorded and of new puzzles solved.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory

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
        smallest = min([self.n, *(part.n for part in self.measured)])
        return CONFIRMED if smallest >= MIN_PUZZLES else TOO_FEW


def verify(
    source: str,
    *,
    fresh: int = 300,
    seed: int | None = None,
    limit: int | None = None,
    data: Sequence[Path] = (),
    on_batch: evaluate.OnBatch | None = None,
) -> Verification:
    """Verify the release at *source*, a directory or ``NAME/MODEL@REVISION`` on the Hub.

    Args:
        fresh: number of new puzzles.
        seed: seed of the new puzzles, by default a random one.
        limit: complete only the first recorded puzzles again.
        data: files of the recorded puzzles, if no manifest says how to generate them.

    Raises CountdownError if *source* is not a release with an evaluation, or cannot be measured here.
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
    rows = _recorded_rows(recorded, chain, data)
    if different := _regraded(recorded, rows):
        names = ", ".join(different)
        report.reasons.append(f"eval/{DETAILS} has other metrics than its completions ({names})")
        return report
    new = _new_rows(recorded, chain, fresh, seed)
    gguf = next((name for name in manifest.files if name.endswith(".gguf")), "")
    options = _options(recorded, is_adapter=manifest.facts["format"] == "adapter")
    _measure(folder / gguf, options, recorded, rows[:limit], new, on_batch, report)
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


def _source(recorded: Result, chain: Sequence[ProvenanceEntry]) -> tuple[DataOptions, str] | None:
    """Return the options that generated the recorded puzzles, and their split; None for imported ones."""
    sha256 = recorded.metrics.data["digest"]
    for link in chain:
        for name, file in link.files.items():
            if file["sha256"] == sha256 and link.kind == "data" and not link.inputs:
                where = f"the manifest of {link.name}"
                return typed_json.build(dict(link.options), DataOptions, where), Path(name).stem
    return None


def _recorded_rows(
    recorded: Result, chain: Sequence[ProvenanceEntry], data: Sequence[Path]
) -> list[Row]:
    """Return the recorded puzzles: from the files *data*, those of the suite, or generated again."""
    sha256 = recorded.metrics.data["digest"]
    suite = recorded.metrics.data.get("suite")
    files = [Path(f"{jsonl.SUITE}{suite}")] if suite else data
    source = _source(recorded, chain)
    with TemporaryDirectory() as scratch:
        candidates = [jsonl.test_file(file) for file in files]
        if source and not candidates:
            options, split = source
            candidates = [Path(scratch, "puzzles.jsonl")]
            jsonl.write_rows(candidates[0], build.generate(options, split))
        for file in candidates:
            if file_sha256(file) == sha256:
                return jsonl.read_rows(file)[: recorded.metrics.n]
    raise ArtifactError(
        f"the recorded puzzles, sha256 {short(sha256)}, are not found; give --data."
    )


def _new_rows(
    recorded: Result, chain: Sequence[ProvenanceEntry], fresh: int, seed: int
) -> list[Row]:
    """Return *fresh* new puzzles of the distribution of the recorded ones; none if these were imported."""
    source = _source(recorded, chain)
    if source is None:
        return []
    options = replace(source[0], n=max(3, fresh + 1), valid=0, test=fresh, seed=seed)
    return list(map(parse_row, build.generate(options, "test")))


def _regraded(recorded: Result, rows: Sequence[Row]) -> list[str]:
    """Return the names of the metrics of *recorded* that differ when its completions are graded again."""
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


def _measure(
    weights: Path,
    options: EvalOptions,
    recorded: Result,
    rows: Sequence[Row],
    new: Sequence[Row],
    on_batch: evaluate.OnBatch | None,
    report: Verification,
) -> None:
    """Complete the recorded *rows* and the *new* ones with *weights*, and test the claim about them."""
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
    report.measured.append(_measurement("recorded", measure(again), p))
    if new:
        scores = measure(result.samples[border:])
        counts = [_counts(recorded.metrics), _counts(scores)]
        p = float(fisher_exact(counts).pvalue)
        report.measured.append(_measurement("new", scores, p))

    for part in report.measured:
        if part.p < LEVEL:
            measured = f"{percent(part.accuracy)} of {part.n:,} {part.puzzles} puzzles"
            claimed = f"{percent(recorded.metrics.accuracy)} of {recorded.metrics.n:,}"
            report.reasons.append(
                f"the weights solve {measured}, and {claimed} is claimed (p {part.p:.1g})"
            )


def _options(recorded: Result, *, is_adapter: bool) -> EvalOptions:
    """Return the options of an evaluation that decodes as the *recorded* one did."""
    settings = typed_json.dump(recorded.metrics.decoding)
    del settings["greedy"]
    if is_adapter and recorded.metrics.precision == "nf4":
        settings["precision"] = "nf4"
    options: EvalOptions = typed_json.build(settings, EvalOptions, DETAILS)
    return options


def _measurement(puzzles: str, scores: Scores, p: float) -> Measurement:
    return Measurement(puzzles, scores.n, scores.accuracy, scores.interval, p)


def _counts(scores: Scores) -> tuple[int, int]:
    """Return the numbers of puzzles solved and not solved."""
    solved = round(scores.accuracy * scores.n)
    return solved, scores.n - solved
