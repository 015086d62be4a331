"""Files of an ``eval`` artifact: reading, writing, and the split of its puzzles. Imports no inference engine.

``details.json`` holds every metric. ``metrics.json`` holds a dozen of them, flat and rounded, so that
``dvc metrics show`` fits a terminal.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from countdown_rl.core import artifacts, typed_json
from countdown_rl.core.errors import ArtifactError, InputError
from countdown_rl.core.formatting import interval, percent
from countdown_rl.core.manifest import Manifest, ProvenanceEntry, provenance_chain
from countdown_rl.evaluation import sample
from countdown_rl.evaluation.sample import Accuracy, Metrics, Sample, Scores
from countdown_rl.tasks import jsonl
from countdown_rl.tasks.registry import task

METRICS, DETAILS, SAMPLES = "metrics.json", "details.json", "samples.jsonl"

#: Adjectives for the rows of a split.
_SPLITS = {"train": "training", "valid": "validation", "test": "held-out"}


@dataclass(frozen=True)
class Result:
    """An evaluation: scores and graded completions, those of a row side by side; *runs* if it is their mean."""

    metrics: Metrics
    samples: Sequence[Sample]
    manifest: Manifest = field(default=Manifest("eval", {}), compare=False)
    path: Path = field(default=Path(), compare=False)
    runs: "Sequence[Result]" = ()

    def __repr__(self) -> str:
        metrics = self.metrics
        of = f" of {metrics.of}" if metrics.of else ""
        solved = f"{percent(metrics.accuracy)} ({interval(metrics.interval)}), n={metrics.n}{of}"
        return f"Result({metrics.model.source}: {solved}" + (
            f", {self.path})" if self.path != Path() else ")"
        )

    @property
    def by_puzzle(self) -> list[Sequence[Sample]]:
        return sample.by_puzzle(self.samples, self.metrics.n)

    @cached_property
    def puzzles(self) -> list[tuple[str, str, str]]:
        """The task, the rule and the id of the row of each puzzle."""
        return [
            (row.task, row.rule, row.id) for row in (samples[0].row for samples in self.by_puzzle)
        ]


def read(path: Path) -> Result:
    """Read the evaluation at *path*. Raises ArtifactError if it is missing or damaged."""
    path = Path(path)
    if path.is_file():
        remedy = f"grade its completions by `countdown-rl eval --completions {path} --out DIR` and give DIR"
        raise ArtifactError(f"{path} is a file, not an eval artifact; {remedy}.")
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
    for name, values in (
        (METRICS, flat(metrics, metrics.of)),
        (DETAILS, metrics.to_json()),
    ):
        (directory / name).write_text(json.dumps(values, indent=2) + "\n")
    jsonl.write_rows(directory / SAMPLES, (sample.to_json() for sample in samples))


def chain(result: Result) -> list[ProvenanceEntry]:
    """Everything that the model of *result* was made from, itself last; empty for a baseline."""
    return provenance_chain(result.manifest.entry("model"))


def split(*results: Result) -> str:
    """The adjective for the puzzles of *results*: "held-out", "validation" or "training"; "" if unknown or mixed.

    It is of the split of their file in the chain of the model, else of their own, which puzzles do not have if the
    model was trained on imported data.
    """
    splits: set[str] = set()
    for run in (run for result in results for run in result.runs or [result]):
        links, digest = chain(run), str(run.metrics.data.get("digest"))
        data = [link for link in links if link.kind == "data"]
        own = (
            {""}
            if any(link.inputs for link in data)
            else {samples[0].row.split for samples in run.by_puzzle}
        )
        own -= (
            {"train"} if run.metrics.model.kind == "completions" else set()
        )  # nobody knows what it was trained on
        of_file = {
            Path(name).stem
            for link in data
            for name, file in link.files.items()
            if file["sha256"] == digest
        }
        splits |= {"train"} if digest in training_data(links) else of_file or own
    return _SPLITS.get(splits.pop(), "") if len(splits) == 1 else ""


def training_data(links: Sequence[ProvenanceEntry]) -> set[str]:
    """The sha256 of each file that a model in the chain *links* was trained on."""
    files = {link.digest: link.files.get("train.jsonl", {}) for link in links}
    trained_on = set()
    for link in links:
        if link.kind not in ("adapter", "model"):
            continue
        for name, digest in link.inputs.items():
            if name.startswith(("data", "from")):
                trained_on.add(files.get(digest, {}).get("sha256", digest))
    return trained_on


def breakdowns(metrics: Scores) -> Iterator[tuple[str, str, Accuracy]]:
    """Yield the title of each group, the name of a value, and its scores."""
    for name, values in metrics.groups.items():
        group = task(metrics.task).group(name)
        yield from ((group.title, group.name(value), scores) for value, scores in values.items())


def flat(metrics: Scores, of: int | None = None) -> dict[str, float]:
    """The contents of ``metrics.json``: shares rounded to three decimals, tokens to one.

    *of* is the number of rows that completions were asked for, if some have none. ``low`` and ``high`` are the ends of
    the interval of ``accuracy``. Accuracies by the first main group of the task follow, such as ``numbers_3``; then
    accuracies by token limit.
    """
    low, high = metrics.interval
    shares = {"accuracy": metrics.accuracy, "low": low, "high": high}
    main = next((group for group in metrics.groups if task(metrics.task).group(group).main), "")
    shares |= {
        f"{main}_{value}": share.accuracy for value, share in metrics.groups.get(main, {}).items()
    }
    shares |= {f"accuracy@{limit}": budget.accuracy for limit, budget in metrics.budgets.items()}
    shares |= {"format": metrics.format} | (
        {} if metrics.truncated is None else {"trunc": metrics.truncated}
    )
    tokens = {} if metrics.mean_tokens is None else {"tokens": round(metrics.mean_tokens, 1)}
    counts = {"n": metrics.n} | ({"of": of} if of else {})
    return {**counts, **{name: round(share, 3) for name, share in shares.items()}, **tokens}
