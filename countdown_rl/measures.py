"""What graded completions say: shares with their intervals, over all and by kind of puzzle."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import comb
from typing import Any

from countdown_rl import tasks
from countdown_rl.puzzle import DEFAULT_RULE
from countdown_rl.statistics import mean_interval

Sample = dict[str, Any]


def measure(samples: Sequence[Sample], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Shares with 95% intervals: over all, by count of numbers, by the operators that are needed.

    *samples* has the same number of completions for every row, those of one row together. With more than
    one, ``accuracy`` is the mean over puzzles of the share that is right, and ``pass_at`` the share of
    puzzles that one of k completions solves, for k in powers of two and all of them.
    """
    each = len(samples) // len(rows)
    right = [sum(sample["correct"] for sample in samples[at * each :][:each]) for at in range(len(rows))]

    def group(key: Callable[[Mapping[str, Any]], Any]) -> dict[str, Any]:
        members: dict[Any, list[int]] = {}
        for row, count in zip(rows, right, strict=True):
            name = key(row)
            if name is not None:
                members.setdefault(name, []).append(count)
        return {str(name): _share(members[name], each) for name in sorted(members)}

    reasons = Counter(sample["reason"] for sample in samples if sample["reason"])
    return {
        **_share(right, each),
        **({"pass_at": _pass_at(right, each)} if each > 1 else {}),
        "by_size": group(lambda row: len(row["nums"]) if "nums" in row else None),
        "by_needs": group(lambda row: row.get("needs")),
        "format": _mean(samples, "format"),
        "strict_format": _mean(samples, "strict_format"),
        "truncated": _mean(samples, "truncated"),
        "mean_tokens": round(sum(sample["tokens"] for sample in samples) / len(samples), 2),
        "reasons": dict(sorted(reasons.items(), key=lambda item: (-item[1], item[0]))),
        "task": tasks.of_row(rows[0]).name,
        "rules": sorted({row.get("rule") or DEFAULT_RULE for row in rows if "nums" in row}),
    }


def pass_at(k: int, right: int, each: int) -> float:
    """The chance that k of *each* completions, drawn without replacement, have one of the *right* ones.

    The unbiased estimator of Chen et al. 2021, "Evaluating Large Language Models Trained on Code".
    """
    return 1 - comb(each - right, k) / comb(each, k)


def _pass_at(right: Sequence[int], each: int) -> dict[str, Any]:
    ks = sorted({*(2**power for power in range(each.bit_length())), each})
    found = {}
    for k in ks:
        values = [pass_at(k, count, each) for count in right]
        low, high = mean_interval(values, each)
        found[str(k)] = {"share": round(sum(values) / len(values), 6), "interval": [round(low, 6), round(high, 6)]}
    return found


def _share(right: Sequence[int], each: int) -> dict[str, Any]:
    low, high = mean_interval([count / each for count in right], each)
    return {
        "accuracy": round(sum(right) / (len(right) * each), 6),
        "n": len(right),
        "correct": sum(right),
        "interval": [round(low, 6), round(high, 6)],
    }


def _mean(samples: Sequence[Sample], key: str) -> float:
    return round(sum(sample[key] for sample in samples) / len(samples), 6)
