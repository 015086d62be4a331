"""Scores of graded completions: shares with 95% intervals, of all puzzles and by breakdown."""

import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from math import comb, inf
from operator import truediv
from statistics import fmean, median

from countdown_rl.evaluation.sample import Accuracy, Sample, Scores, Share, Tokens, by_puzzle
from countdown_rl.evaluation.statistics import Interval, mean_interval
from countdown_rl.tasks.registry import task

#: Seconds after which a search for solutions is told.
SLOW = 1.0
#: The completions of each puzzle.
Puzzles = Sequence[Sequence[Sample]]


def measure(
    samples: Sequence[Sample], runs: int = 1, on_note: Callable[[str], None] = lambda _: None
) -> Scores:
    """The scores of *samples*.

    With several completions per row, ``accuracy`` is the mean share of correct ones, which is
    pass@1. Where all rows have equally many, ``pass_at`` holds pass@k for the powers of two, and
    ``majority`` the accuracy of majority voting.

    Args:
        samples: graded completions, those of a row side by side.
        runs: to which the completions of a row belong, one after another; scores are means over
            runs.
        on_note: called if the search for puzzles without a solution takes more than a second.
    """
    puzzles = by_puzzle(samples)
    per_row = len(puzzles[0])
    if any(len(puzzle) != per_row for puzzle in puzzles):
        per_row = 1
    ks = []
    if per_row > runs:
        ks = [1 << power for power in range((per_row // runs).bit_length())]

    forms = {
        "format": _share(puzzles, lambda sample: sample.grade.format),
        "strict_format": _share(puzzles, lambda sample: sample.grade.strict_format),
    }
    if all(sample.truncated is not None for sample in samples):
        forms["truncated"] = _share(puzzles, lambda sample: bool(sample.truncated))
    tokens = _tokens(samples)
    rules = {sample.row.rule for sample in samples}
    return Scores(
        **vars(accuracy(puzzles, runs)),
        pass_at={k: _pass_at(puzzles, k, runs) for k in ks},
        majority=_majority(puzzles) if per_row > 1 and runs == 1 else None,
        groups=_breakdowns(puzzles, runs, on_note),
        format=forms["format"].accuracy,
        strict_format=forms["strict_format"].accuracy,
        truncated=forms["truncated"].accuracy if "truncated" in forms else None,
        intervals={name: share.interval for name, share in forms.items()},
        mean_tokens=round(fmean(sample.tokens or 0 for sample in samples), 2) if tokens else None,
        tokens=tokens,
        reasons=_reasons(samples),
        task=samples[0].row.task,
        rules=sorted(rules - {""}),
    )


def accuracy(puzzles: Puzzles, runs: int = 1) -> Accuracy:
    """The mean share of correct completions of *puzzles*."""
    return _share(puzzles, lambda sample: sample.grade.correct, runs)


def _share(puzzles: Puzzles, condition: Callable[[Sample], bool], runs: int = 1) -> Accuracy:
    """The share of the completions that meet *condition*."""
    counts = [sum(map(condition, puzzle)) for puzzle in puzzles]
    sizes = list(map(len, puzzles))
    share, interval = _mean(list(map(truediv, counts, sizes)), min(sizes))
    correct = round(sum(counts) / runs, 6) if runs > 1 else sum(counts)
    return Accuracy(accuracy=share, n=len(puzzles), correct=correct, interval=interval)


def _mean(shares: Sequence[float], trials: int = 1) -> tuple[float, Interval]:
    return round(fmean(shares), 6), rounded(mean_interval(shares, trials))


def _pass_at(puzzles: Puzzles, k: int, runs: int) -> Share:
    shares = [puzzle_share(puzzle, k, runs) for puzzle in puzzles]
    disjoint_sets = len(puzzles[0]) // runs // k
    share, interval = _mean(shares, runs * disjoint_sets)
    return Share(share=share, interval=interval)


def _majority(puzzles: Puzzles) -> Share:
    votes = list(map(vote, puzzles))
    share, interval = _mean(votes)
    return Share(share=share, n=len(votes), count=sum(votes), interval=interval)


def _breakdowns(
    puzzles: Puzzles, runs: int, on_note: Callable[[str], None]
) -> dict[str, dict[str, Accuracy]]:
    """The accuracy of the *puzzles* with each value, by breakdown such as ``numbers``."""
    members: dict[str, dict[str, list[Sequence[Sample]]]] = {}
    due = time.monotonic() + SLOW
    for puzzle in puzzles:
        if time.monotonic() > due:
            on_note("Searching for solutions of the puzzles that no completion solves ...")
            due = inf
        # An expression that is correct is a solution; else the solver has to search for one.
        solved = any(sample.grade.correct and sample.grade.value for sample in puzzle)
        for name, value in puzzle[0].row.evaluated_groups(solved).items():
            members.setdefault(name, {}).setdefault(value, []).append(puzzle)

    of_task = task(puzzles[0][0].row.task)
    breakdowns = {}
    for name, by_value in members.items():
        labels = list(of_task.group(name).names)
        ordered = sorted(by_value, key=partial(_position, labels))
        breakdowns[name] = {value: accuracy(by_value[value], runs) for value in ordered}
    return breakdowns


def _reasons(samples: Sequence[Sample]) -> dict[str, int]:
    """The number of incorrect completions by reason, the most frequent first."""
    counts = Counter(sample.grade.reason for sample in samples if sample.grade.reason)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def pass_at_k(k: int, correct: int, n: int) -> float:
    """The chance that *k* of *n* completions include a *correct* one.

    pass@k of Chen et al. 2021, arXiv:2107.03374.
    """
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

    Answers are compared in canonical form (:meth:`Row.vote_key`); of equally frequent ones the
    first counts. Completions without an answer do not vote.
    """
    votes: dict[str, list[bool]] = {}
    for sample in samples:
        grade = sample.grade
        if grade.answer is not None:
            key = sample.row.vote_key(grade.answer, grade.value)
            votes.setdefault(key, []).append(grade.correct)
    return max(votes.values(), key=len, default=[False])[0]


def _position(names: Sequence[str], value: str) -> tuple[bool, float, str]:
    """Sort key of a breakdown's *value*: numbers first, then its *names* in their order."""
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
