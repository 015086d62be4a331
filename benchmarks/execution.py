"""Execution: mistakes in the searches of evaluations, by operator and kind, in percent.

    python -m benchmarks.execution NAME=EVAL [NAME=EVAL ...] [--model countdown-tiny] [--data artifacts/data]

EVAL is a directory that ``countdown-rl eval`` wrote for the test puzzles of the data. Each line is compared with the
one that the plan of the model gives. Writes ``results/execution.json``.
"""

import argparse
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import bench
from countdown_rl.data import jsonl
from countdown_rl.evaluation import results
from countdown_rl.models import reference
from countdown_rl.tasks import traces

_LINE = re.compile(r"(\d+)\. (.*?) (no|yes)")
_STEP = re.compile(r"(\d+) ([-+*/]) (\d+)(?: = (\d+))?")


def examine(completion: str, row: Mapping[str, Any], plan: traces.Plan) -> Counter[str]:
    """Count the mistakes in *completion*, an answer to the puzzle *row*.

    ``steps +`` and ``wrong +`` count steps by operator, and those with a wrong result; ``lines`` are complete lines.
    Of these, ``repeated`` have the number of an earlier line, ``other line`` have correct steps that are not those of
    their way, ``wrong verdict`` have yes for no or no for yes. ``malformed`` is 1 if a line cannot be parsed, ``first
    line right`` is 1 if the first line reaches the target.
    """
    counts: Counter[str] = Counter()
    numbers = sorted(row["nums"], reverse=True)
    ways = plan.get(len(numbers), ())
    thinking, closed, _ = completion.partition("</think>")
    first, *lines = thinking.removeprefix("\n").split("\n")
    counts["wrong heading"] += first != " ".join(map(str, numbers))
    seen: set[int] = set()
    for text in lines[:-1]:  # the last one is empty or incomplete
        match = _LINE.fullmatch(text)
        steps = [_STEP.fullmatch(step) for step in match[2].split(", ")] if match else []
        if match is None or not all(steps):
            counts["malformed"] = 1
            continue
        number = int(match[1])
        wrong = _steps(steps, counts)
        counts["lines"] += 1
        counts["repeated"] += number in seen
        seen.add(number)
        expected = traces.execute(numbers, ways[number - 1], row["target"]) if 0 < number <= len(ways) else None
        counts["other line"] += not wrong and (expected is None or match[2] != expected.text)
        last = steps[-1][4]
        counts["wrong verdict"] += (match[3] == "yes") != (last is not None and int(last) == row["target"])
        if counts["lines"] == 1 and not wrong:
            counts["first line right"] += last is not None and int(last) == row["target"]
    counts["completions"] = 1
    counts["completions with a repeat"] = int(counts["repeated"] > 0)
    counts["unfinished"] = int(not closed)
    return counts


def _steps(steps: Sequence[Any], counts: Counter[str]) -> bool:
    """Count the *steps* of one line; return True if one of them is wrong."""
    wrong = False
    for step in steps:
        result = traces.combine(int(step[1]), step[2], int(step[3])) if int(step[3]) else None
        claimed = None if step[4] is None else int(step[4])
        counts[f"steps {step[2]}"] += 1
        counts[f"wrong {step[2]}"] += result != claimed
        wrong = wrong or result != claimed
    return wrong


def summary(counts: Iterable[Counter[str]]) -> dict[str, float]:
    """Return percentages over the *counts* of many completions."""
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    completions, lines = max(1, total["completions"]), max(1, total["lines"])
    figures = {
        f"wrong {operator}": 100 * total[f"wrong {operator}"] / max(1, total[f"steps {operator}"])
        for operator in "+-*/"
    }
    figures |= {name: 100 * total[name] / lines for name in ("repeated", "other line", "wrong verdict")}
    names = ("completions with a repeat", "malformed", "wrong heading", "first line right", "unfinished")
    figures |= {name: 100 * total[name] / completions for name in names}
    return {name: round(figure, 2) for name, figure in figures.items()} | {
        "lines per completion": round(total["lines"] / completions, 2)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("evals", nargs="+", metavar="NAME=EVAL")
    parser.add_argument("--model", default="countdown-tiny")
    parser.add_argument("--data", type=Path, default=Path("artifacts/data"))
    args = parser.parse_args()
    plan = {int(size): ways for size, ways in reference.resolve(args.model).manifest.facts["plan"].items()}
    rows = {row["id"]: row for row in jsonl.read_rows(args.data / "test.jsonl")}
    measured = {}
    for name, path in (pair.split("=", 1) for pair in args.evals):
        result = results.read(Path(path))
        counts = [examine(sample["completion"], rows[sample["id"]], plan) for sample in result.samples]
        measured[name] = {
            "decoding": result.metrics["decoding"],
            "accuracy": result.metrics["accuracy"],
            "interval": result.metrics["interval"],
            "execution": summary(counts),
        }
    bench.save("execution", measured)


if __name__ == "__main__":
    main()
