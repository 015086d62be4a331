"""Does a model choose by the puzzle? What it tries on puzzles of 4 numbers, and the same choices
without the puzzle.

    python -m benchmarks.judging --model START --training DATA [--data DIR] NAME=EVAL[,EVAL] ...

Each EVAL is a sampled evaluation of START, a model that was pretrained with ``--judge``, or of one
trained from it. Of each NAME: the share of the lines that end with skipping the poor ways; the
information that the puzzle's kind gives on how many ways are skipped, in bits a line; and the
accuracy of its *marginal order*, a policy that skips after each way as many as the model does there
over all puzzles, and makes no mistake (exact). A model that ignores the puzzle solves no more than
its marginal order.

Beside them, without a mistake and exact: the teacher, its plan way by way, and a teacher that
always skips the poor ways, which is what imitating it would give. Its judgements are counted again
on DATA, the data of the pretraining. Writes ``results/judging.json``.
"""

import argparse
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path
from statistics import fmean

import numpy as np

from benchmarks import bench
from benchmarks.teacher import in_order, token_counter
from countdown_rl.evaluation import results
from countdown_rl.evaluation.sample import Sample
from countdown_rl.models import reference
from countdown_rl.tasks import jsonl
from stages.recipes.tiny import traces
from stages.recipes.tiny.judge import Judge

SIZE, BUDGET = 4, 256
#: The end of a line that does not reach the target.
END = re.compile(r"^\d+\. .* (no.*)$", re.MULTILINE)


def kind(sample: Sample) -> int:
    """Return the kind of the puzzle of *sample*."""
    return traces.kind(sorted(sample.row["nums"], reverse=True), sample.row["target"])


def skips(completion: str, count: int) -> Iterator[tuple[int, int]]:
    """Yield for each line of *completion* its way (-1: the beginning), and how many ways are
    skipped after it.
    """
    ways = [-1, *(int(number) - 1 for number in re.findall(r"^(\d+)\. ", completion, re.MULTILINE))]
    for way, following in pairwise(ways):
        skip = traces.skipped(way, following)
        if max(way, following) < count and skip < traces.poor_window(count):
            yield way, skip


def skips_of(samples: Iterable[Sample], count: int) -> np.ndarray:
    """Return how often each number of ways is skipped, by kind of puzzle and way: (kinds, ways + 1,
    W).
    """
    counts = np.zeros((traces.KINDS, count + 1, traces.poor_window(count)))
    for sample in samples:
        own = counts[kind(sample)]
        for way, skip in skips(sample.completion, count):
            own[way, skip] += 1
    return counts


def information(counts: np.ndarray) -> float:
    """Conditional mutual information of the first and the last axis of *counts* given the second,
    in bits.
    """
    joint = counts / counts.sum()
    of_kind, of_skip, of_way = (
        joint.sum(2, keepdims=True),
        joint.sum(0, keepdims=True),
        joint.sum((0, 2), keepdims=True),
    )
    known = joint > 0
    ratio = np.divide(joint * of_way, of_kind * of_skip, where=known, out=np.ones_like(joint))
    return float((joint[known] * np.log2(ratio[known])).sum())


def bits(samples: Sequence[Sample], count: int) -> float:
    """:func:`information` of *samples*, less what few counts feign: the same with completions of
    other puzzles.
    """
    order = np.random.default_rng(0).permutation(len(samples))
    others = [
        replace(sample, completion=samples[other].completion)
        for sample, other in zip(samples, order, strict=True)
    ]
    return information(skips_of(samples, count)) - information(skips_of(others, count))


def skipping_poor(good: Sequence[bool], share: float) -> np.ndarray:
    """The chances of a teacher that skips the poor ways after a *share* of the lines, else
    draws.
    """
    width, longest = traces.window(len(good)), traces.poor_window(len(good))
    judged = np.eye(longest)[[traces.poor_ways(way, good) for way in range(len(good))]]
    drawn = np.zeros((len(good) + 1, longest))
    drawn[:, :width] = 1 / width
    drawn[:-1] = share * judged + (1 - share) * drawn[:-1]
    return drawn


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("evals", nargs="+", metavar="NAME=EVAL")
    parser.add_argument("--training", type=Path, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=Path, default=Path("artifacts/data"))
    args = parser.parse_args()
    ref = reference.find_model(args.model)
    plan = traces.plan_of(ref.manifest.facts if ref.manifest else {})
    count_tokens, count = token_counter(ref), len(plan[SIZE])
    training, rows = (
        [row for row in jsonl.read_rows(path) if len(row["nums"]) == SIZE]
        for path in (args.training / "train.jsonl", args.data / "test.jsonl")
    )
    judge = Judge(training, plan[SIZE])

    def expected(policies: Iterable[np.ndarray], *, judged: bool = True) -> float:
        solved = [
            traces.expected_accuracy(
                row, plan, count_tokens, budgets=[BUDGET], chances=chances, judged=judged
            )[0]
            for row, chances in zip(rows, policies, strict=True)
        ]
        return round(fmean(solved), 4)

    exact = {
        "teacher": expected(skipping_poor(judge(row), traces.POOR_SHARE) for row in rows),
        "plan in order": expected((in_order(count) for _ in rows), judged=False),
        "poor ways always skipped": expected(skipping_poor(judge(row), 1.0) for row in rows),
    }
    models = {}
    for name, paths in (pair.split("=", 1) for pair in args.evals):
        every = chain.from_iterable(results.read(Path(path)).samples for path in paths.split(","))
        samples = [sample for sample in every if len(sample.row["nums"]) == SIZE]
        marginal = skips_of(samples, count).sum(0) + 1e-9
        ends = [end for sample in samples for end in END.findall(sample.completion)]
        models[name] = {
            "completions": len(samples),
            "accuracy": round(fmean(sample.grade.correct for sample in samples), 4),
            "marginal_order": expected([marginal / marginal.sum(1, keepdims=True)] * len(rows)),
            "skips_poor": round(fmean(end == traces.SKIP_POOR for end in ends), 4),
            "bits": round(bits(samples, count), 4),
        }
    bench.save(
        "judging", {"n": len(rows), "budget": BUDGET, "without a mistake": exact, "models": models}
    )


if __name__ == "__main__":
    main()
