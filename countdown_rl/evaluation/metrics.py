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
    per_row = len(samples) // len(rows)
    per_run = per_row // runs
    if max(pass_at, default=1) > per_run:
        raise InputError(
            f"pass@{max(pass_at)} needs that many completions of each row, not {per_run}."
        )
    flags: dict[str, Callable[[Sample], bool | None]] = {
        "correct": lambda sample: sample.grade.correct,
        "format": lambda sample: sample.grade.format,
        "strict_format": lambda sample: sample.grade.strict_format,
        "truncated": lambda sample: sample.truncated,
        "unknown": lambda sample: sample.truncated is None,
    }
    for limit in limits:
        flags |= {
            f"correct {limit}": partial(_correct, limit),
            f"truncated {limit}": partial(_truncated, limit),
        }
    counts: dict[str, list[int]] = {name: [] for name in flags}
    members: dict[str, dict[str, list[int]]] = {}
    ks = (pass_at or [1 << power for power in range(per_run.bit_length())]) if per_run > 1 else ()
    shares: dict[int, list[float]] = {k: [] for k in ks}
    votes, reasons = list[int](), Counter[str]()
    lengths: dict[bool, list[int | None]] = {True: [], False: []}
    for row, puzzle in zip(
        rows, map(list, by_puzzle(samples, len(rows))), strict=True
    ):  # the only look at them
        for name, flag in flags.items():
            counts[name].append(sum(bool(flag(sample)) for sample in puzzle))
        for group, value in row.groups.items():
            members.setdefault(group, {}).setdefault(value, []).append(counts["correct"][-1])
        for k in ks:
            shares[k].append(puzzle_share(puzzle, k, runs))
        if per_row > 1 and runs == 1:
            votes.append(int(vote(puzzle)))
        for sample in puzzle:
            reasons[sample.grade.reason] += 1
            lengths[sample.grade.correct].append(sample.tokens)
    share = {name: _accuracy(values, per_row) for name, values in counts.items()}
    groups = {}
    for group, values in members.items():
        ordered = sorted(values, key=partial(_position, [*task(rows[0].task).group(group).names]))
        groups[group] = {value: _accuracy(values[value], per_row, runs) for value in ordered}
    passes = {}
    for k, of_puzzles in shares.items():
        interval = rounded(
            mean_interval(of_puzzles, runs * (per_run // k))
        )  # trials: disjoint sets of k completions
        passes[k] = Share(share=round(sum(of_puzzles) / len(rows), 6), interval=interval)
    majority = None
    if votes:
        voted = _accuracy(votes, 1)
        majority = Share(
            share=voted.accuracy, n=voted.n, count=voted.correct, interval=voted.interval
        )
    forms = ["format", "strict_format"] + ([] if any(counts["unknown"]) else ["truncated"])
    accuracies: dict[str, Any] = {name: share[name].accuracy for name in forms}
    right, wrong = ([n for n in part if n is not None] for part in lengths.values())
    lengths_known = len(right) + len(wrong) == len(samples)
    return Scores(
        **vars(_accuracy(counts["correct"], per_row, runs)),
        pass_at=passes,
        majority=majority,
        budgets={
            limit: Budget(
                **vars(share[f"correct {limit}"]), truncated=share[f"truncated {limit}"].accuracy
            )
            for limit in limits
        },
        groups=groups,
        **accuracies,
        intervals={name: share[name].interval for name in forms},
        mean_tokens=round(sum(right + wrong) / len(samples), 2) if lengths_known else None,
        tokens=_tokens(right, wrong) if lengths_known else None,
        reasons={
            name: n
            for name, n in sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
            if name
        },
        task=rows[0].task,
        rules=sorted({row.rule for row in rows} - {""}),
    )


def _correct(limit: int, sample: Sample) -> bool:
    text = sample.beginning(limit)
    return sample.grade.correct if text is None else sample.row.grade(text).correct


def _truncated(limit: int, sample: Sample) -> bool:
    return bool(sample.truncated) or sample.beginning(limit) is not None


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


def _tokens(right: Sequence[int], wrong: Sequence[int]) -> Tokens:
    lengths = sorted([*right, *wrong])
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
