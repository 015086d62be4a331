"""Figures of graded completions: shares with their 95% intervals, over all puzzles and by kind."""

import re
from collections import Counter
from collections.abc import Sequence
from math import comb
from statistics import median

from countdown_rl.evaluation.sample import Accuracy, Figures, Sample, Share, Tokens
from countdown_rl.evaluation.statistics import mean_interval
from countdown_rl.tasks.task import Row


def measure(samples: Sequence[Sample], rows: Sequence[Row], pass_at: Sequence[int] = ()) -> Figures:
    """The figures of *samples*: as many completions for every one of *rows*, those of a row side by side.

    With several completions per row, ``accuracy`` is the mean over puzzles of the share correct, which is pass@1,
    ``pass_at`` holds pass@k for each k of *pass_at* (by default the powers of two), and ``majority`` the accuracy of
    majority voting.
    """
    per_row = len(samples) // len(rows)
    groups = [samples[start : start + per_row] for start in range(0, len(samples), per_row)]
    counts = [sum(sample.grade.correct for sample in group) for group in groups]
    members: dict[str, dict[str, list[float]]] = {}
    for row, count in zip(rows, counts, strict=True):
        for group, value in row.groups.items():
            members.setdefault(group, {}).setdefault(value, []).append(count)
    reasons = Counter(sample.grade.reason for sample in samples if sample.grade.reason)
    passes = {}
    for k in (pass_at or [1 << power for power in range(per_row.bit_length())]) if per_row > 1 else ():
        values = [pass_at_k(k, count, per_row) for count in counts]
        interval = rounded(mean_interval(values, per_row // k))  # a puzzle has so many disjoint sets of k completions
        passes[k] = Share(share=round(sum(values) / len(values), 6), interval=interval)
    form, strict, truncated = (
        _share([sum(map(flag, group)) for group in groups], per_row)
        for flag in (lambda s: s.grade.format, lambda s: s.grade.strict_format, lambda s: s.truncated)
    )
    return Figures(
        **vars(_accuracy(counts, per_row)),
        pass_at=passes,
        majority=_share([int(vote(group)) for group in groups], 1) if per_row > 1 else None,
        groups={
            group: {value: _accuracy(values[value], per_row) for value in sorted(values, key=_by_number)}
            for group, values in members.items()
        },
        format=form.share,
        strict_format=strict.share,
        truncated=truncated.share,
        mean_tokens=round(sum(sample.tokens for sample in samples) / len(samples), 2),
        intervals={"format": form.interval, "strict_format": strict.interval, "truncated": truncated.interval},
        tokens=_tokens(samples),
        reasons=dict(sorted(reasons.items(), key=lambda item: (-item[1], item[0]))),
        task=rows[0].task,
        rules=sorted({row.rule for row in rows} - {""}),
    )


def pass_at_k(k: int, correct: int, n: int) -> float:
    """pass@k: the probability that *k* of *n* completions include one of the *correct* ones.

    The unbiased estimator of Chen et al. 2021, "Evaluating Large Language Models Trained on Code".
    """
    return 1 - comb(n - correct, k) / comb(n, k)


def vote(samples: Sequence[Sample]) -> bool:
    """Return True if the most frequent answer among *samples*, completions of one puzzle, is correct.

    Answers are compared in their canonical form (:meth:`Row.vote_key`); of equally frequent ones the first counts. A
    completion without an answer does not vote.
    """
    row, grades = samples[0].row, [sample.grade for sample in samples]
    keys = [None if grade.answer is None else row.vote_key(grade.answer, grade.value) for grade in grades]
    counts = Counter(key for key in keys if key is not None)
    if not counts:
        return False
    # `most_common` keeps the order of arrival among equals.
    return grades[keys.index(counts.most_common(1)[0][0])].correct


def _by_number(value: str) -> tuple[float, str]:
    """Sort key of a group's value: by the number that it begins with, if there is one."""
    digits = re.match(r"\d+", value)
    return (float(digits[0]) if digits else -1.0, value)


def _tokens(samples: Sequence[Sample]) -> Tokens:
    lengths = sorted(sample.tokens for sample in samples)
    right, wrong = ([s.tokens for s in samples if s.grade.correct is correct] for correct in (True, False))
    return Tokens(
        median=median(lengths),
        p95=lengths[-(-95 * len(lengths) // 100) - 1],
        longest=lengths[-1],
        mean_right=round(sum(right) / len(right), 2) if right else None,
        mean_wrong=round(sum(wrong) / len(wrong), 2) if wrong else None,
        per_right_answer=round(sum(lengths) / len(right), 2) if right else None,
    )


def _share(counts: Sequence[float], per_row: int) -> Share:
    mean = _accuracy(counts, per_row)
    return Share(share=mean.accuracy, n=mean.n, count=mean.correct, interval=mean.interval)


def _accuracy(counts: Sequence[float], per_row: int) -> Accuracy:
    return Accuracy(
        accuracy=round(sum(counts) / (len(counts) * per_row), 6),
        n=len(counts),
        correct=round(sum(counts), 2),
        interval=rounded(mean_interval([count / per_row for count in counts], per_row)),
    )


def rounded(interval: tuple[float, float]) -> tuple[float, float]:
    """The ends of *interval* as they are recorded."""
    return round(interval[0], 6), round(interval[1], 6)
