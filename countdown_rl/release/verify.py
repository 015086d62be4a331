"""Verification of a release: its hashes, the metrics of its samples, and a new evaluation of its weights.

The weights complete the recorded test puzzles again, and new puzzles of the same distribution, from a seed that the
publisher cannot have known. The claim has to fit both measurements, each by a two-sided exact test at 1%: McNemar's
between the recorded and the new verdicts, Fisher's between the counts of recorded and of new puzzles solved.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory

from countdown_rl.core import artifacts, hub, typed_json
from countdown_rl.core.errors import ArtifactError
from countdown_rl.core.formatting import percent, plural, short
from countdown_rl.core.manifest import MANIFEST, Manifest, file_sha256, provenance_chain
from countdown_rl.core.packages import version
from countdown_rl.data import build
from countdown_rl.data.config import DataOptions
from countdown_rl.evaluation import evaluate, results, statistics
from countdown_rl.evaluation.config import EvalOptions
from countdown_rl.evaluation.metrics import measure
from countdown_rl.evaluation.results import DETAILS, METRICS, Result
from countdown_rl.models import ends, model_files, reference
from countdown_rl.models.model_files import GENERATION
from countdown_rl.release import consistency
from countdown_rl.release.model_card import ADAPTER_CONFIG, FILES, Weights
from countdown_rl.tasks import jsonl
from countdown_rl.tasks.registry import parse_row
from countdown_rl.tasks.task import Row

CONFIRMED, REFUTED, TOO_FEW = "confirmed", "refuted", "too few to tell"
#: Significance level of each test.
LEVEL = 0.01
#: Fewer puzzles, in the claim or in a measurement, confirm nothing.
MIN_PUZZLES = 100
#: Most puzzles that are generated for an evaluation of fewer.
MAX_PUZZLES = 100_000
#: Share of the greedy fp32 completions that another processor repeats word by word, at least.
REPEATED = 0.9
_CHECKED = [
    "the sha256 of each file, those of the weights also in their provenance",
    "the metrics in eval, from their samples, graded again",
    "metrics in facts, README.md and benchmark files, with those in eval",
    "the chat template, at other dates and for other prompts",
    "the base in manifest.json and README.md, with the provenance",
]
_NOT_CHECKED = [
    "the words of README.md",
    "that training with the recorded options and data gives these weights",
]


@dataclass(frozen=True)
class Measurement:
    """Accuracy on the recorded or the new puzzles, the p-value of the claim, and the recorded texts repeated."""

    puzzles: str
    n: int
    accuracy: float
    interval: statistics.Interval
    p: float
    repeated: int | None = None


@dataclass(frozen=True)
class Claim:
    """A claimed accuracy of the weights in *location*, and what was measured with *engine*."""

    location: str
    accuracy: float
    n: int
    engine: str
    measured: list[Measurement]


@dataclass
class Verification:
    """Claims with their measurements, and the ``reasons`` that refute the release.

    ``checked`` and ``not_checked`` name what else was compared, and what was only read; ``seed`` is that of the new
    puzzles.
    """

    source: str
    revision: str | None
    digest: str
    seed: int
    claims: list[Claim] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    checked: list[str] = field(default_factory=_CHECKED.copy)
    not_checked: list[str] = field(default_factory=_NOT_CHECKED.copy)

    @property
    def conclusion(self) -> str:
        if self.reasons:
            return REFUTED
        counts = [
            n for claim in self.claims for n in (claim.n, *(part.n for part in claim.measured))
        ]
        return CONFIRMED if min(counts, default=0) >= MIN_PUZZLES else TOO_FEW


class _RefutedError(Exception):
    """The release contradicts its claim."""


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

    Complete the first *limit* recorded puzzles again, and *fresh* new ones, from a random *seed* by default. *data* are
    files of the recorded puzzles, if no manifest says how to generate them. Raises CountdownError if *source* is not a
    release with an evaluation, or cannot be measured here.
    """
    folder, revision = Path(source).expanduser(), None
    if not folder.is_dir():
        name, _, commit = source.partition("@")
        if not reference.HUB_ID.fullmatch(name):
            raise ArtifactError(
                f"{source} is not a directory, nor NAME/MODEL[@REVISION] on the Hub."
            )
        folder = hub.download(name, commit or None)
        revision = folder.name
    if artifacts.peek(folder) != "release":
        raise ArtifactError(
            f"{source} is not a release; give a directory that publish wrote, or a copy of one."
        )
    manifest = Manifest.parse((folder / MANIFEST).read_bytes(), folder / MANIFEST)
    if not {"model", "eval"} <= manifest.inputs.keys() or manifest.facts["formats"].keys() != {"."}:
        raise ArtifactError(
            f"{source} does not hold weights in one format and their evaluation; build it again."
        )
    report = Verification(
        source, revision, manifest.digest, secrets.randbelow(1 << 31) if seed is None else seed
    )
    try:
        entry = manifest.entry("model")
        own = provenance_chain(entry)[-1]
        published = Manifest(own.kind, own.options, facts=own.facts, files=own.files)
        weights = Weights(folder, published, entry)
        recorded = _check_files(weights, manifest)
        if unread := consistency.unread(weights, recorded.metrics.task):
            report.not_checked.append(f"in other files and fields: {', '.join(unread)}")
        rows, new = _puzzles(recorded, weights, data, fresh, report)
        settings = typed_json.dump(recorded.metrics.decoding)
        settings.pop("greedy", None)
        options: EvalOptions = typed_json.build(settings, EvalOptions, DETAILS)
        report.not_checked += _check_scores(recorded, rows, options)
        report.reasons += dict.fromkeys(consistency.faults(weights, manifest, recorded))
        if not report.reasons:
            _measure(weights, recorded, rows[:limit], new, options, on_batch, report)
    except _RefutedError as error:
        report.reasons.append(str(error))
    return report


def _check_files(weights: Weights, manifest: Manifest) -> Result:
    """Compare the files with the *manifest* of the release and its chain; return the recorded evaluation."""
    try:
        artifacts.read(weights.path, "release")
    except ArtifactError as error:
        raise _RefutedError(str(error).replace(f"{weights.path}/", "").partition(";")[0]) from error
    recorded = results.read(weights.path / "eval")
    listed = {
        name: entry for name, entry in weights.manifest.files.items() if FILES.fullmatch(name)
    }
    listed |= {
        f"eval/{name}": entry
        for name, entry in provenance_chain(manifest.entry("eval"))[-1].files.items()
    }
    for name, entry in listed.items():
        if manifest.files.get(name) != entry and name not in (
            GENERATION,
            ADAPTER_CONFIG,
        ):  # publish rewrites these
            raise _RefutedError(
                f"{name} is not the file that the manifest of its weights or evaluation lists"
            )
    if not weights.measured_by(recorded):
        raise _RefutedError("eval is an evaluation of other weights")
    if recorded.metrics.data["digest"] in results.training_data(provenance_chain(weights.entry)):
        raise _RefutedError("the evaluation is on rows that the weights were trained on")
    if (
        not model_files.generation_config(weights.path).keys() <= ends.NEUTRAL
    ):  # but has a penalty, for example
        raise _RefutedError(
            f"{GENERATION} sets more than the tokens that end a completion, as no evaluation does"
        )
    return recorded


def _puzzles(
    recorded: Result, weights: Weights, data: Sequence[Path], fresh: int, report: Verification
) -> tuple[list[Row], list[Row]]:
    """The recorded puzzles, and *fresh* new ones if the recorded ones were generated."""
    sha256, links = recorded.metrics.data["digest"], provenance_chain(weights.entry)
    files = [
        (link, Path(name).stem, file["sha256"])
        for link in links
        for name, file in link.files.items()
    ]
    source, split = next(
        ((link, split) for link, split, digest in files if digest == sha256), (None, "")
    )
    options: DataOptions | None = None
    if source is not None and source.kind == "data" and not source.inputs:
        options = typed_json.build(
            dict(source.options), DataOptions, f"the manifest of {source.name}"
        )
    suite = recorded.metrics.data.get("suite")
    known = (
        [Path(f"{jsonl.SUITE}{suite}")] if suite else data
    )  # --data cannot make up for a wrong name
    if match := [path for path in map(jsonl.test_file, known) if file_sha256(path) == sha256]:
        rows = jsonl.read_rows(match[0])
        if suite and (recorded.metrics.of or recorded.metrics.n) != len(rows):
            raise _RefutedError(
                f"the evaluation is of a part of the suite {suite}, and does not say so"
            )
    elif suite:
        raise _RefutedError(f"the recorded rows are not those of the suite {suite}")
    elif options is None:
        raise ArtifactError(
            f"no manifest says how to generate the rows {short(sha256)}; give --data."
        )
    elif (size := build.split_sizes(options).get(split, 0)) > max(
        MAX_PUZZLES, len(recorded.samples)
    ):
        raise ArtifactError(
            f"the recorded options generate {plural(size, 'row')}, too many; give --data."
        )
    else:
        with TemporaryDirectory() as scratch:
            file = Path(scratch, "puzzles.jsonl")
            jsonl.write_rows(file, build.generate(options, split))
            if file_sha256(file) != sha256:
                raise _RefutedError("the recorded options do not generate the recorded rows")
            rows = jsonl.read_rows(file)
    if options is None:
        unknown = "which no manifest in the release says how to generate"
        report.not_checked.append(f"new puzzles of the same distribution, {unknown}")
        return rows[: recorded.metrics.n], []
    options = replace(options, n=max(3, fresh + 1), valid=0, test=fresh, seed=report.seed)
    return rows[: recorded.metrics.n], list(map(parse_row, build.generate(options, "test")))


def _check_scores(recorded: Result, rows: Sequence[Row], options: EvalOptions) -> list[str]:
    """Grade the samples of *recorded* again, and compare every metric with theirs; return what cannot be compared."""
    if len(rows) * options.samples != len(recorded.samples) or len(rows) != recorded.metrics.n:
        raise _RefutedError("eval has another number of samples than its decoding and its rows")
    samples = []
    for index, sample in enumerate(recorded.samples):
        row = rows[index // options.samples]
        grade = row.grade(sample.completion)
        # Earlier versions were stricter: only one line break was allowed between the blocks.
        grade = replace(grade, strict_format=grade.strict_format and sample.grade.strict_format)
        samples.append(replace(sample, row=row, grade=grade))
        if not sample.to_json().items() >= samples[-1].to_json().items():
            raise _RefutedError(
                "the samples in eval do not have the grades of their texts, or are of other rows"
            )
    metrics, earlier = recorded.metrics, recorded.manifest.version != version()
    scores = measure(samples, rows, limits=[*metrics.budgets])
    graded = evaluate.identity(rows) | ({"grammar": metrics.grammar} if earlier else {})
    details = replace(metrics, **vars(scores), **graded).to_json()
    if earlier:  # the ends of its intervals are compared in details.json
        scores = replace(scores, interval=metrics.interval, pass_at=metrics.pass_at)
    unknown: list[str] = []
    for file, computed in (
        (DETAILS, details),
        (METRICS, results.flat(scores, metrics.of)),
    ):
        written = typed_json.read(recorded.path / file)
        different = [name for name in written if written[name] != computed.get(name)]
        if earlier:
            different, names = consistency.earlier_metrics(written, computed, details["groups"])
            unknown += (
                [f"in eval/{file}, of an earlier version: {', '.join(names)}"] if names else []
            )
        if different:
            raise _RefutedError(
                f"eval/{file} has other metrics than its samples ({', '.join(sorted(different))})"
            )
    return unknown


def _measure(
    weights: Weights,
    recorded: Result,
    rows: Sequence[Row],
    new: Sequence[Row],
    options: EvalOptions,
    on_batch: evaluate.OnBatch | None,
    report: Verification,
) -> None:
    """Complete the recorded *rows* and the *new* ones, and test the claim about them."""
    from scipy.stats import fisher_exact

    metrics, border = recorded.metrics, len(rows) * options.samples
    nf4 = weights.format.name == "adapter" and metrics.precision == "nf4"
    options = replace(options, precision="nf4" if nf4 else "auto")
    with TemporaryDirectory() as scratch:
        file, out = Path(scratch, "puzzles.jsonl"), Path(scratch, "eval")
        jsonl.write_rows(file, map(dict, [*rows, *new]))
        result = evaluate.evaluate(
            options, model=str(weights.loadable), data=file, out=out, on_batch=on_batch
        )
    text = attrgetter("completion", "tokens", "truncated")
    pairs = list(zip(recorded.samples, result.samples[:border], strict=False))
    changes = [(before.grade.correct, after.grade.correct) for before, after in pairs]
    p = statistics.mcnemar(changes.count((True, False)), changes.count((False, True)))
    repeated = (
        None if options.temperature else sum(text(before) == text(after) for before, after in pairs)
    )
    scores = measure(result.samples[:border], rows)
    measured = [Measurement("recorded", scores.n, scores.accuracy, scores.interval, p, repeated)]
    if new:
        scores = measure(result.samples[border:], new)
        solved = [round(part.accuracy * part.n) for part in (metrics, scores)]
        table = [solved, [metrics.n - solved[0], scores.n - solved[1]]]
        p = float(fisher_exact(table).pvalue)
        measured.append(Measurement("new", scores.n, scores.accuracy, scores.interval, p))
    report.claims.append(
        Claim(".", metrics.accuracy, metrics.n, result.metrics.engine or "", measured)
    )
    for part in (part for part in measured if part.p < LEVEL):
        fault = f"the weights solve {percent(part.accuracy)} of {part.n:,} {part.puzzles} puzzles"
        report.reasons.append(
            f"{fault}, and {percent(metrics.accuracy)} of {metrics.n:,} is claimed (p {part.p:.1g})"
        )
    if repeated is None:
        report.not_checked.append("the words of the sampled completions in eval")
    elif repeated < (
        REPEATED * border if metrics.precision == result.metrics.precision == "fp32" else 1
    ):
        report.reasons.append(
            f"the weights repeat {repeated:,} of {border:,} greedy completions of eval"
        )
