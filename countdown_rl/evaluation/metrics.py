"""Scores of graded completions: shares with 95% intervals, over all puzzles and by group."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from math import comb
from statistics import fmean, median
from typing import Any

from countdown_rl.core.errors import InputError
from countdown_rl.evaluation.sample import (
    Accuracy,
    Budget,
    Sample,
    Scores,
    Share,
    Tokens,
    by_puzzle,
)
from countdown_rl.evaluation.statistics import Interval, mean_interval
from countdown_rl.tasks.registry import task
from countdown_rl.tasks.task import Row


def measure(
    samples: Sequence[Sample],
    rows: Sequence[Row],
    pass_at: Sequence[int] = (),
    runs: int = 1,
    limits: Sequence[int] = (),
) -> Scores:
    """The scores of *samples*: equally many completions of each of *rows*, those of a row side by side.

    With several completions per row, ``accuracy`` is the mean share of correct ones, which is pass@1. ``pass_at`` holds
    pass@k for each k of *pass_at*, by default the powers of two. ``majority`` is the accuracy of majority voting. The
    completions of a row belong to so many *runs*, one after another, and scores are means over runs. *limits* are the
    token limits for ``budgets``, the accuracy of the beginnings of the same completions.
    """
    puzzles = by_puzzle(samples, len(rows))
    per_row = len(puzzles[0])
    per_run = per_row // runs
    if max(pass_at, default=1) > per_run:
        raise InputError(
            f"pass@{max(pass_at)} needs that many completions of each row, not {per_run}."
        )
    correct = [_count(puzzle, lambda sample: sample.grade.correct) for puzzle in puzzles]
    forms = {
        "format": _share(puzzles, lambda sample: sample.grade.format),
        "strict_format": _share(puzzles, lambda sample: sample.grade.strict_format),
    }
    if all(sample.truncated is not None for sample in samples):
        forms["truncated"] = _share(puzzles, lambda sample: bool(sample.truncated))
    accuracies: dict[str, Any] = {name: share.accuracy for name, share in forms.items()}
    tokens = _tokens(samples)
    return Scores(
        **vars(_accuracy(correct, per_row, runs)),
        pass_at={k: _pass_at(puzzles, k, runs) for k in reported_ks(pass_at, per_run)},
        majority=_majority(puzzles) if per_row > 1 and runs == 1 else None,
        budgets={limit: _budget(puzzles, limit) for limit in limits},
        groups=_groups(rows, correct, per_row, runs),
        **accuracies,
        intervals={name: share.interval for name, share in forms.items()},
        mean_tokens=round(fmean(sample.tokens or 0 for sample in samples), 2) if tokens else None,
        tokens=tokens,
        reasons=_reasons(samples),
        task=rows[0].task,
        rules=sorted({row.rule for row in rows} - {""}),
    )


def reported_ks(requested: Sequence[int], per_run: int) -> Sequence[int]:
    """The k of pass@k to report: those *requested*, else the powers of two up to *per_run*."""
    if per_run == 1:
        return ()
    return requested or [1 << power for power in range(per_run.bit_length())]


def _count(samples: Sequence[Sample], flag: Callable[[Sample], bool]) -> int:
    return sum(map(flag, samples))


def _share(puzzles: Sequence[Sequence[Sample]], flag: Callable[[Sample], bool]) -> Accuracy:
    """The share of the completions for which *flag* is True."""
    return _accuracy([_count(puzzle, flag) for puzzle in puzzles], len(puzzles[0]))


def _pass_at(puzzles: Sequence[Sequence[Sample]], k: int, runs: int) -> Share:
    shares = [puzzle_share(puzzle, k, runs) for puzzle in puzzles]
    disjoint_sets = len(puzzles[0]) // runs // k
    interval = rounded(mean_interval(shares, runs * disjoint_sets))
    return Share(share=round(sum(shares) / len(shares), 6), interval=interval)


def _majority(puzzles: Sequence[Sequence[Sample]]) -> Share:
    voted = _accuracy([int(vote(puzzle)) for puzzle in puzzles], 1)
    return Share(share=voted.accuracy, n=voted.n, count=voted.correct, interval=voted.interval)


def _budget(puzzles: Sequence[Sequence[Sample]], limit: int) -> Budget:
    """The accuracy of the first *limit* tokens of each completion."""

    def correct(sample: Sample) -> bool:
        text = sample.beginning(limit)
        return sample.grade.correct if text is None else sample.row.grade(text).correct

    def truncated(sample: Sample) -> bool:
        return bool(sample.truncated) or sample.beginning(limit) is not None

    shares = vars(_share(puzzles, correct))
    return Budget(**shares, truncated=_share(puzzles, truncated).accuracy)


def _groups(
    rows: Sequence[Row], correct: Sequence[int], per_row: int, runs: int
) -> dict[str, dict[str, Accuracy]]:
    """The accuracy by the value of each group of *rows*, from their numbers of *correct* completions."""
    counts: dict[str, dict[str, list[int]]] = {}
    for row, count in zip(rows, correct, strict=True):
        for group, value in row.groups.items():
            counts.setdefault(group, {}).setdefault(value, []).append(count)
    groups = {}
    for group, values in counts.items():
        names = list(task(rows[0].task).group(group).names)
        ordered = sorted(values, key=partial(_position, names))
        groups[group] = {value: _accuracy(values[value], per_row, runs) for value in ordered}
    return groups


def _reasons(samples: Sequence[Sample]) -> dict[str, int]:
    """The number of incorrect completions by reason, the most frequent first."""
    counts = Counter(sample.grade.reason for sample in samples if sample.grade.reason)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def pass_at_k(k: int, correct: int, n: int) -> float:
    """pass@k (Chen et al. 2021, arXiv:2107.03374): the chance that *k* of *n* completions include a *correct* one."""
    return 1 - comb(n - correct, k) / comb(n, k)


def puzzle_share(samples: Sequence[Sample], k: int = 1, runs: int = 1) -> float:
    """pass@k of the *samples* of one puzzle, the mean over *runs*."""
    return fmean(
        pass_at_k(k, sum(sample.grade.correct for sample in of_run), len(of_run))
        for of_run in by_puzzle(samples, runs)
    )


def vote(samples: Sequence[Sample]) -> bool:
    """Return True if the most frequent answer among the *samples* of one puzzle is correct.

    Answers are compared in canonical form (:meth:`Row.vote_key`); of equally frequent ones the first counts.
    Completions without an answer do not vote.
    """
    votes: dict[str, list[bool]] = {}
    for row, grade in ((sample.row, sample.grade) for sample in samples):
        if grade.answer is not None:
            votes.setdefault(row.vote_key(grade.answer, grade.value), []).append(grade.correct)
    return max(votes.values(), key=len, default=[False])[0]


def _position(names: Sequence[str], value: str) -> tuple[bool, float, str]:
    """Sort key of a group's value: numbers first, then the *names* of the group in their order."""
    digits = re.match(r"\d+", value)
    index = names.index(value) if value in names else len(names)
    return not digits, float(digits[0]) if digits else index, value


def _tokens(samples: Sequence[Sample]) -> Tokens | None:
    """The lengths of *samples*; None if one is unknown."""
    right: list[int] = []
    wrong: list[int] = []
    for sample in samples:
        if sample.tokens is None:
            return None
        (right if sample.grade.correct else wrong).append(sample.tokens)
    lengths = sorted([*right, *wrong])
    return Tokens(
        median=median(lengths),
        p95=lengths[-(-95 * len(lengths) // 100) - 1],
        longest=lengths[-1],
        mean_correct=round(fmean(right), 2) if right else None,
        mean_incorrect=round(fmean(wrong), 2) if wrong else None,
        per_correct_answer=round(sum(lengths) / len(right), 2) if right else None,
    )


def _accuracy(counts: Sequence[int], per_row: int, runs: int = 1) -> Accuracy:
    return Accuracy(
        accuracy=round(sum(counts) / (len(counts) * per_row), 6),
        n=len(counts),
        correct=round(sum(counts) / runs, 6) if runs > 1 else sum(counts),
        interval=rounded(mean_interval([count / per_row for count in counts], per_row)),
    )


def rounded(interval: Interval) -> Interval:
    return round(interval[0], 6), round(interval[1], 6)
