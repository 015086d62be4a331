"""Accuracy of searches in the trace language without a mistake, exact: of the teacher of
countdown-tiny, and of its plan in order.

    python -m benchmarks.teacher [--data artifacts/data] [--model countdown-tiny]

Two policies: the teacher, which draws its order, and the plan followed way by way. The plan and the
tokens are those of the model. Writes ``results/teacher.json``.
"""

import argparse
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from benchmarks import bench
from countdown_rl.models import reference
from countdown_rl.tasks import jsonl
from stages.recipes.tiny import traces

BUDGETS = (128, 256, 512, 1_024)


def in_order(count: int) -> np.ndarray:
    """The chances of a policy that never skips any of *count* ways, for
    :func:`traces.expected_accuracy`.
    """
    return np.eye(1, traces.window(count)).repeat(count + 1, axis=0)


def token_counter(ref: reference.ModelRef) -> Callable[[list[str]], list[int]]:
    """The function that counts the tokens of texts of traces, with the end of the last, as *ref*
    reads them.
    """
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
    parser.add_argument("--data", type=Path, default=Path("artifacts/data"))
    parser.add_argument("--model", default="countdown-tiny")
    args = parser.parse_args()
    rows = jsonl.read_rows(args.data / "test.jsonl")
    ref = reference.find_model(args.model)
    plan = traces.plan_of(ref.manifest.facts)
    count_tokens = token_counter(ref)

    measured = {}
    for name, chances_of in {"teacher": None, "plan in order": in_order}.items():
        by_size: dict[int, list[list[float]]] = {}
        for row in rows:
            size = len(row["nums"])
            chances = chances_of(len(plan[size])) if chances_of else None
            solved = traces.expected_accuracy(
                row, plan, count_tokens, budgets=BUDGETS, chances=chances
            )
            by_size.setdefault(size, []).append(solved)
        parts = {f"{size} numbers": of_size for size, of_size in sorted(by_size.items())}
        parts["all"] = list(chain.from_iterable(by_size.values()))
        measured[name] = {
            part: dict(
                zip(map(str, BUDGETS), np.mean(solved, axis=0).round(4).tolist(), strict=True)
            )
            for part, solved in parts.items()
        }
    bench.save("teacher", {"n": len(rows), "accuracy by tokens": measured})


if __name__ == "__main__":
    main()
