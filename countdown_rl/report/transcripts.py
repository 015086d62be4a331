"""Completions to read: a selection, in pieces with their equations checked, and their answers step by step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from countdown_rl.evaluation.results import Result
from countdown_rl.puzzle.arithmetic import Piece, Step, pieces, steps
from countdown_rl.puzzle.expression import ExpressionError, parse
from countdown_rl.tasks.explain import verdict
from countdown_rl.tasks.registry import parse_row

#: The number of puzzles won, and of puzzles lost, that are shown.
CHANGED = 4


@dataclass(frozen=True)
class AnnotatedCompletion:
    """A completion to read.

    Attributes:
        sample: the graded completion.
        headline: its row in one line.
        pieces: its text, in pieces.
        steps: the operations of its answer; none where it is no expression.
        verdict: the grade in words.
        solution: a solution, where the answer is wrong and one is known.
    """

    sample: Mapping[str, Any]
    headline: str
    pieces: Sequence[Piece]
    steps: Sequence[Step]
    verdict: str
    solution: str | None


def annotated(sample: Mapping[str, Any]) -> AnnotatedCompletion:
    """*sample* with all that the page shows beside it."""
    try:
        operations = steps(parse(sample["answer"] or "").tree)
    except ExpressionError:
        operations = []
    return AnnotatedCompletion(
        sample=sample,
        headline=parse_row(sample).headline,
        pieces=pieces(sample["completion"].strip("\n")),
        steps=operations,
        verdict=verdict(sample),
        solution=None if sample["correct"] else parse_row(sample).right_answer,
    )


def leading(result: Result, puzzles: int) -> list[AnnotatedCompletion]:
    """The first completion of each of the first so many *puzzles*."""
    return [annotated(samples[0]) for samples in result.by_puzzle[:puzzles]]


def changed(first: Result, last: Result) -> dict[str, Any] | None:
    """The puzzles that only one of two models solved, the first few with both completions.

    None where a puzzle has several completions, which may differ.
    """
    if len(first.by_puzzle[0]) > 1:
        return None
    pairs = list(zip(first.samples, last.samples, strict=True))
    won = [pair for pair in pairs if not pair[0]["correct"] and pair[1]["correct"]]
    lost = [pair for pair in pairs if pair[0]["correct"] and not pair[1]["correct"]]
    shown = [[tuple(map(annotated, pair)) for pair in side[:CHANGED]] for side in (won, lost)]
    return {"won": len(won), "lost": len(lost), "won_shown": shown[0], "lost_shown": shown[1]}


def count_equations(samples: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """The number of equations in the completions, and of those that are right."""
    kinds = [piece.kind for sample in samples for piece in pieces(sample["completion"])]
    return kinds.count("right") + kinds.count("wrong"), kinds.count("right")
