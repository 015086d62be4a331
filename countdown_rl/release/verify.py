"""Verification of a release: its files are those of its chain, its figures those of its samples, and its weights,
evaluated again by :mod:`countdown_rl.evaluation`, solve as many puzzles as it claims.

They complete the recorded test puzzles, made again from the recorded options, and new ones of the same distribution,
from a seed that the publisher cannot have known. The claim has to fit both, by a two-sided exact test at 1%: McNemar's
between the recorded and the new verdicts, Fisher's between the claimed and the measured counts of new puzzles.
:class:`Verification` lists what was compared, and what was only read.
"""

import hashlib
import io
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from countdown_rl.core import artifacts, typed_json
from countdown_rl.core.artifacts import MANIFEST, Manifest
from countdown_rl.core.errors import ArtifactError, UsageError, first_line
from countdown_rl.core.formatting import percent, short
from countdown_rl.core.options import Options, field_hints
from countdown_rl.data import build
from countdown_rl.data.config import DataOptions
from countdown_rl.evaluation import evaluate, results, statistics
from countdown_rl.evaluation.config import EvalOptions
from countdown_rl.evaluation.evaluate import OnBatch
from countdown_rl.evaluation.metrics import measure
from countdown_rl.evaluation.results import DETAILS, METRICS, SAMPLES, Result
from countdown_rl.evaluation.sample import Sample
from countdown_rl.inference.generate import Completion
from countdown_rl.models import chat_template, load, model_files, reference
from countdown_rl.models.model_files import GENERATION
from countdown_rl.models.reference import ModelRef
from countdown_rl.release.demo import INDEX
from countdown_rl.release.formats import ADAPTER, FORMATS, GGUF, evaluation_key, measures
from countdown_rl.release.model_card import CARD, CURVES, LICENSE, eval_results
from countdown_rl.tasks import jsonl
from countdown_rl.tasks.registry import parse_row
from countdown_rl.tasks.task import Row

AnyOptions = TypeVar("AnyOptions", bound=Options)

CONFIRMED, REFUTED, TOO_FEW = "confirmed", "refuted", "too few to tell"
RECORDED, NEW = "recorded", "new"
#: Level of each test; puzzles of the claim, and of each measurement, without which nothing is confirmed; recorded
#: puzzles that are made again, more have to be given; share of greedy fp32 completions that other processors repeat.
LEVEL, MIN_PUZZLES, MAX_ROWS, REPEATED = 0.01, 100, 1_000_000, 0.9

_HUB_FIGURES = r"\.eval_results/\w+\.yaml"
#: Files of a release that are only read; those at the end are of version 0.1, and the Hub shows the figures in them.
_PAGES = rf"{CURVES}|{INDEX}|{LICENSE}|NOTICE|{_HUB_FIGURES}"

#: Fields of a sample that greedy decoding repeats.
_TEXT = ("completion", "tokens", "truncated")
#: Entries of ``details.json`` beside the figures, and figures of version 0.1, which nothing computes any more.
_DESCRIPTION = {"data", "decoding", "draws", "endpoint", "engine", "model", "path", "precision"}
_OLDER = {
    *("by_needs", "by_size", "by_solutions", "impossible", "wrong_refusals", "acc_3", "acc_4"),
    "add_sub",
    "mul_div",
}
#: Settings of ``generation_config.json``, with their values, that change no greedy completion.
_HARMLESS = re.compile(
    r"((bos|eos|pad)_token_id|do_sample|temperature|(top|min|typical)_[pk]|max_(new_tokens|length)|use_cache|output_\w+"
    r"|transformers_version|_.*)=.*|\w+=(None|False|\[\])?|(num_\w+|\w*repetition_penalty|length_penalty)=1(\.0)?"
    r"|\w+_(size|cutoff|length|tokens)=0(\.0)?|diversity_penalty=0(\.0)?",
    re.DOTALL,
)


@dataclass(frozen=True)
class Measurement:
    """Accuracy on the recorded or the new puzzles, the p-value of the claim, and the recorded texts repeated."""

    puzzles: str
    n: int
    accuracy: float
    interval: tuple[float, float]
    p: float
    repeated: int | None = None


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
    """Claims with their measurements, ``reasons`` against the release, what was ``checked`` beside, and what was read
    alone (``not_checked``); ``seed`` is that of the new puzzles."""

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
    keys = {location: evaluation_key(location) for location in manifest.facts["formats"]}
    report.reasons += _file_faults(folder, manifest)
    try:
        artifacts.read(folder, "release")
        evaluations = {
            location: results.read(folder / key)
            for location, key in keys.items()
            if f"{key}/{DETAILS}" in manifest.files
        }
    except ArtifactError as error:
        _check_line_ends(folder, manifest)
        report.reasons.insert(0, str(error).replace(f"{folder}/", "").partition(";")[0])
    if report.reasons:
        return report
    if "." not in evaluations:
        raise ArtifactError(f"{source} holds no evaluation of its weights; evaluate them, then build it again.")
    report.checked += ["the sha256 of each file, those of the weights also in their chain of manifests"]
    report.checked += [f"the figures in {', '.join(key for key in keys.values())}, from their samples, graded again"]
    report.reasons += _contradictions(folder, manifest, evaluations)
    sets: dict[str, dict[str, list[Row]]] = {}
    for location, recorded in evaluations.items():
        sha256 = str(recorded.metrics.data.get("digest"))
        if not report.reasons and sha256 not in sets:
            sets[sha256] = _puzzles(sha256, manifest, data, fresh, report)
        if not report.reasons:
            _measure(folder, location, manifest, recorded, sets[sha256], limit, on_batch, report)
    unmeasured = [f"the weights in {location}" for location in sorted(keys.keys() - evaluations.keys())]
    pages = [name for name in manifest.files if re.fullmatch(_PAGES + "|(.*/)?Modelfile", name)]
    training = "that training with the recorded options and data gives these weights"
    report.not_checked += [f"all words of {CARD}, and its other figures", *pages, *unmeasured, training]
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


def _weights(manifest: Manifest, location: str) -> dict[str, Any]:
    """The input of the release *manifest* for the weights in *location*."""
    entry = manifest.inputs.get(location[2:] or "model")
    return entry if isinstance(entry, dict) else {}


def _file_faults(folder: Path, manifest: Manifest) -> Iterator[str]:
    """Compare the listed files with those that a release has: the weights of its chain, evaluations and pages."""
    made: dict[str, Any] = {}
    for location, name in manifest.facts["formats"].items():
        if name not in FORMATS or not re.fullmatch(r"\.(/\w[\w.-]*)?", location, re.ASCII):
            yield f"{MANIFEST} has weights in {location} of the format {name}, which no release has"
            return
        files = _weights(manifest, location).get("manifest", {}).get("files", {})
        files = {file: entry for file, entry in files.items() if FORMATS[name].files.fullmatch(file)}
        if not files or sum(file.endswith(".gguf") for file in files) != (name == GGUF.name):
            yield f"the weights in {location} have no manifest, or not one GGUF file in it, and their format is {name}"
        made |= {f"{location}/{file}"[2:]: entry for file, entry in files.items()}
    evaluations = "|".join(map(evaluation_key, manifest.facts["formats"]))
    own = f"({evaluations})/({DETAILS}|{METRICS}|{SAMPLES}|{MANIFEST})|{CARD}|{_PAGES}"
    for name, entry in manifest.files.items():
        if name not in made and not re.fullmatch(own, name):
            yield f"{name} is no file of such a release"
        elif entry != made.get(name, entry) and Path(name).name not in (GENERATION, "adapter_config.json"):
            yield f"{name} is not the file that the manifest of its weights lists"
    yield from (f"{name} of the chain of manifests is missing" for name in sorted(made.keys() - manifest.files.keys()))
    if len({name.casefold() for name in manifest.files}) < len(manifest.files):
        yield "the names of two files differ in case alone"
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink() and path.is_dir():
            yield f"{name} is a link to a directory"
        if name.startswith(".eval_results/") and name not in manifest.files:  # hidden, and the Hub shows it
            yield f"{name} is not in the manifest"


def _check_line_ends(folder: Path, manifest: Manifest) -> None:
    for name, entry in manifest.files.items():
        path = folder / name
        if path.is_file() and path.suffix in (".json", ".jsonl", ".md", ".jinja"):
            unix = path.read_bytes().replace(b"\r\n", b"\n")
            if len(unix) < path.stat().st_size and hashlib.sha256(unix).hexdigest() == entry["sha256"]:
                raise ArtifactError(
                    f"{path} has Windows line ends, as Git may write them; download with `hf download`."
                )


def _contradictions(folder: Path, manifest: Manifest, evaluations: Mapping[str, Result]) -> Iterator[str]:
    """Compare card, manifests and evaluations with each other."""
    from huggingface_hub import ModelCard

    for location, recorded in evaluations.items():
        key, options = recorded.path.name, recorded.manifest.options
        if recorded.manifest.digest != manifest.inputs.get(key, {}).get("digest"):
            yield f"{key} is not the evaluation in the manifest"
        if not measures(recorded, Manifest(**_weights(manifest, location)["manifest"])):
            yield f"{key} is an evaluation of other weights"
        decoding = typed_json.dump(recorded.metrics.decoding)
        different = [name for name, value in decoding.items() if options.get(name, value) != value]
        different += ["data"] if recorded.metrics.data != recorded.manifest.inputs.get("data") else []
        if different:
            yield f"{key}/{DETAILS} and its manifest have different settings ({', '.join(sorted(different))})"
    main = evaluations["."]
    metrics = main.metrics.to_json()
    facts = {name: metrics[name] for name in ("accuracy", "n", "interval")}
    if facts != facts | {name: manifest.facts[name] for name in facts.keys() & manifest.facts.keys()}:
        yield f"the figures in {MANIFEST} are not those of the evaluation"
    compared = manifest.inputs.get("comparison", {}).get("manifest", {}).get("inputs", {})
    digests = [entry.get("digest") for entry in compared.values()]
    if "comparison" in manifest.inputs and main.manifest.digest not in digests:
        yield f"{CARD} has a comparison without the evaluation of these weights"
    try:
        card: Any = ModelCard((folder / CARD).read_text("utf-8"))
        entries = [*map(_entry, card.data.eval_results or [])]
    except Exception as error:  # of YAML, and of the Hub's own checks
        raise ArtifactError(f"the metadata of {CARD} cannot be read: {first_line(error)}") from error
    expected = [*map(_entry, eval_results(main))]
    subjects, overall = [subject for subject, _ in entries], expected[0][0]
    if subjects.count(overall) != 1:
        yield f"the metadata of {CARD} have {subjects.count(overall)} accuracies on all puzzles, not one"
    for subject, claimed in entries:
        figures = dict(expected).get(subject)
        if figures is None and not main.metrics.groups and subject[:2] == overall[:2]:  # version 0.1 had others
            continue
        if figures is None or subjects.count(subject) > 1:
            metric, data, config = subject
            yield f"the metadata of {CARD} have an {metric} on {config or data}, which the evaluation has not"
        elif different := sorted(name for name, value in figures.items() if claimed.get(name) != value):
            yield f"the metadata of {CARD} do not have what the evaluation has ({', '.join(different)})"
    if card.data.base_model != manifest.facts.get("base_model"):
        yield f"{CARD} names the base {card.data.base_model}, and {MANIFEST} {manifest.facts.get('base_model')}"
    for location in (where for where, name in manifest.facts["formats"].items() if name == ADAPTER.name):
        base = model_files.adapter_config(folder / location).get("base_model_name_or_path")
        if base != card.data.base_model:
            yield f"the adapter in {location} loads {base}, and {CARD} names {card.data.base_model}"


def _entry(entry: Any) -> tuple[tuple[str, str, str | None], dict[str, Any]]:
    """The subject of an entry in the metadata of a card, and its figures."""
    subject = (entry.metric_type, entry.dataset_name.partition(",")[0], entry.dataset_config)
    return subject, {**(entry.metric_args or {}), "accuracy": entry.metric_value}


def _puzzles(
    sha256: str, manifest: Manifest, given: Sequence[Path], fresh: int, report: Verification
) -> dict[str, list[Row]]:
    """The recorded puzzles, in a file with *sha256*, and *fresh* new ones where the recorded ones were generated."""
    links = artifacts.chain(*(_weights(manifest, location) for location in manifest.facts["formats"]))
    if sha256 in results.training_data(links):
        report.reasons.append("the evaluation is on puzzles that the weights were trained on")
        return {}
    recorded = [jsonl.read_rows(path) for path in map(jsonl.test_file, given) if artifacts.file_sha256(path) == sha256]
    sources = {
        file["sha256"]: (link, name) for link in links if link.kind == "data" for name, file in link.files.items()
    }
    source, name = sources.get(sha256, (None, ""))
    options, split = None, name.removesuffix(".jsonl")
    if source and not {"from", "test"} & source.inputs.keys():
        options = _recorded(DataOptions, source.options, f"the manifest of {source.name}")
    if not recorded:
        if not (source and options) or source.inputs or build.split_sizes(options).get(split, 0) > MAX_ROWS:
            raise ArtifactError(
                f"the puzzles with sha256 {short(sha256)} cannot be made again: the manifests do not say how, or they "
                f"are more than {MAX_ROWS:,}; give --data."
            )
        rows, text = list(build.generate(options, split)), io.StringIO()
        jsonl.writer(text).write_all(rows)
        if hashlib.sha256(text.getvalue().encode()).hexdigest() != sha256:
            report.reasons.append("the recorded options do not make the recorded puzzles")
            return {}
        recorded = [list(map(parse_row, rows))]
    if options is None:
        report.not_checked.append("new puzzles of the same distribution, as the recorded ones were not generated")
        return {RECORDED: recorded[0], NEW: []}
    new = replace(options, n=max(3, fresh + 1), valid=0, test=fresh, seed=report.seed)
    return {RECORDED: recorded[0], NEW: list(map(parse_row, build.generate(new, "test")))}


def _recorded(kind: type[AnyOptions], values: Mapping[str, Any], source: str) -> AnyOptions:
    """The options *values* that *source* records, which may have been written by hand."""
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    if local := sorted(values.keys() & {*build.UNRECORDED}):  # it would read files, or start processes
        raise ArtifactError(f"{source} has the option {local[0]}, which no manifest has.")
    hints = field_hints(kind)
    for key in sorted(values.keys() & hints.keys()):
        typed_json.check_type(values[key], hints[key], f"the option {key} in {source}")
    try:
        return kind(**values)
    except (TypeError, UsageError) as error:
        raise ArtifactError(f"{source} has options that this version does not have: {error}") from None


def _figure_faults(recorded: Result, rows: Sequence[Row], options: EvalOptions) -> Iterator[str]:
    """Grade the samples of *recorded* again, completions of *rows*, and compare every figure with theirs."""
    key, per_row = recorded.path.name, options.samples
    if len(rows) * per_row != len(recorded.samples) or len(rows) != recorded.metrics.n:
        yield f"{key} has another number of samples than its decoding and its puzzles"
        return
    samples = []
    for index, sample in enumerate(recorded.samples):
        completion = Completion(sample.completion, sample.tokens, not sample.truncated)
        samples.append(Sample.of(rows[index // per_row], completion, index % per_row if per_row > 1 else None))
        written = sample.to_json()
        if any(written.get(name, value) != value for name, value in samples[-1].to_json().items()):
            yield f"the samples in {key} do not have the grades of their texts, or are of other puzzles"
            return
    figures = measure(samples, rows, pass_at=options.pass_at_values)
    for file, counted in ((DETAILS, figures.to_json()), (METRICS, results.flat(figures, options.pass_at_values))):
        written = typed_json.read(recorded.path / file)
        if different := sorted(name for name in written.keys() & counted.keys() if written[name] != counted[name]):
            yield f"{key}/{file} has other figures than its samples ({', '.join(different)})"
        if extra := sorted(written.keys() - counted.keys() - _DESCRIPTION - _OLDER):
            yield f"{key}/{file} has figures that no evaluation has ({', '.join(extra)})"


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
    metrics, format = recorded.metrics, manifest.facts["formats"][location]
    decoding = {key: value for key, value in typed_json.dump(metrics.decoding).items() if key != "greedy"}
    decoding["pass_at"] = recorded.manifest.options.get("pass_at")
    options = _recorded(EvalOptions, decoding, recorded.path.name)
    rows = sets[RECORDED][: metrics.n]
    path = next((folder / location).glob("*.gguf")) if format == GGUF.name else folder / location
    ref = reference.resolve(str(path))
    report.reasons += _figure_faults(recorded, rows, options)
    report.reasons += _loading_faults(ref, folder / location, _weights(manifest, location), rows, report)
    if report.reasons:
        return
    again = rows[:limit]
    nf4 = format == ADAPTER.name and metrics.precision == "nf4"
    with TemporaryDirectory() as scratch:
        file, out = Path(scratch, "puzzles.jsonl"), Path(scratch, "eval")
        jsonl.write_rows(file, map(dict, [*again, *sets[NEW]]))
        options = replace(options, precision="nf4" if nf4 else "auto")
        result = evaluate.evaluate(options, model=str(path), data=file, out=out, on_batch=on_batch)
    claim = Claim(location, metrics.accuracy, metrics.n, result.metrics.engine or "")
    report.claims.append(claim)
    border = len(again) * options.samples
    before, greedy = recorded.samples[:border], not options.temperature
    claim.measured.append(_test(RECORDED, claim, result.samples[:border], options.samples, before, greedy))
    if sets[NEW]:
        claim.measured.append(_test(NEW, claim, result.samples[border:], options.samples))
    for part in claim.measured:
        if part.p < LEVEL:
            report.reasons.append(
                f"the weights in {location} solve {percent(part.accuracy)} of {part.n:,} {part.puzzles} puzzles, and "
                f"{percent(claim.accuracy)} of {claim.n:,} is claimed (p {part.p:.1g})"
            )
    if (repeated := claim.measured[0].repeated) is None:
        report.not_checked.append(f"the words of the sampled completions in {recorded.path.name}")
    elif repeated < (REPEATED * border if metrics.precision == result.metrics.precision == "fp32" else 1):
        report.reasons.append(
            f"the weights in {location} write {repeated:,} of {border:,} completions of {recorded.path.name} again"
        )


def _loading_faults(
    ref: ModelRef, folder: Path, entry: Mapping[str, Any], rows: Sequence[Row], report: Verification
) -> Iterator[str]:
    """Compare what the card's instructions load from *folder* with what an evaluation loads."""
    from transformers import GenerationConfig

    tokenizer = load.load_tokenizer(ref)
    if ref.base is not None:
        yield from _base_faults(ref.base, folder, entry, report)
    settings, place = model_files.generation_config(folder), GENERATION
    if not settings and (folder / "config.json").is_file():  # transformers generates as it says then
        known = vars(GenerationConfig()).keys()
        settings = {name: value for name, value in model_files.config(folder).items() if name in known}
        place = "config.json"
    applied = [name for name, value in settings.items() if not _HARMLESS.fullmatch(f"{name}={value}")]
    if applied:
        yield f"{place} sets {applied[0]}, which {CARD} would apply and the evaluation did not"
    ends, completes = settings.get("eos_token_id"), chat_template.MARK in (tokenizer.chat_template or "")
    if settings and tokenizer.eos_token_id not in (ends if isinstance(ends, list) else [ends]):
        yield f"{place} does not end a completion at {tokenizer.eos_token}, where the evaluation did"
    if ref.kind == "gguf":
        yield from _gguf_faults(reference.local_path(ref), tokenizer)
    for row in rows:
        turns = [turn for turn in row.messages() if turn["role"] == "user" or not completes]
        if chat_template.render(tokenizer, turns, chat_template.CHAT_ARGUMENTS) != chat_template.render(
            tokenizer, row.messages()
        ):
            yield f"the chat template makes another prompt by the instructions of {CARD} than in an evaluation"
            return


def _gguf_faults(file: Path, tokenizer: Any) -> Iterator[str]:
    """Compare the tokenizer in a GGUF *file*, which llama.cpp uses, with the one beside it, which evaluations use."""
    from gguf import GGUFReader

    fields = {
        name: field.contents() for name, field in GGUFReader(file).fields.items() if name.startswith("tokenizer.")
    }
    if fields.get("tokenizer.chat_template") != tokenizer.chat_template:
        yield f"the chat template in {file.name} is not the one beside it"
    tokens = enumerate(tokenizer.convert_ids_to_tokens(range(len(tokenizer))))
    written = dict(enumerate(fields.get("tokenizer.ggml.tokens", ())))
    other = [token for index, token in tokens if token is not None and written.get(index) != token]
    if other or fields.get("tokenizer.ggml.eos_token_id") != tokenizer.eos_token_id:
        yield f"the tokenizer in {file.name} is not the one beside it ({other[0] if other else tokenizer.eos_token})"


def _base_faults(base: ModelRef, folder: Path, entry: Mapping[str, Any], report: Verification) -> Iterator[str]:
    """Compare the adapter's settings, and the *base* that it loads, with those in its chain of manifests."""
    recorded = entry["manifest"].get("inputs", {}).get("model", {})
    while recorded.get("kind") == "adapter":  # which was trained further
        recorded = recorded.get("base") or recorded["manifest"]["inputs"].get("model", {})
    settings = (folder / "adapter_config.json").read_bytes()
    digests = [hashlib.sha256(text).hexdigest() for text in (settings, settings.rstrip(b"\n"))]
    if recorded.get("kind") != "hub":  # publish wrote the name of one on the Hub
        report.not_checked.append(f"that {base.source} is the base of training, and the settings of the adapter")
    elif entry["manifest"]["files"]["adapter_config.json"]["sha256"] not in digests:
        yield "adapter_config.json has other settings than the one in its chain of manifests"
    elif base.revision != recorded.get("revision"):
        yield f"the base that the adapter loads, {base.source}, is not the recorded one"


def _test(
    puzzles: str,
    claim: Claim,
    samples: Sequence[Sample],
    per_row: int,
    recorded: Sequence[Sample] = (),
    greedy: bool = False,
) -> Measurement:
    """Test *claim* on *samples*, *per_row* for each puzzle; *recorded* are those of the release on the same puzzles."""
    from scipy.stats import fisher_exact

    verdicts, pairs = [sample.grade.correct for sample in samples], [*zip(recorded, samples, strict=False)]
    shares = [sum(verdicts[start : start + per_row]) / per_row for start in range(0, len(verdicts), per_row)]
    n, accuracy, repeated = len(shares), sum(shares) / len(shares), None
    if recorded:
        changes = [(before.grade.correct, after.grade.correct) for before, after in pairs]
        p = statistics.mcnemar(changes.count((True, False)), changes.count((False, True)))
        repeated = (
            sum(all(getattr(a, name) == getattr(b, name) for name in _TEXT) for a, b in pairs) if greedy else None
        )
    else:
        counts = [(round(share * total), total) for share, total in ((claim.accuracy, claim.n), (accuracy, n))]
        p = float(fisher_exact([[right, total - right] for right, total in counts]).pvalue)
    return Measurement(puzzles, n, accuracy, statistics.mean_interval(shares, per_row), p, repeated)
