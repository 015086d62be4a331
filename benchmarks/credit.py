"""The credit of ``--discount`` for each line of a search, against what the line is worth: exact,
puzzles of 4 numbers.

    data=artifacts/data
    SEEDS=46 ARMS=grpo stages/recipes/controls.sh countdown-tiny $data OUT
    sampled="--data $data/valid.jsonl --limit 400 --samples 8 --temperature 1"
    sampled="$sampled --precision nf4 --max-new-tokens 256"
    countdown-rl eval --model countdown-tiny $sampled --out OUT/start
    countdown-rl eval --model OUT/grpo-46 $sampled --out OUT/grpo
    python -m benchmarks.credit OUT/start OUT/grpo

What a choice is worth is the probability of success after it less that before it, by dynamic
programming over the tokens that are left, for a policy that makes each choice, after each way of
the plan, as often as the model did. The credit is the advantage that GRPO gives the tokens of its
line, of groups of as many completions. Their correlation says how much of the credit is signal; its
95% interval is a bootstrap over puzzles. Writes ``results/credit.json``.
"""

import argparse
import re
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import bench, exact
from benchmarks.teacher import token_counter
from countdown_rl.evaluation import results
from countdown_rl.models import reference
from countdown_rl.training.grpo import advantages
from stages.recipes.tiny import traces

DISCOUNTS = (1.0, 0.95, 0.9, 0.8, 0.7, 0.5)
SIZE = 4
LINE = re.compile(rf"(\d+)\. .* ({'|'.join(sorted(traces.SKIPS, key=len, reverse=True))})\n")


def choices(completion: str) -> list[tuple[int, int, int]]:
    """The way, the choice after it, and its place among all lines, of each line that does not reach
    the target.
    """
    found = (
        (place, LINE.fullmatch(line))
        for place, line in enumerate(completion.splitlines(keepends=True))
    )
    return [
        (int(match[1]) - 1, traces.SKIPS.index(match[2]), place) for place, match in found if match
    ]


def frequencies(completions: list[str], ways: int) -> np.ndarray:
    """How often each choice follows each way, (W + 1, C), with one choice of each kind added."""
    counts = np.ones((ways + 1, traces.window(ways)))
    for completion in completions:
        for way, skip, _ in choices(completion):
            counts[way, skip] += 1
    return counts / counts.sum(1, keepdims=True)


def success(puzzle: exact.Search, chances: np.ndarray) -> np.ndarray:
    """Return P(success within the limit) from each place on: (limit + 1, W), by tokens so far and
    way of the next line.
    """
    everywhere = np.ones((exact.LIMIT + 1, len(puzzle.hits)))
    rewards = np.ones(exact.LIMIT + 1)
    return exact.backward(*puzzle, chances, everywhere, rewards, 1.0, np.zeros_like(chances))


def worth(puzzle: exact.Search, chances: np.ndarray, completion: str) -> list[tuple[int, float]]:
    """Return the place of each line with a choice, and what the choice adds to the probability of
    success.
    """
    expected = success(puzzle, chances)
    ways = len(puzzle.hits)
    tokens = puzzle.start
    worths = []
    for way, skip, place in choices(completion):
        before = expected[min(tokens, exact.LIMIT), way]
        tokens += puzzle.costs[way]
        following = traces.next_ways(way, ways)[skip]
        after = expected[tokens, following] if tokens <= exact.LIMIT else 0.0
        worths.append((place, after - before))
    return worths


def credits(completions: list[str], correct: list[bool], discount: float) -> np.ndarray:
    """The advantage of each line of a group: (completions, lines)."""
    lines = [
        [line.endswith("\n") for line in completion.splitlines(keepends=True)]
        for completion in completions
    ]
    longest = max(map(len, lines))
    mask = torch.tensor([[[1] * len(line) + [0] * (longest - len(line)) for line in lines]])
    ends = torch.tensor([[line + [False] * (longest - len(line)) for line in lines]])
    rewards = torch.tensor([correct], dtype=torch.float32)
    if discount == 1:
        return (advantages.group(rewards)[..., None] * mask)[0].numpy()
    return advantages.discounted(rewards, mask, ends, discount)[0].numpy()


def correlation(pairs: list[np.ndarray]) -> dict[str, Any]:
    """Pearson's correlation of pairs (n, 2), an array for each puzzle, and its interval over 2,000
    draws of puzzles.
    """
    sums = np.array([[len(of), *of.sum(0), *(of**2).sum(0), of.prod(1).sum()] for of in pairs])
    draws = np.random.default_rng(0).multinomial(
        len(sums), np.full(len(sums), 1 / len(sums)), 2_000
    )
    n, x, y, xx, yy, xy = (np.vstack([np.ones(len(sums)), draws]) @ sums).T
    found = (n * xy - x * y) / np.sqrt((n * xx - x**2) * (n * yy - y**2))
    return {
        "correlation": round(found[0], 4),
        "interval": np.quantile(found[1:], (0.025, 0.975)).round(4).tolist(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("evals", nargs="+", type=Path)
    parser.add_argument("--model", default="countdown-tiny")
    args = parser.parse_args()
    ref = reference.find_model(args.model)
    plan, count_tokens = traces.plan_of(ref.manifest.facts), token_counter(ref)
    rows: dict[str, Any] = {}
    for path in args.evals:
        samples = [
            sample for sample in results.read(path).samples if len(sample.row["nums"]) == SIZE
        ]
        chances = frequencies([sample.completion for sample in samples], len(plan[SIZE]))
        pairs: dict[float, list[np.ndarray]] = {discount: [] for discount in DISCOUNTS}
        for _, together in groupby(samples, key=lambda sample: sample.row["id"]):
            group = list(together)
            completions = [sample.completion for sample in group]
            correct = [sample.grade.correct for sample in group]
            (puzzle,) = exact.searches([group[0].row], plan, count_tokens)
            values = [worth(puzzle, chances, completion) for completion in completions]
            for discount in DISCOUNTS:
                credit = credits(completions, correct, discount)
                own = []
                for completion_credit, lines in zip(credit, values, strict=True):
                    own += [(completion_credit[place], value) for place, value in lines]
                pairs[discount].append(np.array(own).reshape(-1, 2))
        rows[path.name] = {
            "completions": len(samples),
            "lines": sum(map(len, pairs[1.0])),
            "discounts": {str(discount): correlation(of) for discount, of in pairs.items()},
        }
    bench.save("credit", {"limit": exact.LIMIT, "evaluations": rows})


if __name__ == "__main__":
    main()
