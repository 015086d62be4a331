"""Completions of a run in a report: a film of the same validation puzzles, and groups of training."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from countdown_rl.evaluation.sample import Sample

#: Limits on the puzzles and on the validations shown.
PUZZLES, FRAMES = 20, 25


@dataclass(frozen=True)
class Film:
    """The samples of each puzzle after each of *steps*."""

    steps: list[int]
    puzzles: list[list[list[Sample]]]

    @property
    def shares(self) -> list[list[float]]:
        """For each puzzle the share of correct samples after each step."""
        grades = [[[sample.grade.correct for sample in samples] for samples in puzzle] for puzzle in self.puzzles]
        return [[sum(correct) / len(correct) for correct in puzzle] for puzzle in grades]

    @property
    def chosen(self) -> int:
        """The index of the puzzle to show first: the one that improved most."""
        gains = [shares[-1] - shares[0] for shares in self.shares]
        return gains.index(max(gains))


def read(samples: Sequence[Sample]) -> Film | None:
    """Return the film of the *samples* of a run; None unless it was validated twice."""
    shown: dict[str, dict[int, list[Sample]]] = {}
    for sample in samples:
        key = json.dumps(sample.row.kept)
        if sample.validation and sample.step is not None and (key in shown or len(shown) < PUZZLES):
            shown.setdefault(key, {}).setdefault(sample.step, []).append(sample)
    steps = sorted(set.intersection(*map(set, shown.values()))) if shown else []
    if len(steps) > FRAMES:
        steps = [steps[round(index * (len(steps) - 1) / (FRAMES - 1))] for index in range(FRAMES)]
    return Film(steps, [[by_step[step] for step in steps] for by_step in shown.values()]) if len(steps) > 1 else None


def groups(samples: Sequence[Sample]) -> list[list[Sample]]:
    """Return the first group with a gradient of the first and of the last step of *samples* that has one."""
    sampled: dict[tuple[int, int], list[Sample]] = {}
    for sample in samples:
        if sample.step is not None and sample.group is not None:
            sampled.setdefault((sample.step, sample.group), []).append(sample)
    by_step: dict[int, list[Sample]] = {}
    for (step, _), group in sampled.items():
        if any(sample.advantage for sample in group):
            by_step.setdefault(step, group)
    return [by_step[step] for step in sorted({min(by_step), max(by_step)})] if by_step else []
