"""Measurements of the weights in a release: evaluations and training log, and that they are of these weights."""

from collections.abc import Sequence
from pathlib import Path

from countdown_rl import artifacts
from countdown_rl.artifacts import Link, Manifest
from countdown_rl.errors import ArtifactError, InputError
from countdown_rl.evaluation.results import Result, read
from countdown_rl.runlog import log as trainlog


def measures(evaluation: Result, weights: Manifest) -> bool:
    """Return True if *evaluation* is of *weights*, or of a GGUF file in them."""
    digest = evaluation.manifest.inputs.get("model", {}).get("digest")
    files = [entry["sha256"] for name, entry in weights.files.items() if name.endswith(".gguf")]
    return digest == weights.digest or digest in files


def other_weights(path: Path, source: Path) -> ArtifactError:
    """Return the error for an evaluation at *path* that is of other weights than those at *source*."""
    return ArtifactError(
        f"{path} is an evaluation of other weights than {source} holds now; run "
        f"`countdown-rl eval --model {source} --out {path}` again."
    )


def evaluation_beside(weights: Path, manifest: Manifest) -> Result | None:
    """Return the evaluation where the pipeline keeps that of *weights*, if there is one.

    Raises:
        ArtifactError: it is of other weights.
    """
    path = weights.parent / "eval" / weights.name
    if artifacts.peek(path) != "eval":
        return None
    evaluation = read(path)
    if not measures(evaluation, manifest):
        raise other_weights(path, weights)
    return evaluation


def is_log_of(log: Path, links: Sequence[Link]) -> bool:
    """Return True if the training log at *log* is of the training in the chain *links*, by its facts."""
    policy = next((link for link in links if link.by_grpo), None)
    try:
        rows = trainlog.read(log)
    except (OSError, InputError):
        return False
    if policy is None or not rows or rows[-1].step != policy.facts.get("steps"):
        return False
    if policy.options.get("logging_steps", 1) != 1:  # rows are means, which do not show single rewards
        return True
    rewards = (rows[0].reward, max(row.reward for row in rows))
    return rewards == (policy.facts.get("reward_first"), policy.facts.get("reward_best"))
