"""Verification of a release: the downloaded weights solve as many puzzles as the card claims.

The weights are loaded as the card says and complete two sets of puzzles: the recorded test puzzles, made again from the
recorded options, and new puzzles of the same distribution, from a seed that the publisher cannot have known. The
claimed accuracy has to fit both, each by a two-sided exact test at 1%:

- recorded puzzles: McNemar's test between the recorded verdicts and those of the new completions;
- new puzzles: Fisher's test between the claimed and the measured counts.

The claim is read from the card's metadata (``model-index``), and that of weights in a subfolder from their evaluation.
No page is compared with another, so a release of an older version verifies as well. ``Verification.not_checked`` says
what the conclusion does not cover.
"""

import hashlib
import io
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from countdown_rl import artifacts, typed_json
from countdown_rl.artifacts import MANIFEST, Manifest, ProvenanceEntry
from countdown_rl.data import build, jsonl
from countdown_rl.data.config import DataOptions
from countdown_rl.errors import ArtifactError, UsageError, first_line
from countdown_rl.evaluation import evaluate, results, statistics
from countdown_rl.evaluation.config import EvalOptions
from countdown_rl.evaluation.evaluate import OnBatch
from countdown_rl.evaluation.results import DETAILS, METRICS, MainFigures, Result, Verdict
from countdown_rl.formatting import percent, short
from countdown_rl.hub import structure
from countdown_rl.hub.formats import ADAPTER, GGUF, evaluation_key, training_data
from countdown_rl.hub.model_card import CARD, CURVES
from countdown_rl.inference import engines, generate
from countdown_rl.inference.generate import Decoding
from countdown_rl.models import chat_template, load, model_files, reference
from countdown_rl.models.reference import ModelRef
from countdown_rl.options import Options, field_hints
from countdown_rl.report.demo import INDEX
from countdown_rl.tasks.registry import parse_row
from countdown_rl.tasks.task import Row

AnyOptions = TypeVar("AnyOptions", bound=Options)

CONFIRMED, REFUTED, TOO_FEW = "confirmed", "refuted", "too few to tell"
#: Level of each test.
LEVEL = 0.01
#: Puzzles of the claim, and of each measurement, without which nothing is confirmed.
MIN_PUZZLES = 100
#: Recorded puzzles that are made again; more have to be given.
MAX_ROWS = 1_000_000

RECORDED, NEW = "recorded", "new"

#: Figures of an evaluation, of this version and of older ones.
_FIGURES = {
    *("accuracy", "by_needs", "by_size", "by_solutions", "correct", "data", "decoding", "draws", "endpoint", "engine"),
    *("format", "groups", "impossible", "interval", "intervals", "majority", "mean_tokens", "model", "n", "pass_at"),
    *("path", "precision", "reasons", "rules", "strict_format", "task", "tokens", "truncated", "wrong_refusals"),
}


@dataclass(frozen=True)
class Measurement:
    """Accuracy on the recorded or the new puzzles, and the p-value of the claim."""

    puzzles: str
    n: int
    accuracy: float
    interval: tuple[float, float]
    p: float


@dataclass
class Claim:
    """A claimed accuracy of the weights in *location*, and what was measured with *engine*."""

    location: str
    accuracy: float
    n: int
    engine: str = ""
    measured: list[Measurement] = field(default_factory=list)


@dataclass
class Verification:
    """Claims with their measurements, and ``reasons`` against the release; ``seed`` is that of the new puzzles."""

    source: str
    revision: str | None
    digest: str
    seed: int
    claims: list[Claim] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)

    @property
    def conclusion(self) -> str:
        if self.reasons:
            return REFUTED
        counts = [n for claim in self.claims for n in (claim.n, *(part.n for part in claim.measured))]
        return CONFIRMED if min(counts, default=0) >= MIN_PUZZLES else TOO_FEW


def verify(
    source: str,
    *,
    fresh: int = 300,
    seed: int | None = None,
    limit: int | None = None,
    data: Sequence[Path] = (),
    on_batch: OnBatch | None = None,
) -> Verification:
    """Verify the release at *source*, a folder or ``NAME/MODEL@REVISION`` on the Hub.

    Args:
        fresh: the number of new puzzles; *seed* is theirs, drawn at random if None.
        limit: the number of recorded puzzles to complete again; None is all.
        data: files of the recorded puzzles, where the manifests do not make them.

    Raises:
        CountdownError: *source* is no release with an evaluation, or cannot be measured here.
    """
    folder, revision = _fetch(source)
    if artifacts.peek(folder) != "release":
        raise ArtifactError(f"{source} is no release of countdown-rl; give a directory that publish made, or its copy.")
    manifest = Manifest.parse((folder / MANIFEST).read_bytes(), folder / MANIFEST)
    typed_json.check_type(manifest.facts.get("formats"), dict[str, str], f"`formats` in {folder / MANIFEST}")
    report = Verification(source, revision, manifest.digest, secrets.randbelow(1 << 31) if seed is None else seed)
    report.reasons += structure.faults(folder, manifest, links=revision is not None)
    if report.reasons:
        return report
    keys = {location: evaluation_key(location) for location in manifest.facts["formats"]}
    evaluations = {
        where: results.read(folder / key, MainFigures, Verdict)
        for where, key in keys.items()
        if f"{key}/{DETAILS}" in manifest.files
    }
    if "." not in evaluations:
        raise ArtifactError(f"{source} holds no evaluation of its weights; evaluate them, then build it again.")
    report.reasons += _contradictions(folder, manifest, evaluations)
    load.silence_libraries()
    sets: dict[str, dict[str, list[Row]]] = {}
    for location, recorded in evaluations.items():
        sha256 = recorded.metrics["data"].get("digest")
        if not report.reasons and sha256 not in sets:
            sets[sha256] = _puzzles(sha256, manifest, data, fresh, report)
        if not report.reasons:
            _measure(folder, location, manifest, recorded, sets[sha256], limit, on_batch, report)
    pages = [name for name in (CURVES, INDEX) if name in manifest.files]
    unmeasured = [f"the weights in {location}" for location in keys.keys() - evaluations.keys()]
    training = "that training with the recorded options and data gives these weights"
    report.not_checked += [f"all words of {CARD}, and its other figures", *pages, *sorted(unmeasured), training]
    return report


def _fetch(source: str) -> tuple[Path, str | None]:
    """The folder of *source*, downloaded from the Hub if it is there, and the commit."""
    name, _, revision = source.partition("@")
    path = Path(source).expanduser()
    if path.is_dir():
        return path, None
    if Path(name).parent.is_dir() or not reference.HUB_ID.fullmatch(name):
        raise ArtifactError(f"{source} is no directory; give that of publish, or NAME/MODEL[@REVISION] on the Hub.")
    folder = reference.download(name, revision or None, allowed=None, ignored=None)
    return folder, folder.name


def _contradictions(folder: Path, manifest: Manifest, evaluations: Mapping[str, Result]) -> Iterator[str]:
    """Compare card, manifests and evaluations with each other."""
    from huggingface_hub import ModelCard

    for recorded in evaluations.values():
        key, metrics = recorded.path.name, recorded.metrics
        if extra := sorted(metrics.keys() - _FIGURES):
            yield f"{key}/{DETAILS} has figures that no evaluation has ({', '.join(extra)})"
        if recorded.manifest.digest != manifest.inputs.get(key, {}).get("digest"):
            yield f"{key} is not the evaluation in the manifest"
        accuracy = sum(sample["correct"] for sample in recorded.samples) / len(recorded.samples)
        for name, figures in ((DETAILS, metrics), (METRICS, typed_json.read(folder / key / METRICS))):
            if abs(figures.get("accuracy", -1) - accuracy) > 1e-3 or figures.get("n") != metrics["n"]:
                yield f"{key}/{name} has another accuracy than its samples"
    for entry in manifest.inputs.values():
        if (altered := artifacts.altered(entry)) is not None:
            yield f"the manifest of {altered} does not have its recorded digest"
    compared = manifest.inputs.get("comparison", {}).get("manifest", {}).get("inputs", {})
    digest = evaluations["."].manifest.digest
    if "comparison" in manifest.inputs and digest not in [entry.get("digest") for entry in compared.values()]:
        yield f"{CARD} has a comparison without the evaluation of these weights"
    try:
        card: Any = ModelCard((folder / CARD).read_text("utf-8"))
        entries = card.data.eval_results or []
    except Exception as error:  # of YAML, and of the Hub's own checks
        raise ArtifactError(f"the metadata of {CARD} cannot be read: {first_line(error)}") from error
    overall = [entry for entry in entries if entry.metric_type == "accuracy" and entry.dataset_config is None]
    if len(overall) != 1:
        yield f"the metadata of {CARD} have {len(overall)} accuracies on all puzzles, not one"
        return
    metrics, terms = evaluations["."].metrics, overall[0].metric_args or {}
    expected = metrics["decoding"] | {"accuracy": round(metrics["accuracy"], 4), "n": metrics["n"]}
    claimed = terms | {"accuracy": overall[0].metric_value}
    if different := sorted(key for key, value in expected.items() if claimed.get(key) != value):
        yield f"the metadata of {CARD} do not have what the evaluation has ({', '.join(different)})"


def _puzzles(
    sha256: str, manifest: Manifest, given: Sequence[Path], fresh: int, report: Verification
) -> dict[str, list[Row]]:
    """The recorded puzzles, in a file with *sha256*, and *fresh* new ones where the recorded ones were generated."""
    links = artifacts.chain(
        *(manifest.inputs.get(location[2:] or "model", {}) for location in manifest.facts["formats"])
    )
    if sha256 in training_data(links):
        report.reasons.append("the evaluation is on puzzles that the weights were trained on")
        return {}
    sets = {}
    for path in map(jsonl.test_file, given):
        if artifacts.file_sha256(path) == sha256:
            sets[RECORDED] = jsonl.read_rows(path)
    data = ((link, name) for link in links if link.kind == "data" for name in link.files)
    source, name = next((pair for pair in data if pair[0].files[pair[1]]["sha256"] == sha256), (None, ""))
    options = _generator(source) if source else None
    if RECORDED not in sets:
        split = name.removesuffix(".jsonl")
        if options is None or source is None or source.inputs or build.split_sizes(options).get(split, 0) > MAX_ROWS:
            raise ArtifactError(
                f"the puzzles with sha256 {short(sha256)} cannot be made again: the manifests do not say how, or they "
                f"are more than {MAX_ROWS:,}; give --data."
            )
        rows, text = list(build.generate(options, split)), io.StringIO()
        jsonl.writer(text).write_all(rows)
        if hashlib.sha256(text.getvalue().encode()).hexdigest() != sha256:
            report.reasons.append("the recorded options do not make the recorded puzzles")
            return {}
        sets[RECORDED] = list(map(parse_row, rows))
    if options is None:
        report.not_checked.append("new puzzles of the same distribution, as the recorded ones were not generated")
    else:
        new = replace(options, n=max(3, fresh + 1), valid=0, test=fresh, seed=report.seed)
        sets[NEW] = list(map(parse_row, build.generate(new, "test")))
    return sets


def _generator(source: ProvenanceEntry) -> DataOptions | None:
    """The options that generated the data *source*; None where they were imported."""
    recorded: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in source.options.items()
    }
    if local := sorted(recorded.keys() & set(build.UNRECORDED)):  # it would read files, or start processes
        raise ArtifactError(f"the manifest of {source.name} has the option {local[0]}, which no manifest has.")
    hints = field_hints(DataOptions)
    for key in sorted(recorded.keys() & hints.keys()):
        typed_json.check_type(recorded[key], hints[key], f"the option {key} in the manifest of {source.name}")
    options = _recorded(DataOptions, recorded, source.name)
    return None if options.from_hub or {"from", "test"} & source.inputs.keys() else options


def _recorded(kind: type[AnyOptions], values: Mapping[str, Any], name: str) -> AnyOptions:
    """The options *values* by which *name* was made."""
    try:
        return kind(**values)
    except (TypeError, UsageError) as error:
        raise ArtifactError(f"{name} was made with options that this version does not have: {error}") from None


def _measure(
    folder: Path,
    location: str,
    manifest: Manifest,
    recorded: Result,
    sets: Mapping[str, Sequence[Row]],
    limit: int | None,
    on_batch: OnBatch | None,
    report: Verification,
) -> None:
    """Complete the *sets* of puzzles with the weights in *location*, and test the claim about them."""
    n, metrics = recorded.metrics["n"], recorded.metrics
    rows, before = sets[RECORDED][:n], [sample["correct"] for sample in recorded.samples]
    graded = [
        row.grade(sample["completion"]).correct
        for row, samples in zip(rows, recorded.by_puzzle, strict=False)
        for sample in samples
    ]
    if before != graded:
        report.reasons.append(f"the samples in {recorded.path.name} do not have the grades of their texts")
        return
    decoding = {key: value for key, value in metrics["decoding"].items() if key != "greedy"}
    options = _recorded(EvalOptions, decoding, recorded.path.name)
    if options.samples * n != len(recorded.samples):
        report.reasons.append(f"{recorded.path.name} has another number of samples than its decoding")
        return
    format, entry = manifest.facts["formats"][location], manifest.inputs.get(location[2:] or "model", {})
    path = next((folder / location).glob("*.gguf")) if format == GGUF.name else folder / location
    ref = reference.resolve(str(path))
    if ref.base is not None and _is_other(ref.base, entry.get("manifest", {}).get("inputs", {}).get("model", {})):
        report.reasons.append(f"the base that the adapter in {location} loads is not the recorded one")
        return
    precision = "nf4" if format == ADAPTER.name and metrics.get("precision") == "nf4" else "auto"
    name = engines.resolve("auto", ref, precision=precision, device="auto")
    engine = engines.load_engine(name, ref, Decoding.of(options), precision=precision)
    if ref.kind == "gguf":  # which programs read without the files beside it
        engine.tokenizer.chat_template = model_files.gguf_config(path).get("tokenizer.chat_template")
        report.reasons += structure.modelfile_faults(path.parent, engine.tokenizer, rows[0])
    claim = Claim(location, metrics["accuracy"], n, engine.name)
    report.claims.append(claim)
    for puzzles, those in {RECORDED: rows[:limit], NEW: sets.get(NEW, [])}.items():
        prompts = _prompts(engine.tokenizer, those, location, report)
        if not report.reasons and those:
            ids = engine.tokenizer(prompts, add_special_tokens=False)["input_ids"]
            engine.prepare(max(map(len, ids)) + options.max_new_tokens)
            verdicts = [
                sample["correct"] for sample in evaluate.complete_and_grade(engine, those, ids, options, on_batch)
            ]
            claim.measured.append(_test(puzzles, claim, verdicts, options.samples, before))
    del engine  # the next one needs its memory
    generate.free_memory()
    for part in claim.measured:
        if part.p < LEVEL:
            report.reasons.append(
                f"the weights in {location} solve {percent(part.accuracy)} of {part.n:,} {part.puzzles} puzzles, and "
                f"{percent(claim.accuracy)} of {n:,} is claimed (p {part.p:.1g})"
            )


def _is_other(base: ModelRef, recorded: Mapping[str, Any]) -> bool:
    """Return True if *base* does not have the contents of the model *recorded* in a manifest."""
    if revision := recorded.get("revision"):
        return base.revision != revision
    path, listed = reference.local_path(base), recorded.get("manifest", {}).get("files", {})
    if listed:
        weights = {
            name: entry for name, entry in listed.items() if name.endswith((".safetensors", ".gguf", "config.json"))
        }
        return any(not (path / name).is_file() or artifacts.entry(path / name) != weights[name] for name in weights)
    return replace(base, revision=None, manifest=None, path=path).digest != recorded.get("digest")


def _prompts(tokenizer: Any, rows: Sequence[Row], location: str, report: Verification) -> list[str]:
    """The prompts of *rows* as the card tells a user to write them: the user turn if the template adds the rest."""
    completes = chat_template.MARK in (tokenizer.chat_template or "")
    prompts, frames = [], set()
    for row in rows:
        turns = [turn for turn in row.messages() if turn["role"] == "user" or not completes]
        prompts.append(chat_template.render(tokenizer, turns, {}))
        frame = prompts[-1]
        for turn in turns:
            frame = "".join(frame.rpartition(turn["content"].strip())[::2])
        frames.add(frame)
    if len(frames) > 1:
        report.reasons.append(f"the chat template in {location} adds text that depends on the puzzle")
    return prompts


def _test(puzzles: str, claim: Claim, verdicts: Sequence[bool], per_row: int, before: Sequence[bool]) -> Measurement:
    """Test *claim* on *verdicts*, *per_row* for each puzzle; *before* are the recorded verdicts on these puzzles."""
    from scipy.stats import fisher_exact

    shares = [sum(verdicts[start : start + per_row]) / per_row for start in range(0, len(verdicts), per_row)]
    n, accuracy = len(shares), sum(shares) / len(shares)
    if puzzles == RECORDED:
        pairs = list(zip(before, verdicts, strict=False))
        p = statistics.mcnemar(pairs.count((True, False)), pairs.count((False, True)))
    else:
        counts = [(round(share * total), total) for share, total in ((claim.accuracy, claim.n), (accuracy, n))]
        p = float(fisher_exact([[right, total - right] for right, total in counts]).pvalue)
    return Measurement(puzzles, n, accuracy, statistics.mean_interval(shares, per_row), p)
