"""Verification of a release: its files, manifests, card, samples and data, and its evaluation a second time.

A release refutes itself where two of its parts disagree, and is refuted where its weights do not write the recorded
texts. Nothing here trains, so :attr:`Verification.not_checked` says what the conclusion leaves open.
"""

import hashlib
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from countdown_rl import __version__, artifacts
from countdown_rl.artifacts import MANIFEST, Manifest
from countdown_rl.data import jsonl, provenance
from countdown_rl.errors import ArtifactError, first_line
from countdown_rl.evaluation import reproduce
from countdown_rl.evaluation.evaluate import OnBatch
from countdown_rl.evaluation.reproduce import Reproduction
from countdown_rl.evaluation.results import SAMPLES, Result, read
from countdown_rl.formatting import interval, percent, short
from countdown_rl.hub import demo, formats, model_card, results
from countdown_rl.hub.formats import Weights
from countdown_rl.hub.licenses import LICENSE, NOTICE, License
from countdown_rl.hub.model_card import CARD, CURVES, Release
from countdown_rl.hub.release import evaluation_key
from countdown_rl.models import reference

CONFIRMED, REFUTED = "confirmed", "refuted"
_REST = "anything else, as these reasons suffice"
#: Names of files that programs read with the weights, so that none may be there without being in the manifest.
_LOADED = (".bin", ".gguf", ".jinja", ".json", ".model", ".pkl", ".pt", ".pth", ".py", ".safetensors")
_FIGURE = re.compile(r"[+-]?\d[\d,]*(?:\.\d+)?%?")


@dataclass
class Verification:
    """Findings: ``checked`` by its subject, ``reasons`` against the release, and the repeated evaluations by the
    location of their weights."""

    source: str
    revision: str | None
    digest: str
    checked: dict[str, str] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)
    evaluations: dict[str, Reproduction] = field(default_factory=dict)

    def record(self, subject: str, text: str, reasons: Iterable[str]) -> None:
        """Add the *reasons* against *subject*, or where there are none *text* as what was checked."""
        before = len(self.reasons)
        self.reasons += reasons
        if len(self.reasons) == before:
            self.checked[subject] = text

    @property
    def conclusion(self) -> str:
        if self.reasons:
            return REFUTED
        differing = sum(len(evaluation.differing) for evaluation in self.evaluations.values())
        total = sum(evaluation.completions for evaluation in self.evaluations.values())
        if not differing:
            return CONFIRMED
        texts = f"{differing:,} of {total:,} texts differ"
        return f"within the arithmetic of another machine ({texts}, accuracy within its interval)"


def verify(
    source: str, *, data: Sequence[Path] = (), limit: int | None = None, on_batch: OnBatch | None = None
) -> Verification:
    """Verify the release at *source*, a folder or ``NAME/MODEL@REVISION`` on the Hub.

    Args:
        data: data directories and files of the release, where its manifests do not say how to make them.
        limit: the number of puzzles to evaluate again; None is all.

    Raises:
        ArtifactError: *source* is no release with an evaluation, or its puzzles are not there.
        CountdownError: the Hub cannot be reached, or the weights cannot be loaded here.
    """
    folder, revision = _fetch(source)
    if artifacts.peek(folder) != "release":
        raise ArtifactError(f"{source} is no release of countdown-rl; give a directory that publish made, or its copy.")
    manifest = Manifest.parse((folder / MANIFEST).read_bytes(), folder / MANIFEST)
    report = Verification(source, revision, manifest.digest)
    same = f"{len(manifest.files)} with the size and sha256 of the manifest"
    report.record("files", same, _files(folder, manifest, report))
    if report.reasons:
        report.not_checked.append(_REST)
        return report
    try:
        release = _release(folder, manifest)
        if release.evaluation:
            chain = f"{len(release.chain)} in the chain, each with its recorded digest"
            report.record("manifests", chain, _manifests(release, manifest))
            card = "metadata and all figures as the manifests and the evaluation give them"
            report.record("card", card, _card(folder, release, manifest, report))
            report.reasons += _comparison(release, release.evaluation, report)
            report.reasons += _demo(folder, release, manifest, report)
    except Exception as error:  # what a doctored manifest, card or evaluation lacks can fail anywhere
        report.reasons.append(f"the manifest does not describe the release ({first_line(error)})")
    if report.reasons:
        report.not_checked.append(_REST)
        return report
    if release.evaluation is None:
        raise ArtifactError(f"{source} holds no evaluation of its weights; evaluate them, then build it again.")
    with tempfile.TemporaryDirectory() as work:
        puzzles = _data(release, data, Path(work), report)
        for weights in release.weights:
            if not report.reasons:
                _evaluation(weights, puzzles, Path(work), limit, on_batch, report)
    report.not_checked.append("that training with the recorded options and data gives these weights")
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


def _files(folder: Path, manifest: Manifest, report: Verification) -> Iterator[str]:
    """Compare the files with the manifest's list."""
    for name, entry in manifest.files.items():
        if not (folder / name).is_file():
            yield f"{name} is missing"
        elif artifacts.entry(folder / name) != entry:
            yield f"{name} is not the file that the manifest lists"
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    added = sorted(name for name in names - manifest.files.keys() - {MANIFEST} if not name.startswith("."))
    yield from (f"{name} is not in the manifest" for name in added if name.endswith(_LOADED))
    if others := [name for name in added if not name.endswith(_LOADED)]:
        report.not_checked.append(f"files that are not in the manifest ({', '.join(others)})")


def _release(folder: Path, manifest: Manifest) -> Release:
    """The release as it was built, from what is in *folder*.

    Raises:
        ArtifactError: an evaluation is damaged.
    """
    facts, weights = manifest.facts, []
    for location, format in facts["formats"].items():
        name = location.removeprefix(".").removeprefix("/")
        entry, key = manifest.inputs[name or "model"], evaluation_key(name)
        evaluation = read(folder / key) if f"{key}/{SAMPLES}" in manifest.files else None
        made = Manifest(**entry["manifest"])
        weights.append(Weights(name, folder / name, made, entry, formats.FORMATS[format], evaluation))
    card = (folder / CARD).read_text("utf-8")
    table = card.partition("\n### Accuracy after each step\n")[2].partition("\n## ")[0].strip()
    return Release(
        name=facts["name"],
        weights=weights,
        chain=artifacts.chain(*(item.entry for item in weights)),
        inputs=manifest.inputs,
        comparison=table if "comparison" in manifest.inputs else None,
        log=folder / CURVES if CURVES in manifest.files else None,
        base_model=facts["base_model"],
        base_relation=facts["base_relation"],
        license=License(facts["license"], facts.get("license_link")),
        datasets=facts["datasets"],
        measured_on=facts["measured_on"],
    )


def _manifests(release: Release, manifest: Manifest) -> Iterator[str]:
    """Compare the manifests of the chain with their digests, the files and the evaluations."""
    for entry in release.inputs.values():
        if (name := artifacts.altered(entry)) is not None:
            yield f"the manifest of {name} does not have its recorded digest"
    known = {CARD, LICENSE, NOTICE, CURVES, demo.INDEX, *model_card.scores(release)}
    for weights in release.weights:
        prefix = f"{weights.folder}/" if weights.folder else ""
        files = {f"{prefix}{name}": entry for name, entry in weights.manifest.files.items() if Path(name).name != CARD}
        known |= files.keys()
        if release.base_model is not None:
            files.pop(f"{prefix}adapter_config.json", None)  # publish wrote the name of the base into it
        yield from (
            f"{name} is not the file of {weights.entry.get('source')}, from which the release was made"
            for name, entry in files.items()
            if manifest.files.get(name) != entry
        )
        if (evaluation := weights.evaluation) is None:
            continue
        key, inputs = evaluation_key(weights.folder), evaluation.manifest.inputs
        known |= {f"{key}/{name}" for name in (MANIFEST, *evaluation.manifest.files)}
        if evaluation.manifest.digest != manifest.inputs.get(key, {}).get("digest"):
            yield f"{key} is not the evaluation in the manifest"
        if not results.measures(evaluation, weights.manifest):
            yield f"{key} is an evaluation of other weights"
        recorded = evaluation.metrics["data"], evaluation.metrics["model"].get("digest")
        if recorded != (inputs.get("data"), inputs["model"]["digest"]):
            yield f"{key} has figures of other puzzles or weights than its manifest"
    yield from (f"{name} is no file of a release" for name in sorted(manifest.files.keys() - known))
    for key in ("accuracy", "n", "interval"):
        if release.evaluation and manifest.facts.get(key) != release.evaluation.metrics[key]:
            yield f"the manifest has another {key} than the evaluation"


def _card(folder: Path, release: Release, manifest: Manifest, report: Verification) -> Iterator[str]:
    """Compare the figures and the metadata of the card with those of a new one."""
    from huggingface_hub import ModelCard

    files = {name: entry for name, entry in manifest.files.items() if name != CARD}
    for name, page in ({CARD: model_card.render(release, files)} | model_card.scores(release)).items():
        text = (folder / name).read_text("utf-8") if name in manifest.files else ""
        pairs = zip_longest(_FIGURE.findall(text), _FIGURE.findall(page), fillvalue="nothing")
        if pair := next(((written, expected) for written, expected in pairs if written != expected), None):
            yield f"{name} has {pair[0]} where the manifests and results give {pair[1]}"
        elif name == CARD and ModelCard(text).data.to_dict() != ModelCard(page).data.to_dict():
            yield f"{name} has other metadata than the manifests give"
        elif text != page:
            report.not_checked.append(f"the words of {name}, which are not those that publish writes")
    if release.log:
        report.not_checked.append(f"{CURVES}, drawn from a training log that is not in the release")


def _comparison(release: Release, evaluation: Result, report: Verification) -> Iterator[str]:
    """Compare the table of compare in the card with its digest, and with the evaluation."""
    if release.comparison is None:
        return
    compared, metrics = release.inputs["comparison"]["manifest"], evaluation.metrics
    if hashlib.sha256(f"{release.comparison}\n".encode()).hexdigest() != compared["files"]["comparison.md"]["sha256"]:
        yield f"the comparison in {CARD} is not the one in the manifest"
    share = f"{percent(metrics['accuracy'])} | {interval(metrics['interval'])}"
    for name, entry in compared["inputs"].items():
        if entry["digest"] == evaluation.manifest.digest and f"| {name} | {share} |" not in release.comparison:
            yield f"the comparison in {CARD} has another accuracy of {name} than the evaluation"
    report.not_checked.append(f"the other evaluations in the comparison of {CARD}")


def _demo(folder: Path, release: Release, manifest: Manifest, report: Verification) -> Iterator[str]:
    """Compare the demo with the one that this version makes of the weights."""
    if demo.INDEX not in manifest.files:
        return
    if (folder / demo.INDEX).read_text("utf-8") == demo.of_release(release):
        report.checked["demo"] = f"{demo.INDEX} runs these weights"
    elif manifest.version == __version__:
        yield f"{demo.INDEX} is not the demo of these weights"
    else:
        report.not_checked.append(f"{demo.INDEX}, made by another version of countdown-rl")


def _data(release: Release, given: Sequence[Path], work: Path, report: Verification) -> dict[str, Path]:
    """Find or make the puzzles of the evaluations, by digest, and look for them in the training data.

    Raises:
        ArtifactError: the puzzles are not there, or one of *given* is not data of the release.
    """
    tested = {weights.evaluation.metrics["data"]["digest"] for weights in release.weights if weights.evaluation}
    trained = {entry["digest"]: entry for link in release.chain if (entry := link.inputs.get("data"))}
    files, unmade = provenance.files(trained.values(), tested, given, work)
    if unmade:
        report.reasons.append(f"the data {short(unmade)} are not what gen-data makes with their options")
        return files
    for sha256 in tested - files.keys():
        raise ArtifactError(f"the manifests do not make the puzzles with sha256 {short(sha256)}; give --data.")
    puzzles = {key for sha256 in tested for key in provenance.puzzles(files[sha256])}
    checked = []
    for digest, entry in trained.items():
        if (file := files.get(provenance.train_sha256(entry))) is None:
            report.not_checked.append(f"the training data {short(digest)}, which their manifest does not make (--data)")
            continue
        training = provenance.puzzles(file)
        checked.append(f"no test puzzle among the {len(training):,} training rows of {short(digest)}")
        if count := len(puzzles.intersection(training)):
            report.reasons.append(f"{count} of {len(puzzles)} test puzzles are in the training data {short(digest)}")
    if (origin := artifacts.origin(release.chain)).kind not in ("model", "shipped"):
        report.not_checked.append(f"the data that {origin.name} was trained on before")
    if checked and not report.reasons:
        report.checked["data"] = "\n".join(checked)
    return files


def _evaluation(
    weights: Weights,
    puzzles: Mapping[str, Path],
    work: Path,
    limit: int | None,
    on_batch: OnBatch | None,
    report: Verification,
) -> None:
    """Check the recorded samples of *weights*, then evaluate them again."""
    if (recorded := weights.evaluation) is None:
        report.not_checked.append(f"the weights in {weights.location}, which were not evaluated")
        return
    key, file = evaluation_key(weights.folder), puzzles[recorded.metrics["data"]["digest"]]
    report.reasons += [f"{key}: {fault}" for fault in reproduce.faults(recorded, jsonl.read_rows(file))]
    if report.reasons:
        return
    report.checked[key] = f"{len(recorded.samples):,} samples with the grades and figures of their texts"
    digest, files = recorded.manifest.inputs["model"]["digest"], weights.manifest.files
    model = next((weights.path / name for name in files if files[name]["sha256"] == digest), weights.path)  # a GGUF
    again = reproduce.repeat(recorded, str(model), file, work / key, limit=limit, on_batch=on_batch)
    report.evaluations[weights.location] = again
    report.reasons += [f"{key}: {fault}" for fault in again.faults]
    if again.n < recorded.metrics["n"]:
        report.not_checked.append(f"{key}: {recorded.metrics['n'] - again.n:,} puzzles after the first {again.n:,}")
    if again.differing and not recorded.metrics["decoding"].get("greedy"):
        report.not_checked.append(f"{key}: that rounding explains each text that differs, as they are sampled")
