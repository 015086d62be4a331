"""The film of a report: the completions of the same validation puzzles after each validation of a run."""

import json
from dataclasses import dataclass
from pathlib import Path

from countdown_rl.evaluation import training_log
from countdown_rl.evaluation.sample import Sample
from countdown_rl.tasks import jsonl
from countdown_rl.tasks.registry import parse_row

#: Limits on the puzzles and on the validations shown.
PUZZLES, FRAMES = 20, 25
_GRADED = {"completion", "correct", "reason", "answer", "value", "tokens", "truncated", "step", "validation"}


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
    """Return the film of the run of *log*; None unless it was validated twice. The samples are graded again."""
    file, shown = training_log.samples_file(log), dict[str, dict[int, list[Sample]]]()
    for line in jsonl.read_objects(file) if file.is_file() else ():
        if not line.get("validation"):
            continue
        row = parse_row({name: value for name, value in line.items() if name not in _GRADED})
        key = json.dumps(row.kept)
        if key in shown or len(shown) < PUZZLES:
            text = line["completion"]
            sample = Sample(row, text, row.grade(text), line["tokens"], line["truncated"])
            shown.setdefault(key, {}).setdefault(line["step"], []).append(sample)
    steps = sorted(set.intersection(*map(set, shown.values()))) if shown else []
    if len(steps) < 2:
        return None
    if len(steps) > FRAMES:
        steps = [steps[round(index * (len(steps) - 1) / (FRAMES - 1))] for index in range(FRAMES)]
    film = Film(steps, [[by_step[step] for step in steps] for by_step in shown.values()], 0)
    gains = [shares[-1] - shares[0] for shares in film.shares]
    return Film(film.steps, film.puzzles, gains.index(max(gains)))
