"""Files of an ``eval`` artifact, and the split of its puzzles. Imports no inference engine.

``details.json`` holds every metric. ``metrics.json`` holds a dozen of them, flat and rounded, so
that ``dvc metrics show`` fits a terminal.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from countdown_rl.core import artifacts, typed_json
from countdown_rl.core.errors import ArtifactError, InputError
from countdown_rl.core.manifest import Manifest, ProvenanceEntry
from countdown_rl.evaluation import sample
from countdown_rl.evaluation.sample import Accuracy, Metrics, Sample, Scores
from countdown_rl.tasks import jsonl
from countdown_rl.tasks.registry import task

METRICS, DETAILS, SAMPLES = "metrics.json", "details.json", "samples.jsonl"


@dataclass(frozen=True)
class Result:
    """An evaluation: scores, and completions, those of a row side by side; *runs* of a mean."""

    metrics: Metrics
    samples: Sequence[Sample] = field(repr=False)
    manifest: Manifest = field(default=Manifest("eval", {}), compare=False, repr=False)
    path: Path = field(default=Path(), compare=False)
    runs: "Sequence[Result]" = field(default=(), repr=False)

    @property
    def by_puzzle(self) -> list[list[Sample]]:
        return sample.by_puzzle(self.samples)

    @cached_property
    def puzzles(self) -> list[tuple[str, str, str]]:
        """The task, the rule and the id of the row of each puzzle."""
        rows = [samples[0].row for samples in self.by_puzzle]
        return [(row.task, row.rule, row.id) for row in rows]


def read(path: Path) -> Result:
    """Read the evaluation at *path*. Raises ArtifactError if it is missing or damaged."""
    if path.is_file():
        raise ArtifactError(
            f"{path} is a file, not an eval artifact; grade its completions by "
            f"`countdown-rl eval --completions {path} --out DIR` and give DIR."
        )
    manifest = artifacts.read(path, "eval")
    metrics = read_metrics(path)
    try:
        samples = [Sample.from_json(line) for line in jsonl.read_objects(path / SAMPLES)]
    except (ArtifactError, InputError) as error:
        raise ArtifactError(f"{path / SAMPLES} is damaged ({error}); make it again.") from error
    return Result(metrics, samples, manifest=manifest, path=path)


def read_metrics(path: Path) -> Metrics:
    """The scores of the evaluation at *path*, without its samples."""
    return Metrics.from_json(typed_json.read(path / DETAILS), path / DETAILS)


def write(directory: Path, metrics: Metrics, samples: Sequence[Sample]) -> None:
    """Write the files of an evaluation into *directory*."""
    files = {METRICS: flat(metrics), DETAILS: metrics.to_json()}
    for name, values in files.items():
        (directory / name).write_text(json.dumps(values, indent=2) + "\n")
    jsonl.write_rows(directory / SAMPLES, (sample.to_json() for sample in samples))


def chain(result: Result) -> list[ProvenanceEntry]:
    """Everything that the model of *result* was made from, itself last; empty for a baseline."""
    return result.manifest.chain("model")


def split(*results: Result) -> str:
    """The adjective for the puzzles of *results*, such as ``held-out``.

    It follows from their counted overlap with training; "" if that is unknown or not empty.
    """
    runs: list[Result] = []
    for result in results:
        runs += result.runs or [result]
    counted = [run.metrics.overlap for run in runs if run.metrics.overlap is not None]
    if not counted or any(overlap.trained for overlap in counted):
        return ""
    splits = {samples[0].row.split for samples in runs[0].by_puzzle}
    return "validation" if splits == {"valid"} else "held-out"


def breakdowns(metrics: Scores) -> Iterator[tuple[str, str, Accuracy]]:
    """Yield the title of each breakdown, the name of a value, and its scores."""
    for name, by_value in metrics.groups.items():
        labels = task(metrics.task).group(name)
        for value, scores in by_value.items():
            yield labels.title, labels.name(value), scores


def flat(metrics: Metrics) -> dict[str, float]:
    """The contents of ``metrics.json``: shares rounded to three decimals, tokens to one.

    ``of`` is the number of rows that completions were asked for, if some have none. ``low`` and
    ``high`` are the ends of the interval of ``accuracy``. Accuracies by the first main breakdown of
    the task follow, such as ``numbers_3``.
    """
    low, high = metrics.interval
    shares = {"accuracy": metrics.accuracy, "low": low, "high": high}
    for name, by_value in metrics.groups.items():
        if task(metrics.task).group(name).main:
            shares |= {f"{name}_{value}": scores.accuracy for value, scores in by_value.items()}
            break
    shares["format"] = metrics.format
    if metrics.truncated is not None:
        shares["trunc"] = metrics.truncated

    values: dict[str, float] = {"n": metrics.n}
    if metrics.of:
        values["of"] = metrics.of
    for name, share in shares.items():
        values[name] = round(share, 3)
    if metrics.mean_tokens is not None:
        values["tokens"] = round(metrics.mean_tokens, 1)
    return values
