"""Scores of graded completions: shares with 95% intervals, over all puzzles and by group."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from math import comb
from operator import truediv
from statistics import fmean, median
from typing import Any

from countdown_rl.core.errors import InputError
from countdown_rl.evaluation.sample import Accuracy, Sample, Scores, Share, Tokens, by_puzzle
from countdown_rl.evaluation.statistics import Interval, mean_interval
from countdown_rl.tasks.registry import task


def measure(samples: Sequence[Sample], pass_at: Sequence[int] = (), runs: int = 1) -> Scores:
    """The scores of *samples*, those of a row side by side.

    With several completions per row, ``accuracy`` is the mean share of correct ones, which is pass@1. Where all rows
    have equally many, ``pass_at`` holds pass@k for each k of *pass_at*, by default the powers of two, and ``majority``
    the accuracy of majority voting.

    Args:
        samples: graded completions.
        pass_at: each k of pass@k.
        runs: to which the completions of a row belong, one after another; scores are means over runs.
    """
    puzzles = by_puzzle(samples)
    counts = set(map(len, puzzles))
    per_row = counts.pop() if len(counts) == 1 else 1
    per_run = per_row // runs
    if max(pass_at, default=1) > per_run:
        raise InputError(
            f"pass@{max(pass_at)} needs that many completions of each row, not {per_run}."
        )

    forms = {
        "format": _share(puzzles, lambda sample: sample.grade.format),
        "strict_format": _share(puzzles, lambda sample: sample.grade.strict_format),
    }
    if all(sample.truncated is not None for sample in samples):
        forms["truncated"] = _share(puzzles, lambda sample: bool(sample.truncated))
    form_shares: dict[str, Any] = {name: share.accuracy for name, share in forms.items()}
    tokens = _tokens(samples)
    rules = {sample.row.rule for sample in samples}
    return Scores(
        **vars(accuracy(puzzles, runs)),
        pass_at={k: _pass_at(puzzles, k, runs) for k in reported_ks(pass_at, per_run)},
        majority=_majority(puzzles) if per_row > 1 and runs == 1 else None,
        groups=_groups(puzzles, runs),
        **form_shares,
        intervals={name: share.interval for name, share in forms.items()},
        mean_tokens=round(fmean(sample.tokens or 0 for sample in samples), 2) if tokens else None,
        tokens=tokens,
        reasons=_reasons(samples),
        task=samples[0].row.task,
        rules=sorted(rules - {""}),
    )


def reported_ks(requested: Sequence[int], per_run: int) -> Sequence[int]:
    """The k of pass@k to report: those *requested*, else the powers of two up to *per_run*."""
    if per_run == 1:
        return ()
    return requested or [1 << power for power in range(per_run.bit_length())]


def accuracy(puzzles: Sequence[Sequence[Sample]], runs: int = 1) -> Accuracy:
    """The mean share of correct completions of *puzzles*."""
    return _share(puzzles, lambda sample: sample.grade.correct, runs)


def _share(
    puzzles: Sequence[Sequence[Sample]], flag: Callable[[Sample], bool], runs: int = 1
) -> Accuracy:
    """The share of the completions for which *flag* is True."""
    counts = [sum(map(flag, puzzle)) for puzzle in puzzles]
    sizes = list(map(len, puzzles))
    shares = list(map(truediv, counts, sizes))
    return Accuracy(
        accuracy=round(fmean(shares), 6),
        n=len(puzzles),
        correct=round(sum(counts) / runs, 6) if runs > 1 else sum(counts),
        interval=rounded(mean_interval(shares, min(sizes))),
    )


def _pass_at(puzzles: Sequence[Sequence[Sample]], k: int, runs: int) -> Share:
    shares = [puzzle_share(puzzle, k, runs) for puzzle in puzzles]
    disjoint_sets = len(puzzles[0]) // runs // k
    interval = rounded(mean_interval(shares, runs * disjoint_sets))
    return Share(share=round(fmean(shares), 6), interval=interval)


def _majority(puzzles: Sequence[Sequence[Sample]]) -> Share:
    votes = list(map(vote, puzzles))
    return Share(
        share=round(fmean(votes), 6),
        n=len(votes),
        count=sum(votes),
        interval=rounded(mean_interval(votes)),
    )


def _groups(puzzles: Sequence[Sequence[Sample]], runs: int) -> dict[str, dict[str, Accuracy]]:
    """The accuracy by the value of each group of the rows of *puzzles*."""
    members: dict[str, dict[str, list[Sequence[Sample]]]] = {}
    for puzzle in puzzles:
        for group, value in puzzle[0].row.evaluated_groups.items():
            members.setdefault(group, {}).setdefault(value, []).append(puzzle)
    of_task = task(puzzles[0][0].row.task)
    groups = {}
    for group, values in members.items():
        names = list(of_task.group(group).names)
        ordered = sorted(values, key=partial(_position, names))
        groups[group] = {value: accuracy(values[value], runs) for value in ordered}
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
    correct = [sample.grade.correct for sample in samples]
    if k == 1:
        return fmean(correct)
    size = len(correct) // runs
    starts = range(0, len(correct), size)
    return fmean(pass_at_k(k, sum(correct[start : start + size]), size) for start in starts)


def vote(samples: Sequence[Sample]) -> bool:
    """Return True if the most frequent answer among the *samples* of one puzzle is correct.

    Answers are compared in canonical form (:meth:`Row.vote_key`); of equally frequent ones the first counts.
    Completions without an answer do not vote.
    """
    votes: dict[str, list[bool]] = {}
    for sample in samples:
        grade = sample.grade
        if grade.answer is not None:
            key = sample.row.vote_key(grade.answer, grade.value)
            votes.setdefault(key, []).append(grade.correct)
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
        side = right if sample.grade.correct else wrong
        side.append(sample.tokens)
    lengths = sorted(right + wrong)
    return Tokens(
        median=median(lengths),
        p95=lengths[-(-95 * len(lengths) // 100) - 1],
        longest=lengths[-1],
        mean_correct=round(fmean(right), 2) if right else None,
        mean_incorrect=round(fmean(wrong), 2) if wrong else None,
        per_correct_answer=round(sum(lengths) / len(right), 2) if right else None,
    )


def rounded(interval: Interval) -> Interval:
    return round(interval[0], 6), round(interval[1], 6)
