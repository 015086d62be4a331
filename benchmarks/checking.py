"""An SFT checkpoint that repeats half of its lines as checks: what imitation can reach, and the checks that GRPO keeps.

    stages/recipes/countdown-checking.sh OUT
    SEEDS=42 stages/recipes/controls.sh OUT/model OUT/data OUT/arms
    python -m benchmarks.arms OUT/arms --name checking-arms
    python -m benchmarks.checking OUT

Exact, for a teacher that follows the plan and repeats a line with probability 1/2: its expected accuracy, ideal rounds
of rejection sampling (a check may depend on its place in the plan, not on the puzzle), and the plan without checks; see
:mod:`benchmarks.controls`. Measured: the accuracy of the checkpoint and of one with twice the steps (if imitation is
saturated, both equal the teacher's), and the share of lines that are checks, by position and by count of numbers.
Writes ``results/checking.json``.
"""

import argparse
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import bench, controls
from benchmarks.teacher import token_counter
from countdown_rl.evaluation import results
from countdown_rl.models import reference
from countdown_rl.tasks.task import Row
from stages.recipes.tiny import traces

CHECKS = 0.5
#: The first lines of the parts of a search that are counted apart.
POSITIONS = (2, 6, 11, 16)


def searches(rows: list[Row], plan: traces.Plan, count_tokens: Any) -> list[controls.Search]:
    """Return the puzzles *rows*, all of one count of numbers; choice 0 after a line repeats it."""
    return [
        puzzle._replace(costs=puzzle.costs[:, :1].repeat(2, axis=1), ahead=0)
        for puzzle in controls.searches(rows, plan, count_tokens)
    ]


def chances(puzzle: controls.Search, checks: float) -> np.ndarray:
    """Return the choices of a policy that repeats a share of lines: (W + 1, 2), the last row for the beginning."""
    return np.array([[checks, 1 - checks]] * len(puzzle.hits) + [[1.0, 0.0]])


def checked(name: Path) -> dict[str, dict[str, float]]:
    """The share of lines, after the first of a completion, that repeat the line before, in an evaluation."""
    parts = ("all lines", *(f"from line {first}" for first in POSITIONS))
    counts: dict[str, dict[str, list[bool]]] = {}
    for sample in results.read(name).samples:
        ways = re.findall(r"^(\d+)\. ", sample.completion, re.MULTILINE)
        size = f"{len(sample.row['nums'])} numbers"
        for position, (before, way) in enumerate(pairwise(ways), 2):
            first = max(start for start in POSITIONS if start <= position)
            for part in (parts[0], f"from line {first}"):
                counts.setdefault(size, {name: [] for name in parts})[part].append(before == way)
    return {
        size: {
            part: round(sum(repeated) / len(repeated), 4)
            for part, repeated in lines.items()
            if repeated
        }
        for size, lines in sorted(counts.items())
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    ref = reference.find_model(str(out / "model"))
    plan, count_tokens = traces.plan_of(ref.manifest.facts), token_counter(ref)
    exact = controls.curves(
        out / "data",
        lambda alike: searches(alike, plan, count_tokens),
        lambda puzzle: chances(puzzle, CHECKS),
        lambda puzzle: chances(puzzle, 0.0),
    )
    starts = {}
    for name in ("model", "longer"):
        metrics = results.read(out / "eval" / name).metrics
        starts[name] = {
            "accuracy": metrics.accuracy,
            "4 numbers": metrics.groups["numbers"]["4"].accuracy,
        }
    arms = {path.name: checked(path) for path in sorted((out / "arms" / "eval").iterdir())}
    bench.save(
        "checking",
        {"training": controls.TRAINING, "exact": exact, "starts": starts, "checks": arms},
    )


if __name__ == "__main__":
    main()
