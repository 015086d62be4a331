"""Files of an ``eval`` artifact, and the one function that reads them. Imports no inference engine.

``details.json`` holds every figure. ``metrics.json`` holds a dozen of them, flat, under short names and
rounded, so that ``dvc metrics show`` fits a terminal.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Required, TypedDict

from countdown_rl import artifacts
from countdown_rl.artifacts import Manifest
from countdown_rl.data import jsonl
from countdown_rl.errors import ArtifactError
from countdown_rl.evaluation.metrics import Sample

METRICS, DETAILS, SAMPLES = "metrics.json", "details.json", "samples.jsonl"

#: Title of each breakdown in the metrics, and how its kinds are called.
_BREAKDOWNS = {
    "by_size": ("Count of numbers", "{} numbers"),
    "by_needs": ("Operators needed", "{}"),
    "by_solutions": ("Number of solutions", "{} solutions"),
}
_KINDS = {"add-sub": "+ and − suffice", "mul-div": "× or ÷ is needed", "1 solutions": "1 solution"}
_REFUSALS = {
    "impossible": "impossible puzzles, and the answer is impossible",
    "wrong_refusals": "solvable puzzles, and the answer is impossible",
}

#: Baselines: values of ``--model`` that stand for no model, and their kind.
BASELINES = {"random": "floor", "solver": "ceiling", "teacher": "teacher"}


def is_baseline(metrics: Mapping[str, Any]) -> bool:
    """Return True if *metrics* are those of a baseline, not of a model."""
    return metrics["model"]["kind"] in BASELINES.values()


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
    max_new_tokens: int


class _Model(TypedDict, total=False):
    source: Required[str]
    kind: Required[str]
    digest: str


class _Details(TypedDict, total=False):
    n: Required[int]
    accuracy: Required[float]
    interval: Required[list[float]]
    model: Required[_Model]
    data: Required[dict[str, Any]]
    decoding: Required[_Decoding]
    reasons: Required[dict[str, int]]
    by_size: dict[str, _Figures]
    by_needs: dict[str, _Figures]
    by_solutions: dict[str, _Figures]
    format: float
    truncated: float
    mean_tokens: float
    rules: list[str]
    task: str
    precision: str


class _Sample(TypedDict, total=False):
    nums: list[int]
    target: int
    question: str
    completion: Required[str]
    correct: Required[bool]
    reason: Required[str]
    answer: Required[str | None]
    value: Required[str | None]
    tokens: int
    truncated: bool


@dataclass(frozen=True)
class Result:
    """An evaluation.

    Attributes:
        metrics: every figure, as in ``details.json`` (see :func:`countdown_rl.evaluation.metrics.measure`).
        samples: one graded completion each, in the order of the rows.
        note: a remark on how the model was loaded, for the user.
        manifest, path: of the artifact that was read.
    """

    metrics: dict[str, Any]
    samples: list[Sample]
    note: str = ""
    manifest: Manifest = field(default=Manifest("eval", {}), compare=False)
    path: Path = field(default=Path(), compare=False)

    @property
    def by_puzzle(self) -> list[list[Sample]]:
        """The samples of each puzzle."""
        count = len(self.samples) // self.metrics["n"]
        return [self.samples[start : start + count] for start in range(0, len(self.samples), count)]


def read(path: Path) -> Result:
    """The evaluation at *path*. Raises ArtifactError if it is missing or damaged."""
    path = Path(path)
    manifest = artifacts.read(path, "eval")
    metrics, samples = artifacts.read_json(path / DETAILS, _Details), jsonl.read_objects(path / SAMPLES)
    for number, sample in enumerate(samples, 1):
        artifacts.check_type(sample, _Sample, f"{path / SAMPLES}, line {number},")
    if not metrics["n"] or len(metrics["interval"]) != 2 or not samples or len(samples) % metrics["n"]:
        raise ArtifactError(f"{path} is damaged ({metrics['n']} puzzles, {len(samples)} samples); make it again.")
    return Result(metrics, samples, manifest=manifest, path=path)


def write(directory: Path, metrics: Mapping[str, Any], samples: Sequence[Sample]) -> None:
    """Write the three files of an evaluation into *directory*."""
    for name, values in ((METRICS, flat(metrics)), (DETAILS, metrics)):
        (directory / name).write_text(json.dumps(values, indent=2) + "\n")
    jsonl.write_rows(directory / SAMPLES, samples)


def refuses(metrics: Mapping[str, Any]) -> bool:
    """Return True if a puzzle is impossible, or the answer "impossible" was given to one that is not."""
    return "impossible" in metrics or "not-impossible" in metrics["reasons"]


def breakdowns(metrics: Mapping[str, Any], *, refusals: bool) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield a title, a kind of puzzle and its figures: by numbers, operators and solutions, and the *refusals*."""
    for key, (title, name) in _BREAKDOWNS.items():
        for kind, figures in metrics.get(key, {}).items():
            yield title, _KINDS.get(kind) or _KINDS.get(name.format(kind)) or name.format(kind), figures
    for key, name in _REFUSALS.items():
        if refusals and (figures := metrics.get(key)):
            yield "Answer impossible", name, {"accuracy": figures.get("share")} | figures


def flat(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The contents of ``metrics.json``: shares rounded to three decimals, tokens to one.

    ``low`` and ``high`` are the ends of the 95% interval of ``accuracy``, ``acc_3`` is the accuracy on puzzles of
    three numbers, ``add_sub`` and ``mul_div`` are those by operators needed.
    """
    low, high = metrics["interval"]
    shares = {
        "accuracy": metrics["accuracy"],
        "low": low,
        "high": high,
        **{f"acc_{size}": share["accuracy"] for size, share in metrics["by_size"].items()},
        **{needs.replace("-", "_"): share["accuracy"] for needs, share in metrics["by_needs"].items()},
        "format": metrics["format"],
        "trunc": metrics["truncated"],
    }
    rounded = {name: round(share, 3) for name, share in shares.items()}
    return {"n": metrics["n"], **rounded, "tokens": round(metrics["mean_tokens"], 1)}
