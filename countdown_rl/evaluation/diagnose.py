"""Causes of lost points: faults in the completions of an evaluation, and the points that each fault costs."""

import re
from collections import Counter
from typing import Any, NamedTuple

from countdown_rl.core.errors import InputError
from countdown_rl.evaluation.results import Result
from countdown_rl.tasks.countdown import arithmetic, expression
from countdown_rl.tasks.task import Row

#: Faults of a completion as a whole; those of its equations are named by operator, such as "wrong +".
LIMIT, FORMAT, ANSWER = "token limit", "format", "answer inconsistent with reasoning"


class Equation(NamedTuple):
    """An equation in a completion: its left side, the number on its right, its operators, and its faults."""

    left: str
    claim: str
    operators: set[str]
    faults: set[str]


def diagnose(result: Result) -> dict[str, Any]:
    """The causes of the points that *result* lost, the largest first.

    Returns:
        ``lost``, the share of wrong completions; ``causes``, each with the completions that have the fault, its
        occurrences, and the ``points``: the share of completions that are wrong, and correct with that fault repaired
        (an upper bound if ``at_most``); ``unexplained``, the share of completions that no single repair makes correct;
        ``steps``, by operator, the equations ``written`` with it and the ``wrong`` ones.

    Raises:
        InputError: *result* is of a baseline.
    """
    if result.metrics.is_baseline:
        raise InputError(f"{result.metrics.model.source} is a baseline, which has no faults; give a model.")
    occurrences, completions, won, written = (Counter[str]() for _ in range(4))
    unexplained, n = 0, len(result.samples)
    for sample in result.samples:
        equations = _equations(sample.completion)
        written.update(operator for equation in equations for operator in equation.operators)
        faults = Counter(fault for equation in equations for fault in equation.faults)
        if sample.truncated:
            faults[LIMIT] = 1
        elif not sample.grade.correct:
            if sample.grade.value is None:
                faults[FORMAT] = 1
            elif equations and sample.grade.value not in {equation.claim for equation in equations}:
                faults[ANSWER] = 1
        occurrences.update(faults)
        completions.update(faults.keys())
        if not sample.grade.correct:
            repairs = [fault for fault in faults if fault == LIMIT or _solves(sample.row, equations, fault)]
            won.update(repairs)
            unexplained += not repairs
    rows = [
        {
            "cause": fault,
            "points": round(won[fault] / n, 6),
            "completions": count,
            "occurrences": occurrences[fault],
            "at_most": fault == LIMIT,  # the text beyond it is unknown
        }
        for fault, count in completions.items()
    ]
    return {
        "lost": round(sum(not sample.grade.correct for sample in result.samples) / n, 6),
        "causes": sorted(rows, key=lambda row: (-row["points"], row["cause"] == LIMIT, row["cause"])),
        "unexplained": round(unexplained / n, 6),
        "steps": {
            operator: {"written": count, "wrong": occurrences[f"wrong {operator}"]}
            for operator, count in sorted(written.items())
        },
    }


def _equations(completion: str) -> list[Equation]:
    equations = []
    for piece in arithmetic.pieces(completion):
        if piece.kind in ("right", "wrong"):
            left, claim = piece.text.rsplit("=", 1)
            operators = expression.operators(expression.parse(left).tree)
            faults = {f"wrong {operator}" for operator in operators} if piece.kind == "wrong" else set()
            equations.append(Equation(left, claim.strip(), operators, faults))
    return equations


def _solves(row: Row, equations: list[Equation], fault: str) -> bool:
    """Return True if one of *equations* reaches the right answer once *fault* is repaired.

    The result of a repaired equation replaces the wrong number in later equations, unless the prompt has that number.
    """
    known: dict[str, str] = {}
    prompt = set(re.findall(r"\d+", " ".join(turn["content"] for turn in row.messages())))
    for equation in equations:
        if equation.faults and fault not in equation.faults:
            continue
        text = re.sub(r"\d+", lambda n: n[0] if n[0] in prompt else known.get(n[0], n[0]), equation.left)
        if not row.judge(text)[1]:
            return True
        if len(text) < expression.MAX_LENGTH:
            known[equation.claim] = f"({text})"
    return False
