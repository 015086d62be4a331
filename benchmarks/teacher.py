"""Accuracy of searches in the trace language without a mistake, exact: of the teacher of countdown-tiny, and of its
plan in order.

    python -m benchmarks.teacher [--data artifacts/data] [--model countdown-tiny] [NAME=EVAL ...]

Two policies: the teacher, which draws its order, and the plan followed way by way. The plan and the tokens are those
of the model. Beside them models, of which EVAL is a greedy evaluation on the same puzzles: what they solved within as
many tokens. Writes ``results/teacher.json``.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
from tokenizers import Tokenizer

from benchmarks import bench
from countdown_rl.evaluation import results
from countdown_rl.models import reference
from countdown_rl.tasks import jsonl
from stages.recipes.tiny import traces

BUDGETS = (128, 256, 512, 1_024)


def in_order(count: int) -> np.ndarray:
    """The chances of a policy that never skips any of *count* ways, for :func:`traces.expected_accuracy`."""
    return np.eye(1, traces.window(count)).repeat(count + 1, axis=0)


def token_counter(ref: reference.ModelRef) -> Callable[[list[str]], list[int]]:
    """The function that counts the tokens of texts of traces, with the end of the last, as *ref* reads them."""
    tokenizer = Tokenizer.from_file(str(reference.local_path(ref) / "tokenizer.json"))

    def count(texts: list[str]) -> list[int]:
        encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [
            len(encoding) + text.endswith("</answer>")
            for encoding, text in zip(encodings, texts, strict=True)
        ]

    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("evals", nargs="*", metavar="NAME=EVAL")
    parser.add_argument("--data", type=Path, default=Path("artifacts/data"))
    parser.add_argument("--model", default="countdown-tiny")
    args = parser.parse_args()
    rows = jsonl.read_rows(args.data / "test.jsonl")
    ref = reference.find_model(args.model)
    plan = traces.plan_of(ref.manifest.facts)
    count_tokens = token_counter(ref)

    def summary(
        solved: list[list[float]], budgets: Sequence[int] = BUDGETS
    ) -> dict[str, dict[str, float]]:
        """Means of *solved* (rows, budgets), of all rows and by the count of numbers."""
        parts = {"all": solved} | {
            f"{size} numbers": [
                one for row, one in zip(rows, solved, strict=True) if len(row["nums"]) == size
            ]
            for size in sorted(plan)
        }
        return {
            name: {
                str(budget): round(fmean(of_row[place] for of_row in part), 4)
                for place, budget in enumerate(budgets)
            }
            for name, part in parts.items()
        }

    measured = {
        name: summary(
            [
                traces.expected_accuracy(
                    row,
                    plan,
                    count_tokens,
                    budgets=BUDGETS,
                    chances=chances and chances(len(plan[len(row["nums"])])),
                )
                for row in rows
            ]
        )
        for name, chances in (("teacher", None), ("plan in order", in_order))
    }
    for name, path in (pair.split("=", 1) for pair in args.evals):
        result = results.read(Path(path))
        budgets = [budget for budget in BUDGETS if budget <= result.metrics.decoding.max_new_tokens]
        solved = [
            [sample.grade.correct and sample.tokens <= budget for budget in budgets]
            for sample in result.samples
        ]
        measured[name] = summary(solved, budgets)
    bench.save("teacher", {"n": len(rows), "accuracy by tokens": measured})


if __name__ == "__main__":
    main()
