"""What imitation can reach from the shipped model, exact: its teacher, rejection sampling, and the plan in order.

    python -m benchmarks.controls [--data artifacts/data] [--model countdown-tiny]

Fine-tuning on one's own correct completions (RFT) is Bayes' rule where samples are unlimited and the fit is perfect: a
round replaces the probability of each choice by its share among the successes, p(choice | success). The choices of the
teacher are how many ways it skips after each way of the plan; plan, lines and tokens are those of the model. A choice
may depend on its place in the plan, not on the puzzle: an ideal of this kind, and no bound for a model that sees the
puzzle. The rounds are on training puzzles; the accuracy is on the test puzzles. They are also expectation maximization
of the accuracy, so many of them approach a local optimum. Beside it the measured models: the initial policy, and GRPO
by seed, sampled at temperature 1.
Writes ``results/controls.json``.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from benchmarks import bench
from benchmarks.teacher import in_order, token_counter
from countdown_rl.evaluation import results
from countdown_rl.models import reference
from countdown_rl.tasks import jsonl
from countdown_rl.tasks.task import Row
from stages.recipes.tiny import traces

LIMIT = 256
ROUNDS = (0, 1, 2, 5, 12, 25, 100)
#: Training puzzles that the rounds are on.
TRAINING = 8_000


class Search(NamedTuple):
    """A puzzle as the teacher sees it: tokens of the heading, and for each of W ways whether it reaches the target.

    Choice number C after a way leads to the way that is C + *ahead* further in the plan.
    """

    start: int
    hits: np.ndarray  # (W,)
    costs: np.ndarray  # (W, C): tokens of the line with choice C after it
    ahead: int = 1


def searches(rows: list[Any], plan: traces.Plan, count_tokens: Any) -> list[Search]:
    """Return the puzzles *rows*, all of one count of numbers."""
    made = []
    for row in rows:
        numbers = sorted(row["nums"], reverse=True)
        lines = [traces.execute(numbers, way, row["target"]) for way in plan[len(numbers)]]
        hits = np.array([line.value == row["target"] for line in lines])
        choices = range(traces.window(len(lines)))
        texts = [
            traces.written(way, line, reached=bool(hit), skip=skip)
            for way, (line, hit) in enumerate(zip(lines, hits, strict=True))
            for skip in choices
        ]
        start, *costs = count_tokens([traces.heading(numbers), *texts])
        made.append(Search(start, hits, np.array(costs).reshape(len(lines), len(choices))))
    return made


@njit(cache=False)
def values(start, hits, costs, ahead, chances, limit):  # type: ignore[no-untyped-def]
    """Return P(success within *limit* tokens) from each place on: (limit + 1, W), by tokens so far and next way.

    *chances* are (W + 1, C); row W is the beginning. Dynamic programming.
    """
    ways, choices = costs.shape
    success = np.zeros((limit + 1, ways))
    for tokens in range(limit, start - 1, -1):
        for way in range(ways):
            if hits[way]:
                success[tokens, way] = 1.0 if tokens + costs[way, 0] <= limit else 0.0
                continue
            for skip in range(choices):
                after = tokens + costs[way, skip]
                if after <= limit:
                    following = (
                        way + ahead + skip if way + ahead + skip < ways else skip - 1 + ahead
                    )
                    success[tokens, way] += chances[way, skip] * success[after, following]
    return success


@njit(cache=False)
def expect(start, hits, costs, ahead, chances, limit, counts):  # type: ignore[no-untyped-def]
    """Return P(success within *limit* tokens), and add to *counts* (W + 1, C) the expected choices of successes."""
    ways, choices = costs.shape
    success = values(start, hits, costs, ahead, chances, limit)
    reached = np.zeros((limit + 1, ways))
    total = 0.0
    for skip in range(choices):
        reached[start, skip] = chances[ways, skip]
        counts[ways, skip] += chances[ways, skip] * success[start, skip]
        total += chances[ways, skip] * success[start, skip]
    for tokens in range(start, limit + 1):
        for way in range(ways):
            if reached[tokens, way] == 0.0 or hits[way]:
                continue
            for skip in range(choices):
                after = tokens + costs[way, skip]
                if after <= limit:
                    following = (
                        way + ahead + skip if way + ahead + skip < ways else skip - 1 + ahead
                    )
                    chance = reached[tokens, way] * chances[way, skip]
                    reached[after, following] += chance
                    counts[way, skip] += chance * success[after, following]
    return total


def uniform(puzzle: Search) -> np.ndarray:
    """The chances of the teacher of countdown-tiny, (W + 1, C)."""
    ways, choices = puzzle.costs.shape
    return np.full((ways + 1, choices), 1 / choices)


def rejection_sampling(
    training: list[Search], test: list[Search], chances: np.ndarray, rounds: Sequence[int]
) -> dict[int, float]:
    """Return the mean accuracy of *test* by the number of *rounds* on *training*, from the start with *chances*."""
    accuracies = {}
    for done in range(max(rounds) + 1):
        if done in rounds:
            accuracies[done] = fixed(test, chances)
        counts = np.zeros_like(chances)
        for puzzle in training:
            expect(*puzzle, chances, LIMIT, counts)
        totals = counts.sum(1, keepdims=True)
        chances = np.where(totals > 0, counts / np.where(totals > 0, totals, 1), chances)
    return accuracies


def fixed(puzzles: list[Search], chances: np.ndarray) -> float:
    """Return the accuracy of a policy that does not change."""
    return float(
        np.mean([expect(*puzzle, chances, LIMIT, np.zeros_like(chances)) for puzzle in puzzles])
    )


def by_size(rows: Sequence[Row]) -> dict[int, list[Row]]:
    """*rows* by count of numbers."""
    sizes: dict[int, list[Row]] = {}
    for row in sorted(rows, key=lambda row: len(row["nums"])):
        sizes.setdefault(len(row["nums"]), []).append(row)
    return sizes


def curves(
    data: Path,
    searches_of: Callable[[list[Row]], list[Search]],
    start: Callable[[Search], np.ndarray],
    in_order: Callable[[Search], np.ndarray],
) -> dict[str, dict[str, float]]:
    """Return accuracies by rounds, and of the policy *in_order*, of all test rows of *data* and by count of numbers."""
    training, rows = (
        by_size(jsonl.read_rows(data / f"{split}.jsonl")) for split in ("train", "test")
    )
    accuracies = {}
    for size, alike in rows.items():
        puzzles = searches_of(alike)
        curve = rejection_sampling(
            searches_of(training[size][: TRAINING // len(rows)]), puzzles, start(puzzles[0]), ROUNDS
        )
        accuracies[size] = {f"RFT, {k} round{'s' * (k != 1)}": share for k, share in curve.items()}
        accuracies[size]["plan in order"] = fixed(puzzles, in_order(puzzles[0]))
    total = sum(map(len, rows.values()))
    parts = {"all": {size: len(alike) / total for size, alike in rows.items()}}
    parts |= {f"{size} numbers": {size: 1.0} for size in accuracies}
    return {
        name: {
            policy: round(
                sum(share * accuracies[size][policy] for size, share in shares.items()), 4
            )
            for policy in next(iter(accuracies.values()))
        }
        for name, shares in parts.items()
    }


def measured(name: str, size: str) -> dict[str, float]:
    """Return the sampled accuracy of the initial policy and of GRPO by seed, of all puzzles or those of *size*."""
    runs = json.loads((bench.RESULTS / "learning.json").read_text())
    parts = {"initial policy": runs["base"]["sampled"]}
    parts |= {f"GRPO, seed {run['seed']}": run["sampled"] for run in runs["runs"]}
    accuracies = {
        key: part["groups"]["numbers"][size] if size else part["accuracy"]
        for key, part in parts.items()
    }
    metrics = results.read(Path(name)).metrics
    own = metrics.groups["numbers"][size] if size else metrics
    return {"GRPO, seed 42": own.accuracy, **accuracies}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("artifacts/data"))
    parser.add_argument("--model", default="countdown-tiny")
    parser.add_argument(
        "--grpo", default="artifacts/eval/adapter-sampled", metavar="EVAL", help="seed 42, sampled"
    )
    args = parser.parse_args()
    ref = reference.find_model(args.model)
    plan, count_tokens = traces.plan_of(ref.manifest.facts), token_counter(ref)
    exact = curves(
        args.data,
        lambda alike: searches(alike, plan, count_tokens),
        uniform,
        lambda puzzle: in_order(len(puzzle.hits)),
    )
    models = {name: measured(args.grpo, "" if name == "all" else name.split()[0]) for name in exact}
    bench.save(
        "controls", {"training": TRAINING, "tokens": LIMIT, "exact": exact, "measured": models}
    )


if __name__ == "__main__":
    main()
