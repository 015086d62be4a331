"""Completions of training that the report shows: the film of validations, and sampled groups."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from statistics import fmean

from countdown_rl.evaluation.sample import Sample

#: Limits on the puzzles and on the validations of a film.
PUZZLES, FRAMES = 20, 25


@dataclass(frozen=True)
class Film:
    """The samples of each puzzle after each of *steps*."""

    steps: list[int]
    puzzles: list[tuple[list[Sample], ...]]

    @property
    def shares(self) -> list[list[float]]:
        """For each puzzle the share of correct samples after each step."""
        return [list(map(_share, frames)) for frames in self.puzzles]

    @property
    def chosen(self) -> int:
        """The index of the puzzle to show first: the one that improved most."""
        gains = [shares[-1] - shares[0] for shares in self.shares]
        return gains.index(max(gains))


def _share(samples: Sequence[Sample]) -> float:
    return fmean(sample.grade.correct for sample in samples)


def film(samples: Sequence[Sample]) -> Film | None:
    """Return the film of the *samples* of a run; None unless it was validated twice."""
    shown: dict[str, dict[int, list[Sample]]] = {}
    for sample in samples:
        puzzle = json.dumps(sample.row.kept)
        if sample.validation and (puzzle in shown or len(shown) < PUZZLES):
            shown.setdefault(puzzle, {}).setdefault(sample.step or 0, []).append(sample)
    if not shown:
        return None
    steps = sorted(set.intersection(*map(set, shown.values())))
    if len(steps) > FRAMES:
        gap = (len(steps) - 1) / (FRAMES - 1)
        steps = [steps[round(index * gap)] for index in range(FRAMES)]
    if len(steps) < 2:
        return None
    return Film(steps, list(map(itemgetter(*steps), shown.values())))


def sampled(samples: Sequence[Sample]) -> list[list[Sample]]:
    """Return the first group with a gradient of the first and of the last step that has one."""
    groups: dict[tuple[int, int], list[Sample]] = {}
    for sample in samples:
        if sample.step is not None and sample.group is not None:
            groups.setdefault((sample.step, sample.group), []).append(sample)
    by_step: dict[int, list[Sample]] = {}  # in the order of training
    for (step, _), group in groups.items():
        if any(sample.advantage for sample in group):
            by_step.setdefault(step, group)
    shown = list(by_step.values())
    return shown[:1] + shown[1:][-1:]
