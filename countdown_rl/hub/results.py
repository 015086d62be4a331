"""What was measured of weights, and that it was measured of these very weights."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from countdown_rl import artifacts
from countdown_rl.artifacts import Manifest
from countdown_rl.errors import ArtifactError, InputError
from countdown_rl.evaluation.results import DETAILS
from countdown_rl.runlog import log as trainlog

#: Groups of puzzles as a person would call them; the others are counts of numbers.
_GROUPS = {"add-sub": "solvable with + and − alone", "mul-div": "need × or ÷"}


@dataclass(frozen=True)
class Measured:
    """What one evaluation says. Shares lie between 0 and 1; ``groups`` are (title, accuracy, n, interval)."""

    accuracy: float
    n: int
    interval: tuple[float, float]
    format: float
    groups: Sequence[tuple[str, float, int, tuple[float, float]]]
    decoding: Mapping[str, Any]
    data: Mapping[str, Any]
    task: str


def concerns(evaluation: Manifest, weights: Manifest) -> bool:
    """Whether *evaluation* is of those *weights*: of the artifact, or of a GGUF file in it."""
    digest = evaluation.inputs.get("model", {}).get("digest")
    files = [entry["sha256"] for name, entry in weights.files.items() if name.endswith(".gguf")]
    return digest == weights.digest or digest in files


def other_weights(path: Path, source: str) -> ArtifactError:
    """The refusal of an evaluation that is of none of the weights at hand."""
    return ArtifactError(
        f"{path} measured other weights than {source} holds now; run "
        f"`countdown-rl eval --model {source} --out {path}` again."
    )


def measurement(path: Path) -> Measured:
    """What the metrics of the eval artifact at *path* say.

    Raises:
        ArtifactError: they are not what eval writes.
    """
    try:
        metrics = json.loads((path / DETAILS).read_bytes())
        groups = [
            (_GROUPS.get(key, f"{key} numbers"), group["accuracy"], group["n"], tuple(group["interval"]))
            for field in ("by_size", "by_needs")
            for key, group in sorted(metrics[field].items())
        ]
        return Measured(
            accuracy=metrics["accuracy"],
            n=metrics["n"],
            interval=(metrics["interval"][0], metrics["interval"][1]),
            format=metrics["format"],
            groups=groups,
            decoding=metrics["decoding"],
            data=metrics["data"],
            task=metrics["task"],
        )
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise ArtifactError(f"{path / DETAILS} is damaged; run `countdown-rl eval` again.") from error


def beside(model: str, kind: str) -> Path | None:
    """Where the pipeline keeps the eval artifact of *model*, or a comparison that has it in, if there is one."""
    path = Path(model)
    place = path.parent / "eval" / (path.name if kind == "eval" else "comparison")
    if artifacts.peek(place) != kind:
        return None
    digest, found = digest_at(path), manifest_at(place)
    if kind == "comparison" and not (digest and found and artifacts.mentions(found.inputs, digest)):
        return None
    return place


def log_beside(model: str, links: Sequence[artifacts.Link]) -> Path | None:
    """Where the pipeline keeps the log of the training that led to *model*, if it is there and of that run."""
    path = Path(model).parent / "train" / "log.csv"
    return path if path.is_file() and of_run(path, links) else None


def of_run(log: Path, links: Sequence[artifacts.Link]) -> bool:
    """Whether the training log at *log* is that of the adapter in the chain *links*, by what its manifest says."""
    trained = next((link for link in links if link.kind == "adapter"), None)
    try:
        rows = trainlog.read(log)
    except (OSError, InputError):
        return False
    if trained is None or not rows or rows[-1].step != trained.facts.get("steps"):
        return False
    if trained.options.get("logging_steps", 1) != 1:  # rows are means then, and cannot be told apart by their rewards
        return True
    return (rows[0].reward, max(row.reward for row in rows)) == (
        trained.facts.get("reward_first"),
        trained.facts.get("reward_best"),
    )


def digest_at(path: Path) -> str | None:
    """The digest of the artifact at *path*, or None where there is none; as :func:`manifest_at`."""
    manifest = manifest_at(path)
    return manifest.digest if manifest else None


def manifest_at(path: Path) -> Manifest | None:
    """The manifest at *path*, or None where there is none that can be read; no other file is looked at."""
    try:
        return Manifest(**json.loads((path / artifacts.MANIFEST).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
