"""Measurements of the weights in a release: evaluations, comparison and training log, and that they are of them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from countdown_rl import artifacts
from countdown_rl.artifacts import Link, Manifest
from countdown_rl.errors import ArtifactError, InputError
from countdown_rl.evaluation.results import DETAILS
from countdown_rl.runlog import log as trainlog

#: Titles of groups of puzzles; the other groups are counts of numbers.
_GROUPS = {"add-sub": "solvable with + and − alone", "mul-div": "need × or ÷"}


@dataclass(frozen=True)
class Evaluation:
    """An evaluation. Shares lie between 0 and 1; ``groups`` are (title, accuracy, n, 95% interval)."""

    manifest: Manifest
    accuracy: float
    n: int
    interval: tuple[float, float]
    format: float
    groups: Sequence[tuple[str, float, int, tuple[float, float]]]
    decoding: Mapping[str, Any]
    data: Mapping[str, Any]
    task: str

    def measures(self, weights: Manifest) -> bool:
        """Return True if this is an evaluation of *weights*, or of a GGUF file in them."""
        digest = self.manifest.inputs.get("model", {}).get("digest")
        files = [entry["sha256"] for name, entry in weights.files.items() if name.endswith(".gguf")]
        return digest == weights.digest or digest in files


def read(path: Path) -> Evaluation:
    """Read the evaluation at *path*.

    Raises:
        ArtifactError: it is missing or damaged.
    """
    manifest = artifacts.read(path, "eval")
    try:
        metrics = json.loads((path / DETAILS).read_bytes())
        groups = [
            (_GROUPS.get(key, f"{key} numbers"), group["accuracy"], group["n"], tuple(group["interval"]))
            for field in ("by_size", "by_needs")
            for key, group in sorted(metrics[field].items())
        ]
        low, high = metrics["interval"]
        keys = ("accuracy", "n", "format", "decoding", "data", "task")
        return Evaluation(manifest, interval=(low, high), groups=groups, **{key: metrics[key] for key in keys})
    except (ValueError, KeyError, TypeError) as error:
        raise ArtifactError(f"{path / DETAILS} is damaged; run `countdown-rl eval` again.") from error


def other_weights(path: Path, source: Path) -> ArtifactError:
    """Return the error for an evaluation at *path* that is of other weights than those at *source*."""
    return ArtifactError(
        f"{path} is an evaluation of other weights than {source} holds now; run "
        f"`countdown-rl eval --model {source} --out {path}` again."
    )


def evaluation_beside(weights: Path, manifest: Manifest) -> Evaluation | None:
    """Return the evaluation where the pipeline keeps that of *weights*, if there is one.

    Raises:
        ArtifactError: it is of other weights.
    """
    path = weights.parent / "eval" / weights.name
    if artifacts.peek(path) != "eval":
        return None
    evaluation = read(path)
    if not evaluation.measures(manifest):
        raise other_weights(path, weights)
    return evaluation


def is_log_of(log: Path, links: Sequence[Link]) -> bool:
    """Return True if the training log at *log* is of the adapter in the chain *links*, by the adapter's facts."""
    adapter = next((link for link in links if link.kind == "adapter"), None)
    try:
        rows = trainlog.read(log)
    except (OSError, InputError):
        return False
    if adapter is None or not rows or rows[-1].step != adapter.facts.get("steps"):
        return False
    if adapter.options.get("logging_steps", 1) != 1:  # rows are means, which do not show single rewards
        return True
    rewards = (rows[0].reward, max(row.reward for row in rows))
    return rewards == (adapter.facts.get("reward_first"), adapter.facts.get("reward_best"))
