"""The film of a report: the completions of the same validation puzzles after each validation of a run."""

import json
from dataclasses import dataclass
from pathlib import Path

from countdown_rl.evaluation import training_log
from countdown_rl.evaluation.sample import Sample

#: Limits on the puzzles and on the validations shown.
PUZZLES, FRAMES = 20, 25


@dataclass(frozen=True)
class Film:
    """The samples of each puzzle after each of *steps*; *chosen* is the index of the puzzle to show first."""

    steps: list[int]
    puzzles: list[list[list[Sample]]]
    chosen: int

    @property
    def shares(self) -> list[list[float]]:
        """For each puzzle the share of correct samples after each step."""
        return [
            [sum(sample.grade.correct for sample in samples) / len(samples) for samples in puzzle]
            for puzzle in self.puzzles
        ]


def read(log: Path) -> Film | None:
    """Return the film of the run of *log*; None unless it was validated twice."""
    file, shown = training_log.samples_file(log), dict[str, dict[int, list[Sample]]]()
    for sample in training_log.read_samples(file) if file.is_file() else ():
        key = json.dumps(sample.row.kept)
        if sample.validation and sample.step is not None and (key in shown or len(shown) < PUZZLES):
            shown.setdefault(key, {}).setdefault(sample.step, []).append(sample)
    steps = sorted(set.intersection(*map(set, shown.values()))) if shown else []
    if len(steps) < 2:
        return None
    if len(steps) > FRAMES:
        steps = [steps[round(index * (len(steps) - 1) / (FRAMES - 1))] for index in range(FRAMES)]
    film = Film(steps, [[by_step[step] for step in steps] for by_step in shown.values()], 0)
    gains = [shares[-1] - shares[0] for shares in film.shares]
    return Film(film.steps, film.puzzles, gains.index(max(gains)))
