"""Ceiling of the trace language: accuracy of the teacher of ``sft``, exact, without a mistake in execution.

    python -m benchmarks.teacher [--data artifacts/data] [--model countdown-tiny]

Two policies: the teacher, which draws its order, and the plan followed way by way. The plan and the tokens are those
of the model. Writes ``results/teacher.json``.
"""

import argparse
from pathlib import Path
from statistics import fmean

from transformers import AutoTokenizer

from benchmarks import bench
from countdown_rl.data import jsonl
from countdown_rl.models import reference
from countdown_rl.tasks import traces

BUDGETS = (128, 256, 512, 1_024)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path("artifacts/data"))
    parser.add_argument("--model", default="countdown-tiny")
    args = parser.parse_args()
    rows = jsonl.read_rows(args.data / "test.jsonl")
    ref = reference.resolve(args.model)
    plan = {int(count): ways for count, ways in ref.manifest.facts["plan"].items()}
    tokenizer = AutoTokenizer.from_pretrained(reference.files(ref))

    def count_tokens(texts: list[str]) -> list[int]:
        # The end of a trace is one token more.
        lengths = map(len, tokenizer(texts, add_special_tokens=False)["input_ids"])
        return [length + text.endswith("</answer>") for length, text in zip(lengths, texts, strict=True)]

    results = {}
    for name, in_order in (("teacher", False), ("plan in order", True)):
        accuracy = [
            traces.expected_accuracy(row, plan, count_tokens, budgets=BUDGETS, in_order=in_order) for row in rows
        ]
        sizes = {"all": accuracy} | {
            f"{size} numbers": [one for row, one in zip(rows, accuracy, strict=True) if len(row["nums"]) == size]
            for size in sorted(plan)
        }
        results[name] = {
            key: dict(
                zip(map(str, BUDGETS), (round(fmean(column), 4) for column in zip(*part, strict=True)), strict=True)
            )
            for key, part in sizes.items()
        }
    bench.save("teacher", {"n": len(rows), "accuracy by tokens": results})


if __name__ == "__main__":
    main()
