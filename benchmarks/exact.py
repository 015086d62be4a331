"""Rounds of imitation from the shipped model, exact: accuracy, pass@k and tokens after each, in
seconds.

    python -m benchmarks.exact --rounds 25
    python -m benchmarks.exact --weights line --power 16 --rounds 5
    python -m benchmarks.exact --sheet          # every setting of the page: results/exact.json

The policy is a table: after each way of the plan, the chances of skipping 0 to 3 ways. Lines are
executed without a mistake, and a choice may depend on its place in the plan but not on the puzzle.
A round samples without limit on training puzzles and fits perfectly: each chance is multiplied by
how much more often the choice occurs among the rewarded completions, which is Bayes' rule, or one
step of expectation maximization.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numba import njit

from benchmarks import bench
from benchmarks.teacher import token_counter
from countdown_rl.models import reference
from countdown_rl.tasks import jsonl
from countdown_rl.tasks.task import Row
from stages.recipes.tiny import traces

#: Tokens of a completion, and training puzzles of one size.
LIMIT = 256
TRAINING = 4_000
REPORTED = (0, 1, 2, 5, 12, 25, 50, 100, 200)
KS = (1, 2, 4, 16)
#: ``line`` discounts the reward of a choice by this for each line that follows, as
#: ``train --discount`` does.
DISCOUNT = 0.9
#: ``shortest`` keeps the shortest correct one of as many completions.
GROUP = 8
#: The settings of ``--sheet``: weights, power, rounds.
SHEET = (
    ("all", 1, 200),
    ("line", 1, 25),
    ("shortest", 1, 25),
    ("puzzle", 1, 25),
    ("pass@2", 1, 25),
    ("pass@16", 1, 25),
    ("all", 3, 1),
    ("all", 10, 1),
    ("all", 4, 12),
    ("all", 16, 12),
    ("all", 64, 12),
    ("line", 16, 5),
    ("pass@2", 16, 12),
    ("pass@16", 16, 12),
)


class Search(NamedTuple):
    """A puzzle as the policy meets it."""

    start: int  # tokens of the heading
    hits: np.ndarray  # (W,) whether each way reaches the target
    costs: np.ndarray  # (W,) tokens of its line, with the answer if it hits


def searches(
    rows: Sequence[Row], plan: traces.Plan, count_tokens: Callable[[list[str]], list[int]]
) -> list[Search]:
    """Return the puzzles *rows*, which all have the same count of numbers."""
    tables = []
    for row in rows:
        numbers = sorted(row["nums"], reverse=True)
        lines = [traces.execute(numbers, way, row["target"]) for way in plan[len(numbers)]]
        hits = np.array([line.value == row["target"] for line in lines])
        texts = [
            traces.written(way, line, reached=bool(hits[way])) for way, line in enumerate(lines)
        ]
        start, *costs = count_tokens([traces.heading(numbers), *texts])
        tables.append(Search(start, hits, np.array(costs)))
    return tables


def uniform(ways: int) -> np.ndarray:
    """The chances of the teacher of countdown-tiny: (W + 1, C); row W is the beginning of a
    completion.
    """
    choices = traces.window(ways)
    return np.full((ways + 1, choices), 1 / choices)


@njit(cache=False)
def following(way, choice, ways):  # type: ignore[no-untyped-def]
    """The way after *way* if *choice* ways are skipped, beginning again at the end of the plan."""
    further = way + 1 + choice
    return further if further < ways else choice


@njit(cache=False)
def forward(start, hits, costs, chances, limit):  # type: ignore[no-untyped-def]
    """Return P(a line of each way begins) by tokens so far, (limit + 1, W), and P(solved) by
    tokens, (limit + 1,).
    """
    ways = len(hits)
    choices = chances.shape[1]
    reached = np.zeros((limit + 1, ways))
    solved = np.zeros(limit + 1)

    reached[start, :choices] = chances[ways]
    for tokens in range(start, limit + 1):
        for way in range(ways):
            chance = reached[tokens, way]
            after = tokens + costs[way]
            if chance == 0.0 or after > limit:
                continue
            if hits[way]:
                solved[after] += chance
                continue
            for choice in range(choices):
                next_way = following(way, choice, ways)
                reached[after, next_way] += chance * chances[way, choice]
    return reached, solved


@njit(cache=False)
def backward(start, hits, costs, chances, reached, rewards, discount, counts):  # type: ignore[no-untyped-def]
    """Return the expected reward from each reached place on, (limit + 1, W), by tokens so far and
    way of the next line.

    *rewards* (limit + 1,) are those of a completion solved with so many tokens; *discount* is
    applied for each line that follows. The expected reward after each choice is added to *counts*
    (W + 1, C).
    """
    ways = len(hits)
    limit = len(rewards) - 1
    expected = np.zeros((limit + 1, ways))

    for tokens in range(limit, start - 1, -1):
        for way in range(ways):
            after = tokens + costs[way]
            if reached[tokens, way] == 0.0 or after > limit:
                continue
            if hits[way]:
                expected[tokens, way] = rewards[after]
                continue
            for choice in range(chances.shape[1]):
                next_way = following(way, choice, ways)
                value = chances[way, choice] * expected[after, next_way]
                expected[tokens, way] += discount * value
                counts[way, choice] += reached[tokens, way] * value

    for choice in range(chances.shape[1]):
        counts[ways, choice] += chances[ways, choice] * expected[start, choice]
    return expected


def rewards_of(weights: str, solved: np.ndarray) -> np.ndarray:
    """Return the weight of a correct completion by its tokens.

    Args:
        weights: ``all`` and ``line`` keep every correct completion, ``shortest`` the shortest one
            of :data:`GROUP`, ``puzzle`` as many of each solved puzzle, and ``pass@K`` rewards as
            the gradient of pass@K does.
        solved: P(solved) by tokens, of one puzzle.
    """
    accuracy = solved.sum()
    if weights == "shortest":
        not_longer = solved.cumsum()
        shorter = not_longer - solved
        is_shortest = (1 - shorter) ** GROUP - (1 - not_longer) ** GROUP
        return np.divide(is_shortest, solved, out=np.zeros_like(solved), where=solved > 0)
    if weights == "puzzle":
        return np.full_like(solved, 1 / accuracy if accuracy > 0 else 0.0)
    if weights.startswith("pass@"):
        k = int(weights.removeprefix("pass@"))
        return np.full_like(solved, k * (1 - accuracy) ** (k - 1))
    return np.ones_like(solved)


def improved(
    training: Sequence[Search], chances: np.ndarray, weights: str, power: float, limit: int
) -> np.ndarray:
    """Return the chances after one round; *power* is the length of its step, 1 for Bayes' rule."""
    counts = np.zeros_like(chances)
    discount = DISCOUNT if weights == "line" else 1.0
    for search in training:
        reached, solved = forward(*search, chances, limit)
        rewards = rewards_of(weights, solved)
        backward(*search, chances, reached, rewards, discount, counts)

    ratios = np.divide(counts, chances, out=np.zeros_like(counts), where=chances > 0)
    highest = ratios.max(axis=1, keepdims=True)
    scaled = np.divide(ratios, highest, out=np.ones_like(ratios), where=highest > 0)
    stepped = chances * scaled**power
    return stepped / stepped.sum(axis=1, keepdims=True)


def measure(test: Sequence[Search], chances: np.ndarray, limit: int = LIMIT) -> dict[str, float]:
    """Return mean accuracy, pass@k, and tokens of a completion (*limit* if it does not end) of a
    policy.
    """
    accuracies, lengths = [], []
    for search in test:
        solved = forward(*search, chances, limit)[1]
        accuracies.append(solved.sum())
        lengths.append(solved @ np.arange(limit + 1) + (1 - solved.sum()) * limit)
    failed = 1 - np.array(accuracies)
    measured = {f"pass@{k}": float((1 - failed**k).mean()) for k in KS}
    return measured | {"tokens": float(np.mean(lengths))}


def rounds(
    training: Sequence[Search],
    chances: np.ndarray,
    weights: str = "all",
    power: float = 1.0,
    limit: int = LIMIT,
) -> Iterator[np.ndarray]:
    """Yield the chances after 0, 1, 2, ... rounds from *chances*, without end."""
    while True:
        yield chances
        chances = improved(training, chances, weights, power, limit)


def curve(
    training: Sequence[Search],
    test: Sequence[Search],
    chances: np.ndarray,
    count: int,
    weights: str = "all",
    power: float = 1.0,
    limit: int = LIMIT,
) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield the measures on *test* after each reported number of rounds up to *count*."""
    for done, policy in zip(
        range(count + 1), rounds(training, chances, weights, power, limit), strict=False
    ):
        if done in REPORTED or done == count:
            yield done, measure(test, policy, limit)


def puzzles(data: Path, split: str, size: int, count: int | None = None) -> list[Search]:
    """Return the puzzles of *size* numbers of a split, as countdown-tiny writes them."""
    ref = reference.find_model("countdown-tiny")
    rows = [row for row in jsonl.read_rows(data / f"{split}.jsonl") if len(row["nums"]) == size]
    return searches(rows[:count], traces.plan_of(ref.manifest.facts), token_counter(ref))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path("artifacts/data"))
    parser.add_argument("--size", type=int, default=4, help="numbers of a puzzle")
    parser.add_argument("--puzzles", type=int, default=TRAINING, help="training puzzles")
    parser.add_argument("--limit", type=int, default=LIMIT, help="tokens of a completion")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument(
        "--weights", default="all", help="all, line, shortest, puzzle or pass@K, as pass@2"
    )
    parser.add_argument("--power", type=float, default=1.0, help="length of a round's step")
    parser.add_argument("--sheet", action="store_true", help="write results/exact.json")
    args = parser.parse_args()

    training = puzzles(args.data, "train", args.size, args.puzzles)
    test = puzzles(args.data, "test", args.size)
    settings: Sequence[tuple[str, float, int]] = SHEET
    if not args.sheet:
        settings = [(args.weights, args.power, args.rounds)]

    sheet = []
    for weights, power, count in settings:
        print(f"{weights}, power {power:g}")
        print("rounds", *(f"{name:>8}" for name in (*(f"pass@{k}" for k in KS), "tokens")))
        start = uniform(len(test[0].hits))
        after = {}
        for done, measured in curve(training, test, start, count, weights, power, args.limit):
            after[str(done)] = {name: round(value, 4) for name, value in measured.items()}
            cells = [
                f"{value:8.1f}" if value > 1 else f"{value:8.4f}" for value in measured.values()
            ]
            print(f"{done:6}", *cells, flush=True)
        sheet.append({"weights": weights, "power": power, "rounds": after})
    if args.sheet:
        result = {"numbers": args.size, "limit": args.limit, "training": len(training)}
        text = json.dumps({"machine": bench.machine(), **result, "settings": sheet}, indent=2)
        (bench.RESULTS / "exact.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
