"""Files of an ``eval`` artifact, and the one function that reads them. Imports no inference engine.

``details.json`` holds every figure. ``metrics.json`` holds a dozen of them, flat, under short names and
rounded, so that ``dvc metrics show`` fits a terminal.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Required

from typing_extensions import TypedDict

from countdown_rl import artifacts, typed_json
from countdown_rl.artifacts import Manifest, ProvenanceEntry
from countdown_rl.data import jsonl
from countdown_rl.errors import ArtifactError, InputError
from countdown_rl.evaluation.metrics import Sample
from countdown_rl.tasks.registry import parse_row, task_of

METRICS, DETAILS, SAMPLES = "metrics.json", "details.json", "samples.jsonl"

#: Adjectives for the rows of a split.
_SPLITS = {"train": "training", "valid": "validation", "test": "held-out"}

#: Kinds of baselines, which take the place of a model in an evaluation.
BASELINE_KINDS = ("floor", "ceiling")


def is_baseline(metrics: Mapping[str, Any]) -> bool:
    """Return whether *metrics* are those of a baseline."""
    return metrics["model"]["kind"] in BASELINE_KINDS


class _Figures(TypedDict, total=False):
    accuracy: float
    share: float
    n: Required[int]
    interval: Required[list[float]]


class _Decoding(TypedDict, total=False):
    samples: int
    greedy: bool
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    max_new_tokens: int


class _Model(TypedDict, total=False):
    source: Required[str]
    kind: Required[str]
    digest: str


class MainFigures(TypedDict, total=False):
    """Figures of an evaluation of any version."""

    n: Required[int]
    accuracy: Required[float]
    interval: Required[list[float]]
    data: Required[dict[str, Any]]
    decoding: Required[_Decoding]
    precision: str


class _Details(MainFigures, total=False):
    model: Required[_Model]
    reasons: Required[dict[str, int]]
    groups: Required[dict[str, dict[str, _Figures]]]
    format: Required[float]
    truncated: Required[float]
    mean_tokens: Required[float]
    rules: list[str]
    task: Required[str]


class _Sample(TypedDict, total=False):
    completion: Required[str]
    correct: Required[bool]
    reason: Required[str]
    answer: Required[str | None]
    value: Required[str | None]
    tokens: int
    truncated: bool


class Verdict(TypedDict, total=False):
    """Fields of a sample of any version that is graded again."""

    completion: Required[str]
    correct: Required[bool]
    tokens: Required[int]
    truncated: Required[bool]


@dataclass(frozen=True)
class Result:
    """An evaluation.

    Attributes:
        metrics: every figure, as in ``details.json``, see :func:`metrics.measure`.
        samples: one graded completion each, in the order of the rows.
        manifest, path: of the artifact that was read.
    """

    metrics: dict[str, Any]
    samples: list[Sample]
    manifest: Manifest = field(default=Manifest("eval", {}), compare=False)
    path: Path = field(default=Path(), compare=False)

    @property
    def by_puzzle(self) -> list[list[Sample]]:
        """The samples of each puzzle."""
        count = len(self.samples) // self.metrics["n"]
        return [self.samples[start : start + count] for start in range(0, len(self.samples), count)]


def read(path: Path, details: Any = _Details, fields: Any = _Sample) -> Result:
    """The evaluation at *path*, which has the *details* and whose samples have the *fields* that are given.

    Raises:
        ArtifactError: it is missing or damaged.
    """
    path = Path(path)
    manifest = artifacts.read(path, "eval")
    metrics, samples = typed_json.read(path / DETAILS, details), jsonl.read_objects(path / SAMPLES)
    for number, sample in enumerate(samples, 1):
        typed_json.check_type(sample, fields, f"{path / SAMPLES}, line {number},")
    if metrics["n"] < 1 or len(metrics["interval"]) != 2 or not samples or len(samples) % metrics["n"]:
        raise ArtifactError(f"{path} is damaged ({metrics['n']} puzzles, {len(samples)} samples); make it again.")
    return Result(metrics, samples, manifest=manifest, path=path)


def write(directory: Path, metrics: Mapping[str, Any], samples: Sequence[Sample], pass_at: Sequence[int] = ()) -> None:
    """Write the three files of an evaluation into *directory*, the first one with *pass_at* as :func:`flat` has it."""
    for name, values in ((METRICS, flat(metrics, pass_at)), (DETAILS, metrics)):
        (directory / name).write_text(json.dumps(values, indent=2) + "\n")
    jsonl.write_rows(directory / SAMPLES, samples)


def chain(result: Result) -> list[ProvenanceEntry]:
    """Everything that the model of *result* was made from, itself last; none for a baseline."""
    entries = [entry for key, entry in result.manifest.inputs.items() if key == "model" and "digest" in entry]
    return artifacts.chain(*entries)


def split(result: Result) -> str:
    """The adjective for the puzzles of *result*: "held-out", "validation" or "training"; "" where that is unknown.

    The manifests in the chain of the model list the files of its data by their sha256. Puzzles of another file have the
    split that every generated data set puts them in, unless the model was trained on imported data.
    """
    if "split" in result.metrics:
        return str(result.metrics["split"])
    links, digest = chain(result), result.metrics["data"].get("digest")
    data = [link for link in links if link.kind == "data"]
    splits = {Path(name).stem for link in data for name, file in link.files.items() if file["sha256"] == digest}
    if digest in training_data(links):
        splits = {"train"}
    elif not splits and not any(link.inputs for link in data):
        with suppress(InputError):  # of an older version, which kept fewer fields, or of a task that is not installed
            splits = {parse_row(samples[0]).split for samples in result.by_puzzle}
    return _SPLITS.get(splits.pop(), "") if len(splits) == 1 else ""


def training_data(links: Sequence[ProvenanceEntry]) -> set[str]:
    """The sha256 of each file that a model in the chain *links* was trained on."""
    trained = (link.inputs for link in links if link.kind in ("adapter", "model"))
    entries = [entry for inputs in trained for key, entry in inputs.items() if key.startswith(("data", "from"))]
    files = [(entry.get("manifest", {}).get("files", {}).get("train.jsonl", {}), entry) for entry in entries]
    return {file.get("sha256", entry["digest"]) for file, entry in files}


def breakdowns(metrics: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield the title of each group, the name of a value, and its figures."""
    task = task_of(metrics)
    for group, values in metrics["groups"].items():
        for value, figures in values.items():
            yield task.group(group).title, task.group(group).name(value), figures


def flat(metrics: Mapping[str, Any], pass_at: Sequence[int] = ()) -> dict[str, float]:
    """The contents of ``metrics.json``: shares rounded to three decimals, tokens to one.

    ``low`` and ``high`` are the ends of the 95% interval of ``accuracy``. Accuracies by group follow under their
    names, such as ``numbers_3``, where the task lists the group as a main one; then pass@k with its interval for each
    k of *pass_at*.
    """
    task = task_of(metrics)
    low, high = metrics["interval"]
    shares = {
        "accuracy": metrics["accuracy"],
        "low": low,
        "high": high,
        **{
            f"{group}_{value}": share["accuracy"]
            for group, values in metrics["groups"].items()
            if task.group(group).main
            for value, share in values.items()
        },
    }
    for k, figures in metrics.get("pass_at", {}).items():
        if int(k) in pass_at:
            low, high = figures["interval"]
            shares |= {f"pass@{k}": figures["share"], f"pass@{k}_low": low, f"pass@{k}_high": high}
    shares |= {"format": metrics["format"], "trunc": metrics["truncated"]}
    rounded = {name: round(share, 3) for name, share in shares.items()}
    return {"n": metrics["n"], **rounded, "tokens": round(metrics["mean_tokens"], 1)}
