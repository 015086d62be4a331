"""The puzzles of the next round of rejection sampling, by the curriculum of ``train``:
``curriculum_puzzles.py ROWS SIZE SEED OUT [EVALUATION ...]``.

The evaluations are those of the rounds so far, in order; the kinds of puzzles that they solve
sometimes are oversampled.
"""

import sys
from pathlib import Path

from countdown_rl.evaluation import results
from countdown_rl.tasks import jsonl
from countdown_rl.training.grpo.prompts import Outcome, curriculum

if __name__ == "__main__":
    file, size, seed, out, *evaluations = sys.argv[1:]
    rows = jsonl.read_rows(Path(file))
    rounds = curriculum(rows, int(size), int(seed))

    indices = next(rounds)
    for evaluation in evaluations:
        outcomes = []
        groups = results.read(Path(evaluation)).by_puzzle
        for index, samples in zip(indices, groups, strict=True):
            correct = [sample.grade.correct for sample in samples]
            truncated = [bool(sample.truncated) for sample in samples]
            outcomes.append(Outcome(index, list(map(float, correct)), correct, truncated))
        indices = rounds.send(outcomes)

    jsonl.write_rows(Path(out), [rows[index].kept for index in indices])
