"""Overlap of evaluated rows with those of training, by the ids that the training run wrote."""

from collections.abc import Collection, Sequence

from countdown_rl.core.manifest import file_sha256, provenance_chain
from countdown_rl.evaluation.metrics import accuracy
from countdown_rl.evaluation.sample import Overlap, Sample, by_puzzle
from countdown_rl.models import model_files
from countdown_rl.models.reference import ModelRef


def trained_ids(ref: ModelRef) -> set[str] | None:
    """The ids of the rows that *ref* was trained on; None if not known, as of a foreign model."""
    runs = [link for link in provenance_chain(ref.as_input()) if link.is_trained]
    recorded = [link.facts.get("trained_ids", {}) for link in runs]
    if ref.path is None or not recorded or not all(recorded):
        return None
    directory = ref.path.parent if ref.path.is_file() else ref.path
    last = recorded[-1]
    file = directory / last["file"]
    if not file.is_file() or file_sha256(file) != last["sha256"]:
        return None
    return model_files.read_trained_ids(file)


def overlap(samples: Sequence[Sample], trained: Collection[str]) -> Overlap:
    """The overlap of the rows of *samples* with the ids *trained*."""
    puzzles = by_puzzle(samples)
    others = [puzzle for puzzle in puzzles if puzzle[0].row.id not in trained]
    return Overlap(
        trained=len(puzzles) - len(others),
        others=accuracy(others) if others else None,
    )
