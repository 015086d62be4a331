"""Verification of a release: its files are those of its chain, its figures those of its samples, and its weights,
evaluated again by :mod:`countdown_rl.evaluation`, solve as many puzzles as it claims.

They complete the recorded test puzzles, made again from the recorded options, and new ones of the same distribution,
from a seed that the publisher cannot have known. The claim has to fit both, by a two-sided exact test at 1%: McNemar's
between the recorded and the new verdicts, Fisher's between the claimed and the measured counts of new puzzles.
"""

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from countdown_rl.core import artifacts, typed_json
from countdown_rl.core.artifacts import MANIFEST, Manifest
from countdown_rl.core.errors import ArtifactError, first_line
from countdown_rl.core.formatting import percent, short
from countdown_rl.core.options import Options, field_hints
from countdown_rl.data import build
from countdown_rl.data.config import DataOptions
from countdown_rl.evaluation import evaluate, results, statistics
from countdown_rl.evaluation.config import EvalOptions
from countdown_rl.evaluation.evaluate import OnBatch
from countdown_rl.evaluation.metrics import measure
from countdown_rl.evaluation.results import DETAILS, METRICS, Result
from countdown_rl.evaluation.sample import Sample
from countdown_rl.models import chat_template, ends, load, model_files, reference
from countdown_rl.models.model_files import GENERATION
from countdown_rl.release import formats, model_card
from countdown_rl.release.demo import INDEX
from countdown_rl.release.formats import ADAPTER, ADAPTER_CONFIG, FILES, GGUF, Weights
from countdown_rl.release.model_card import CARD, CURVES, LICENSE
from countdown_rl.tasks import jsonl
from countdown_rl.tasks.registry import parse_row
from countdown_rl.tasks.task import Row

AnyOptions = TypeVar("AnyOptions", bound=Options)

CONFIRMED, REFUTED, TOO_FEW = "confirmed", "refuted", "too few to tell"
RECORDED, NEW = "recorded", "new"
#: Level of each test; puzzles of the claim, and of each measurement, without which nothing is confirmed; recorded
#: puzzles that are made again, more have to be given; share of greedy fp32 completions that other processors repeat.
LEVEL, MIN_PUZZLES, MAX_ROWS, REPEATED = 0.01, 100, 1_000_000, 0.9
_CHECKED = (
    "the sha256 of each file, those of the weights also in their chain of manifests",
    "the figures in eval, from their samples, graded again",
)
#: Files of a release that are only read.
_PAGES = re.compile(rf"{CARD}|{CURVES}|{INDEX}|{LICENSE}|eval/{MANIFEST}")


@dataclass(frozen=True)
class Measurement:
    """Accuracy on the recorded or the new puzzles, the p-value of the claim, and the recorded texts repeated."""

    puzzles: str
    n: int
    accuracy: float
    interval: tuple[float, float]
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
    """Claims with their measurements, ``reasons`` against the release, what was ``checked`` beside, and what was only
    read (``not_checked``); ``seed`` is that of the new puzzles."""

    source: str
    revision: str | None
    digest: str
    seed: int
    claims: list[Claim] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)

    @property
    def conclusion(self) -> str:
        if self.reasons:
            return REFUTED
        counts = [n for claim in self.claims for n in (claim.n, *(part.n for part in claim.measured))]
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
    on_batch: OnBatch | None = None,
) -> Verification:
    """Verify the release at *source*, a folder or ``NAME/MODEL@REVISION`` on the Hub.

    Args:
        fresh: the number of new puzzles; *seed* is theirs, random if None.
        limit: the number of recorded puzzles to complete again; None is all.
        data: files of the recorded puzzles, where the manifests do not make them.

    Raises:
        CountdownError: *source* is no release with an evaluation, or cannot be measured here.
    """
    folder, revision = _fetch(source)
    if artifacts.peek(folder) != "release":
        raise ArtifactError(f"{source} is no release of countdown-rl; give a directory that publish made, or its copy.")
    manifest = Manifest.parse((folder / MANIFEST).read_bytes(), folder / MANIFEST)
    listed, entries = manifest.facts.get("formats"), [manifest.inputs.get(key, {}) for key in ("model", "eval")]
    known = isinstance(listed, dict) and listed.keys() == {"."} and str(listed["."]) in formats.FORMATS
    if not known or not all("manifest" in entry for entry in entries):
        raise ArtifactError(f"{source} does not hold weights in one known format and their evaluation; build it again.")
    weights, evaluation = (
        Manifest.parse(json.dumps(entry["manifest"]).encode(), f"an input in {folder / MANIFEST}") for entry in entries
    )
    made = Weights(folder, weights, entries[0], formats.FORMATS[manifest.facts["formats"]["."]])
    report = Verification(source, revision, manifest.digest, secrets.randbelow(1 << 31) if seed is None else seed)
    report.checked += [*_CHECKED]
    try:
        _check_files(made, manifest, evaluation, report)
        recorded = results.read(folder / "eval")
        _check_claims(made, manifest, recorded)
        rows, new = _puzzles(str(recorded.metrics.data.get("digest")), made, data, fresh, report)
        decoding = {key: value for key, value in typed_json.dump(recorded.metrics.decoding).items() if key != "greedy"}
        options = _options(EvalOptions, decoding | {"pass_at": evaluation.options.get("pass_at")}, "eval")
        _check_figures(recorded, rows[: recorded.metrics.n], options)
        _check_loading(made, rows)
        _measure(made, recorded, rows[: recorded.metrics.n][:limit], new, options, on_batch, report)
    except _RefutedError as error:
        report.reasons.append(str(error))
    pages = [name for name in manifest.files if _PAGES.fullmatch(name) and name != CARD]
    report.not_checked += [f"all words of {CARD}, and its other figures", *pages]
    report.not_checked += ["that training with the recorded options and data gives these weights"]
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


def _check_files(made: Weights, manifest: Manifest, evaluation: Manifest, report: Verification) -> None:
    """Compare the files with the *manifest* of the release, and this one with the manifests of its chain."""
    try:
        artifacts.read(made.path, "release")
    except ArtifactError as error:
        raise _RefutedError(str(error).replace(f"{made.path}/", "").partition(";")[0]) from error
    expected = {name: entry for name, entry in made.manifest.files.items() if FILES.fullmatch(name)}
    expected |= {f"eval/{name}": entry for name, entry in evaluation.files.items()}
    for name in sorted(expected.keys() | manifest.files.keys()):
        if name not in manifest.files:
            raise _RefutedError(f"{name} of the chain of manifests is missing")
        if name not in expected and not _PAGES.fullmatch(name):
            raise _RefutedError(f"{name} is no file of such a release")
        if expected.get(name, manifest.files[name]) == manifest.files[name] or name == GENERATION:
            continue
        if name != ADAPTER_CONFIG or artifacts.origin(artifacts.chain(made.entry)).kind == "hub":
            raise _RefutedError(f"{name} is not the file that the manifest of its weights or evaluation lists")
        report.not_checked.append("the base of training, and the settings of the adapter")  # publish named another base
    for path in sorted(made.path.rglob("*")):
        name = path.relative_to(made.path).as_posix()
        shown = name.startswith(".eval_results/") and name not in manifest.files  # by the Hub, although it is hidden
        if shown or (path.is_symlink() and path.is_dir()):
            raise _RefutedError(f"{name} is not in the manifest")


def _check_claims(made: Weights, manifest: Manifest, recorded: Result) -> None:
    """Compare the metadata of the card, the manifests and the evaluation with each other."""
    from huggingface_hub import ModelCard

    try:
        card: Any = ModelCard((made.path / CARD).read_text("utf-8")).data
    except Exception as error:  # of YAML, and of the Hub's own checks
        raise ArtifactError(f"the metadata of {CARD} cannot be read: {first_line(error)}") from error
    metrics, facts, options = recorded.metrics, manifest.facts, recorded.manifest.options
    decoding, data = typed_json.dump(metrics.decoding), recorded.manifest.inputs.get("data")
    trained_on = results.training_data(artifacts.chain(made.entry))
    loads = model_files.adapter_config(made.path) if made.format is ADAPTER else {}
    bases = {card.base_model, facts.get("base_model"), loads.get("base_model_name_or_path", card.base_model)}
    figures = [metrics.accuracy, metrics.n, [*metrics.interval]]
    faults = {
        "eval is not the evaluation in the manifest": recorded.manifest.digest != manifest.inputs["eval"]["digest"],
        "eval is an evaluation of other weights": not made.measured_by(recorded),
        f"eval/{DETAILS} and its manifest have different settings": decoding | options != options | decoding
        or data != metrics.data,
        "the evaluation is on puzzles that the weights were trained on": metrics.data.get("digest") in trained_on,
        f"the figures in {MANIFEST} are not those of the evaluation": figures
        != [facts.get(name) for name in ("accuracy", "n", "interval")],
        f"the metadata of {CARD} do not have the figures of the evaluation": card.eval_results
        != model_card.eval_results(recorded),
        f"{CARD}, {MANIFEST} and the weights name different bases": len(bases) > 1,
    }
    if fault := next((fault for fault, holds in faults.items() if holds), None):
        raise _RefutedError(fault)


def _puzzles(
    sha256: str, made: Weights, data: Sequence[Path], fresh: int, report: Verification
) -> tuple[list[Row], list[Row]]:
    """The recorded puzzles, in a file with *sha256*, and *fresh* new ones where the recorded ones were generated."""
    listed = [(link, name) for link in artifacts.chain(made.entry) if link.kind == "data" for name in link.files]
    source, name = next(((link, name) for link, name in listed if link.files[name]["sha256"] == sha256), (None, ""))
    options = None
    if source and not {"from", "test"} & source.inputs.keys():
        options = _options(DataOptions, source.options, f"the manifest of {source.name}")
    with TemporaryDirectory() as scratch:
        file = next((path for path in map(jsonl.test_file, data) if artifacts.file_sha256(path) == sha256), None)
        if file is None:
            split = name.removesuffix(".jsonl")
            if not source or not options or source.inputs or build.split_sizes(options).get(split, 0) > MAX_ROWS:
                raise ArtifactError(
                    f"the puzzles with sha256 {short(sha256)} cannot be made again: the manifests do not say how, or "
                    f"they are more than {MAX_ROWS:,}; give --data."
                )
            file = Path(scratch, name)
            jsonl.write_rows(file, build.generate(options, split))
            if artifacts.file_sha256(file) != sha256:
                raise _RefutedError("the recorded options do not make the recorded puzzles")
        rows = jsonl.read_rows(file)
    if options is None:
        report.not_checked.append("new puzzles of the same distribution, as the recorded ones were not generated")
        return rows, []
    new = replace(options, n=max(3, fresh + 1), valid=0, test=fresh, seed=report.seed)
    return rows, list(map(parse_row, build.generate(new, "test")))


def _options(kind: type[AnyOptions], values: Mapping[str, Any], source: str) -> AnyOptions:
    """The options *values* that *source* records, which may have been written by hand."""
    known = field_hints(kind).keys() - {*build.UNRECORDED}  # those would read files, or start processes
    if unknown := sorted(values.keys() - known):
        raise ArtifactError(f"{source} has the option {unknown[0]}, which no manifest of this version has.")
    options: AnyOptions = typed_json.build(dict(values), kind, source)
    return options


def _check_figures(recorded: Result, rows: Sequence[Row], options: EvalOptions) -> None:
    """Grade the samples of *recorded* again, completions of *rows*, and compare every figure with theirs."""
    per_row = options.samples
    if len(rows) * per_row != len(recorded.samples) or len(rows) != recorded.metrics.n:
        raise _RefutedError("eval has another number of samples than its decoding and its puzzles")
    samples = []
    for index, sample in enumerate(recorded.samples):
        row, turn = rows[index // per_row], index % per_row if per_row > 1 else None
        samples.append(replace(sample, row=row, grade=row.grade(sample.completion), turn=turn))
        if not sample.to_json().items() >= samples[-1].to_json().items():
            raise _RefutedError("the samples in eval do not have the grades of their texts, or are of other puzzles")
    figures = measure(samples, rows, pass_at=options.pass_at_values)
    details = replace(recorded.metrics, **vars(figures)).to_json()
    for file, counted in ((DETAILS, details), (METRICS, results.flat(figures, options.pass_at_values))):
        written = typed_json.read(recorded.path / file)
        if different := sorted(name for name in written if written[name] != counted.get(name)):
            raise _RefutedError(f"eval/{file} has other figures than its samples ({', '.join(different)})")


def _check_loading(made: Weights, rows: Sequence[Row]) -> None:
    """Compare what the card's instructions load with what an evaluation loads."""
    tokenizer = load.load_tokenizer(reference.find_model(str(made.loadable)))
    settings = model_files.generation_config(made.path)
    if ends.change_decoding(settings):
        raise _RefutedError(f"{GENERATION} sets more than the tokens that end a completion, as no evaluation does")
    named = settings.get("eos_token_id")
    if settings and tokenizer.eos_token_id not in (named if isinstance(named, list) else [named]):
        raise _RefutedError(
            f"{GENERATION} does not end a completion at {tokenizer.eos_token}, where the evaluation did"
        )
    if made.format is GGUF:
        _check_gguf(made.loadable, tokenizer)
    completes = chat_template.MARK in (tokenizer.chat_template or "")
    for row in rows:
        turns = [turn for turn in row.messages() if turn["role"] == "user" or not completes]
        shown = chat_template.render(tokenizer, turns, chat_template.CHAT_ARGUMENTS)
        if shown != chat_template.render(tokenizer, row.messages()):
            raise _RefutedError(f"the chat template makes another prompt by the instructions of {CARD} than evaluated")


def _check_gguf(file: Path, tokenizer: Any) -> None:
    """Compare the tokenizer in a GGUF *file*, which llama.cpp uses, with the one beside it, which evaluations use."""
    from gguf import GGUFReader

    fields = {name: part.contents() for name, part in GGUFReader(file).fields.items() if name.startswith("tokenizer.")}
    beside = dict(enumerate(tokenizer.convert_ids_to_tokens(range(len(tokenizer)))))
    written = dict(enumerate(fields.get("tokenizer.ggml.tokens", ())))
    other = [token for index, token in beside.items() if token is not None and written.get(index) != token]
    same = fields.get("tokenizer.chat_template") == tokenizer.chat_template
    if other or not same or fields.get("tokenizer.ggml.eos_token_id") != tokenizer.eos_token_id:
        raise _RefutedError(
            f"the tokenizer in {file.name} is not the one beside it ({[*other, tokenizer.eos_token][0]})"
        )


def _measure(
    made: Weights,
    recorded: Result,
    rows: Sequence[Row],
    new: Sequence[Row],
    options: EvalOptions,
    on_batch: OnBatch | None,
    report: Verification,
) -> None:
    """Complete the recorded *rows* and the *new* ones, and test the claim about them."""
    from scipy.stats import fisher_exact

    metrics, border = recorded.metrics, len(rows) * options.samples
    with TemporaryDirectory() as scratch:
        file, out = Path(scratch, "puzzles.jsonl"), Path(scratch, "eval")
        jsonl.write_rows(file, map(dict, [*rows, *new]))
        nf4 = made.format is ADAPTER and metrics.precision == "nf4"
        options = replace(options, precision="nf4" if nf4 else "auto")
        result = evaluate.evaluate(options, model=str(made.loadable), data=file, out=out, on_batch=on_batch)
    pairs = list(zip(recorded.samples, result.samples[:border], strict=False))
    changes = [(before.grade.correct, after.grade.correct) for before, after in pairs]
    p = statistics.mcnemar(changes.count((True, False)), changes.count((False, True)))
    repeated = None if options.temperature else sum(_text(before) == _text(after) for before, after in pairs)
    measured = [Measurement(RECORDED, *_accuracy(result.samples[:border], rows), p, repeated)]
    if new:
        n, accuracy, interval = _accuracy(result.samples[border:], new)
        counts = [(round(share * total), total) for share, total in ((metrics.accuracy, metrics.n), (accuracy, n))]
        p = float(fisher_exact([[right, total - right] for right, total in counts]).pvalue)
        measured.append(Measurement(NEW, n, accuracy, interval, p))
    report.claims.append(Claim(".", metrics.accuracy, metrics.n, result.metrics.engine or "", measured))
    for part in measured:
        if part.p < LEVEL:
            report.reasons.append(
                f"the weights solve {percent(part.accuracy)} of {part.n:,} {part.puzzles} puzzles, and "
                f"{percent(metrics.accuracy)} of {metrics.n:,} is claimed (p {part.p:.1g})"
            )
    if repeated is None:
        report.not_checked.append("the words of the sampled completions in eval")
    elif repeated < (REPEATED * border if metrics.precision == result.metrics.precision == "fp32" else 1):
        report.reasons.append(f"the weights write {repeated:,} of {border:,} completions of eval again")


def _accuracy(samples: Sequence[Sample], rows: Sequence[Row]) -> tuple[int, float, tuple[float, float]]:
    """Count of *rows*, accuracy of their *samples*, and its 95% interval."""
    figures = measure(samples, rows)
    low, high = figures.interval
    return figures.n, figures.accuracy, (low, high)


def _text(sample: Sample) -> tuple[str, int | None, bool | None]:
    """What greedy decoding repeats of *sample*."""
    return sample.completion, sample.tokens, sample.truncated
