"""What graded completions say: shares with their intervals, over all and by kind of puzzle."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import comb
from statistics import median, pstdev
from typing import Any

from countdown_rl.evaluation.statistics import bootstrap, mean_interval
from countdown_rl.puzzle import canonical
from countdown_rl.puzzle.rules import DEFAULT_RULE
from countdown_rl.tasks.countdown import CountdownRow

Sample = dict[str, Any]
Row = Mapping[str, Any]

#: Kinds of puzzle by how many solutions they have: name and the fewest of the kind.
_SOLUTIONS = (("1", 1), ("2-4", 2), ("5-9", 5), ("10+", 10))


def measure(samples: Sequence[Sample], rows: Sequence[Row]) -> dict[str, Any]:
    """Shares with 95% intervals: over all, and by count of numbers, operators needed and number of solutions.

    *samples* has the same number of completions for every row, those of one row together. With more than
    one, ``accuracy`` is the mean over puzzles of the share that is right, ``draws`` how far that goes up
    and down from one draw of all puzzles to the next, ``pass_at`` the share of puzzles that one of k
    completions solves, and ``majority`` the share in which the answer given most often is right.
    """
    each = len(samples) // len(rows)
    right = [sum(sample["correct"] for sample in samples[at * each :][:each]) for at in range(len(rows))]

    def group(key: Callable[[Row], Any]) -> dict[str, Any]:
        members: dict[Any, list[int]] = {}
        for row, count in zip(rows, right, strict=True):
            name = key(row)
            if name is not None:
                members.setdefault(name, []).append(count)
        return {str(name): _share(members[name], each) for name in sorted(members)}

    by_solutions = group(lambda row: _many(row.get("solutions")))
    reasons = Counter(sample["reason"] for sample in samples if sample["reason"])
    return {
        **_share(right, each),
        **(_several(samples, right, each) if each > 1 else {}),
        "by_size": group(lambda row: len(row["nums"]) if "nums" in row else None),
        "by_needs": group(lambda row: row.get("needs")),
        "by_solutions": {name: by_solutions[name] for name, _ in _SOLUTIONS if name in by_solutions},
        **_refusals(samples, rows, right, each),
        "format": _mean(samples, "format"),
        "strict_format": _mean(samples, "strict_format"),
        "truncated": _mean(samples, "truncated"),
        "mean_tokens": round(sum(sample["tokens"] for sample in samples) / len(samples), 2),
        "intervals": {key: _interval(samples, key, each) for key in ("format", "strict_format", "truncated")},
        "tokens": _tokens(samples),
        "reasons": dict(sorted(reasons.items(), key=lambda item: (-item[1], item[0]))),
        "task": rows[0].get("task") or CountdownRow.task,
        "rules": sorted({row.get("rule") or DEFAULT_RULE for row in rows if "nums" in row}),
    }


def pass_at(k: int, right: int, each: int) -> float:
    """The chance that k of *each* completions, drawn without replacement, have one of the *right* ones.

    The unbiased estimator of Chen et al. 2021, "Evaluating Large Language Models Trained on Code".
    """
    return 1 - comb(each - right, k) / comb(each, k)


def vote(samples: Sequence[Sample]) -> bool:
    """Whether the answer given most often in *samples*, completions of one puzzle, is right.

    Answers are told apart by what they are (:mod:`countdown_rl.puzzle.canonical`); of those given equally often the
    one that came first counts. No answer is no vote.
    """
    claims = [canonical.claim(sample) for sample in samples]
    counts = Counter(claim for claim in claims if claim is not None)
    if not counts:
        return False
    # `most_common` keeps the order of arrival among equals.
    return bool(samples[claims.index(counts.most_common(1)[0][0])]["correct"])


def _several(samples: Sequence[Sample], right: Sequence[int], each: int) -> dict[str, Any]:
    votes = [vote(samples[at : at + each]) for at in range(0, len(samples), each)]
    return {
        "draws": _draws(samples, each),
        "pass_at": _pass_at(right, each),
        "majority": _share([int(right) for right in votes], 1, "share"),
    }


def _draws(samples: Sequence[Sample], each: int) -> dict[str, float]:
    shares = [sum(sample["correct"] for sample in samples[draw::each]) * each / len(samples) for draw in range(each)]
    return {"sd": round(pstdev(shares), 6), "lowest": round(min(shares), 6), "highest": round(max(shares), 6)}


def _pass_at(right: Sequence[int], each: int) -> dict[str, Any]:
    found = {}
    for k in range(1, each + 1):
        values = [pass_at(k, count, each) for count in right]
        found[str(k)] = {"share": round(sum(values) / len(values), 6), "interval": _rounded(bootstrap(values))}
    return found


def _many(solutions: int | None) -> str | None:
    """The kind of a puzzle by its number of solutions; None where that is not known, or there are none."""
    names = [name for name, fewest in _SOLUTIONS if solutions is not None and solutions >= fewest]
    return names[-1] if names else None


def _refusals(samples: Sequence[Sample], rows: Sequence[Row], right: Sequence[int], each: int) -> dict[str, Any]:
    """How often "impossible" was said where it is so (of puzzles without a solution), and where it is not."""
    impossible = [count for row, count in zip(rows, right, strict=True) if row.get("solutions") == 0]
    refused = [sum(s["reason"] == "not-impossible" for s in samples[at * each :][:each]) for at in range(len(rows))]
    wrong = [count for row, count in zip(rows, refused, strict=True) if "nums" in row and row.get("solutions") != 0]
    return {
        **({"impossible": _share(impossible, each)} if impossible else {}),
        **({"wrong_refusals": _share(wrong, each, "share")} if wrong else {}),
    }


def _tokens(samples: Sequence[Sample]) -> dict[str, Any]:
    """Lengths in tokens; ``per_right_answer`` is what all completions took for each right one."""
    lengths = sorted(sample["tokens"] for sample in samples)
    sides = {
        side: [sample["tokens"] for sample in samples if sample["correct"] is value]
        for side, value in (("right", True), ("wrong", False))
    }
    right = len(sides["right"])
    return {
        "median": median(lengths),
        "p95": lengths[-(-95 * len(lengths) // 100) - 1],
        "longest": lengths[-1],
        **{f"mean_{side}": round(sum(some) / len(some), 2) if some else None for side, some in sides.items()},
        "per_right_answer": round(sum(lengths) / right, 2) if right else None,
    }


def _share(right: Sequence[int], each: int, name: str = "accuracy") -> dict[str, Any]:
    return {
        name: round(sum(right) / (len(right) * each), 6),
        "n": len(right),
        "correct" if name == "accuracy" else "count": sum(right),
        "interval": _rounded(mean_interval([count / each for count in right], each)),
    }


def _interval(samples: Sequence[Sample], key: str, each: int) -> list[float]:
    values = [sum(one[key] for one in samples[at : at + each]) / each for at in range(0, len(samples), each)]
    return _rounded(mean_interval(values, each))


def _mean(samples: Sequence[Sample], key: str) -> float:
    return round(sum(sample[key] for sample in samples) / len(samples), 6)


def _rounded(interval: tuple[float, float]) -> list[float]:
    return [round(limit, 6) for limit in interval]
