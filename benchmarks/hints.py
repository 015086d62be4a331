"""Hints for the shipped model: the pipeline's curriculum, with the first lines of a right search in its own notation.

    python -m benchmarks.learning --name hints --set curriculum=false sampler=benchmarks.hints:hinted

The search of a puzzle is the shortest of 16 that its teacher draws; a puzzle that none of them solves has no hint. The
number of lines is binomial, and its mean falls by a cosine from all of them to 0 over 60% of the 50 steps, as in UFT
(Liu et al. 2025, arXiv:2505.16984). The same searches as demonstrations, in the order of the puzzles, NUMBER of them:

    python -m benchmarks.hints TRAIN.jsonl NUMBER DEMONSTRATIONS.jsonl
    python -m benchmarks.learning --name hints-sft --sft DEMONSTRATIONS.jsonl
"""

import json
import math
import random
import sys
from itertools import count, islice

import numpy as np

from countdown_rl.models import reference
from countdown_rl.training.grpo.prompts import curriculum
from stages.recipes.tiny import traces

STEPS = 50
#: Searches drawn for a puzzle, and the lines after which one stops.
DRAWN, LINES = 16, 12


def plan():
    return traces.plan_of(reference.find_model("countdown-tiny").manifest.facts)


def search(row, ways):
    """The completion of the shortest right search; "" where none is right."""
    rng = random.Random(json.dumps([row["nums"], row["target"]]))
    drawn = [traces.trace(row, ways, rng, max_lines=LINES) for _ in range(DRAWN)]
    return min((each.text for each in drawn if each.ended), key=len, default="")


def hinted(rows, size, seed):
    """The sampler."""
    ways, rounds, outcomes = plan(), curriculum(rows, size, seed), None
    for number in count():
        share = (1 + math.cos(math.pi * min(1.0, number / (0.6 * STEPS)))) / 2
        rng = np.random.default_rng((seed, number))
        prompts = []
        for row in rounds.send(outcomes):
            lines = search(rows[row], ways).split("\n")[
                1:-2
            ]  # without the end of the thinking and the answer
            first = lines[: rng.binomial(len(lines), share)]
            prompts.append((row, "\n".join(["", *first, ""]) if first else ""))
        outcomes = yield prompts


if __name__ == "__main__":
    puzzles, number, out = sys.argv[1:]
    ways = plan()
    with open(puzzles) as rows, open(out, "w") as file:
        solved = ((row, text) for row in map(json.loads, rows) if (text := search(row, ways)))
        for row, text in islice(solved, int(number)):
            file.write(json.dumps(row | {"completion": text}) + "\n")
