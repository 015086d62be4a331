"""Scores of graded completions: shares with 95% intervals, over all puzzles and by group."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from math import comb
from statistics import fmean, median
from typing import Any

from countdown_rl.core.errors import InputError
from countdown_rl.evaluation.sample import Accuracy, Budget, Sample, Scores, Share, Tokens, by_puzzle
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
    puzzles, per_row = by_puzzle(samples, len(rows)), len(samples) // len(rows)

    def share(flag: Callable[[Sample], bool | None]) -> Accuracy:
        return _accuracy([sum(bool(flag(sample)) for sample in puzzle) for puzzle in puzzles], per_row)

    def budget(limit: int) -> Budget:
        def is_correct(sample: Sample) -> bool:
            text = sample.beginning(limit)
            return sample.grade.correct if text is None else sample.row.grade(text).correct

        truncated = share(lambda sample: sample.truncated or sample.beginning(limit) is not None)
        return Budget(**vars(share(is_correct)), truncated=truncated.accuracy)

    correct = [sum(sample.grade.correct for sample in puzzle) for puzzle in puzzles]
    members: dict[str, dict[str, list[int]]] = {}
    for row, count in zip(rows, correct, strict=True):
        for group, value in row.groups.items():
            members.setdefault(group, {}).setdefault(value, []).append(count)
    groups = {}
    for group, values in members.items():
        ordered = sorted(values, key=partial(_position, [*task(rows[0].task).group(group).names]))
        groups[group] = {value: _accuracy(values[value], per_row, runs) for value in ordered}
    passes, per_run = {}, per_row // runs
    if max(pass_at, default=1) > per_run:
        raise InputError(f"pass@{max(pass_at)} needs that many completions of each row, not {per_run}.")
    for k in (pass_at or [1 << power for power in range(per_run.bit_length())]) if per_run > 1 else ():
        shares = [puzzle_share(puzzle, k, runs) for puzzle in puzzles]
        interval = rounded(mean_interval(shares, runs * (per_run // k)))  # trials: disjoint sets of k completions
        passes[k] = Share(share=round(sum(shares) / len(shares), 6), interval=interval)
    majority = None
    if per_row > 1 and runs == 1:
        voted = _accuracy([int(vote(puzzle)) for puzzle in puzzles], 1)
        majority = Share(share=voted.accuracy, n=voted.n, count=voted.correct, interval=voted.interval)
    forms = {"format": share(lambda s: s.grade.format), "strict_format": share(lambda s: s.grade.strict_format)}
    if all(sample.truncated is not None for sample in samples):
        forms["truncated"] = share(lambda s: s.truncated)
    accuracies: dict[str, Any] = {name: form.accuracy for name, form in forms.items()}
    lengths = [sample.tokens for sample in samples if sample.tokens is not None]
    lengths_known = len(lengths) == len(samples)
    reasons = Counter(sample.grade.reason for sample in samples if sample.grade.reason)
    return Scores(
        **vars(_accuracy(correct, per_row, runs)),
        pass_at=passes,
        majority=majority,
        budgets={limit: budget(limit) for limit in limits},
        groups=groups,
        **accuracies,
        mean_tokens=round(sum(lengths) / len(lengths), 2) if lengths_known else None,
        intervals={name: form.interval for name, form in forms.items()},
        tokens=_tokens(samples, lengths) if lengths_known else None,
        reasons=dict(sorted(reasons.items(), key=lambda item: (-item[1], item[0]))),
        task=rows[0].task,
        rules=sorted({row.rule for row in rows} - {""}),
    )


def pass_at_k(k: int, correct: int, n: int) -> float:
    """pass@k (Chen et al. 2021, arXiv:2107.03374): the chance that *k* of *n* completions include a *correct* one."""
    return 1 - comb(n - correct, k) / comb(n, k)


def puzzle_share(samples: Sequence[Sample], k: int = 1, runs: int = 1) -> float:
    """pass@k of the *samples* of one puzzle, the mean over *runs*."""
    return fmean(
        pass_at_k(k, sum(sample.grade.correct for sample in of_run), len(of_run)) for of_run in by_puzzle(samples, runs)
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


def _tokens(samples: Sequence[Sample], counts: Sequence[int]) -> Tokens:
    lengths, graded = sorted(counts), list(zip(samples, counts, strict=True))
    right, wrong = ([count for s, count in graded if s.grade.correct is correct] for correct in (True, False))
    return Tokens(
        median=median(lengths),
        p95=lengths[-(-95 * len(lengths) // 100) - 1],
        longest=lengths[-1],
        mean_correct=round(sum(right) / len(right), 2) if right else None,
        mean_incorrect=round(sum(wrong) / len(wrong), 2) if wrong else None,
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
