"""Causes of lost points: faults in completions, and the points that each of them costs."""

import re
from collections import Counter
from collections.abc import Sequence

from countdown_rl.core.errors import InputError
from countdown_rl.core.types import JsonObject
from countdown_rl.evaluation.results import Result
from countdown_rl.evaluation.sample import Sample
from countdown_rl.tasks.response_format import Piece
from countdown_rl.tasks.task import Row

#: Faults of a completion as a whole; those of its equations are named like "incorrect +".
LIMIT, FORMAT, ANSWER = "token limit", "format", "answer inconsistent with reasoning"
_NOUNS = {"+": "sum", "-": "difference", "*": "product", "/": "quotient"}
#: Their names for people, where they differ.
LABELS = {f"incorrect {operator}": f"incorrect {noun}" for operator, noun in _NOUNS.items()}
#: Characters of the longest expression that replaces a result.
MAX_LENGTH = 4_096


def diagnose(result: Result) -> JsonObject:
    """The causes of the points that *result* lost, the largest first.

    Returns ``lost``, the share of incorrect completions; ``causes``, each with the completions that
    have the fault, its occurrences, and the ``points``: the share of completions that are
    incorrect, and correct with that fault repaired (an upper bound if ``at_most``); and
    ``unexplained``, the share of completions that no single repair makes correct. Raises InputError
    if *result* is of a baseline.
    """
    if result.metrics.is_baseline:
        raise InputError(
            f"{result.metrics.model.source} is a baseline, which has no faults; give a model."
        )
    occurrences: Counter[str] = Counter()
    completions: Counter[str] = Counter()
    repaired: Counter[str] = Counter()
    lost = 0
    unexplained = 0
    for sample in result.samples:
        pieces = sample.row.pieces(sample.completion)
        equations = [piece for piece in pieces if piece.kind in ("correct", "incorrect")]
        faults = _faults_of(sample, equations)
        occurrences.update(faults)
        completions.update(faults.keys())
        if sample.grade.correct:
            continue
        repairs = [
            fault for fault in faults if fault == LIMIT or _solves(sample.row, equations, fault)
        ]
        repaired.update(repairs)
        lost += 1
        unexplained += not repairs

    n = len(result.samples)
    causes: list[JsonObject] = []
    for fault, count in completions.items():
        causes.append(
            {
                "cause": fault,
                "points": round(repaired[fault] / n, 6),
                "completions": count,
                "occurrences": occurrences[fault],
                "at_most": fault == LIMIT,  # the text beyond it is unknown
            }
        )
    causes.sort(key=lambda cause: (-cause["points"], cause["at_most"], cause["cause"]))
    return {
        "lost": round(lost / n, 6),
        "causes": causes,
        "unexplained": round(unexplained / n, 6),
    }


def _faults_of(sample: Sample, equations: Sequence[Piece]) -> Counter[str]:
    """The occurrences of each fault in *sample*, whose completion has *equations*."""
    faults: Counter[str] = Counter()
    for equation in equations:
        faults.update(_faults(equation))
    grade = sample.grade
    if sample.truncated:
        faults[LIMIT] = 1
    elif not grade.correct and grade.value is None:
        faults[FORMAT] = 1
    elif not grade.correct and equations:
        results = {equation.sides[1] for equation in equations}
        faults[ANSWER] = int(grade.value not in results)
    return +faults


def _faults(equation: Piece) -> set[str]:
    if equation.kind == "correct":
        return set()
    return {f"incorrect {operator}" for operator in equation.operators}


def _solves(row: Row, equations: Sequence[Piece], fault: str) -> bool:
    """Return True if one of *equations* reaches the right answer once *fault* is repaired.

    The result of a repaired equation replaces the wrong number in later equations, unless the
    prompt has that number.
    """
    known: dict[str, str] = {}
    prompt = set(re.findall(r"\d+", " ".join(turn["content"] for turn in row.messages())))
    for equation in equations:
        if equation.kind == "incorrect" and fault not in _faults(equation):
            continue
        left, claim = equation.sides
        text = re.sub(r"\d+", lambda n: n[0] if n[0] in prompt else known.get(n[0], n[0]), left)
        if not row.judge(text)[1]:
            return True
        if len(text) < MAX_LENGTH:
            known[claim] = f"({text})"
    return False
