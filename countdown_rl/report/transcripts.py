"""Completions to read: a selection, in pieces with their equations checked, and their answers step by step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from countdown_rl.evaluation import diagnose
from countdown_rl.evaluation.results import Result
from countdown_rl.puzzle.arithmetic import Piece, Step, pieces, steps
from countdown_rl.puzzle.expression import ExpressionError, parse
from countdown_rl.tasks.explain import verdict

#: The number of puzzles won, and of puzzles lost, that are shown.
CHANGED = 4


@dataclass(frozen=True)
class Transcript:
    """A completion to read.

    Attributes:
        sample: the graded completion.
        pieces: its text, in pieces.
        steps: the operations of its answer; none where it is no expression.
        numbers: the numbers of the puzzle, and whether the answer uses each.
        foreign: numbers in the answer that the puzzle does not give, or not so often.
        verdict: the grade in words.
        solution: a solution, where the answer is wrong and there is one.
    """

    sample: Mapping[str, Any]
    pieces: Sequence[Piece]
    steps: Sequence[Step]
    numbers: Sequence[tuple[int, bool]]
    foreign: Sequence[int]
    verdict: str
    solution: str | None


def transcript(sample: Mapping[str, Any]) -> Transcript:
    """The transcript of *sample*, without characters that a page would obey."""
    foreign: list[int] = []
    worked: list[Step] = []
    try:
        expression = parse(sample["answer"] or "")
    except ExpressionError:
        pass
    else:
        foreign = list(expression.numbers)
        worked = steps(expression.tree) if "nums" in sample else []
    nums = list(sample.get("nums", []))
    numbers = []
    for number in nums:
        numbers.append((number, number in foreign))
        if number in foreign:
            foreign.remove(number)
    completion = pieces(sample["completion"].strip("\n"))
    solution = None if sample["correct"] else diagnose.solution(sample)
    return Transcript(sample, completion, worked, numbers, foreign, verdict(sample), solution)


def leading(result: Result, puzzles: int) -> list[Transcript]:
    """The first completion of each of the first so many *puzzles*."""
    return [transcript(samples[0]) for samples in result.by_puzzle[:puzzles]]


def changed(first: Result, last: Result) -> dict[str, Any] | None:
    """The puzzles that only one of two models solved, the first few with both completions.

    None where a puzzle has several completions, which may differ.
    """
    if len(first.by_puzzle[0]) > 1:
        return None
    pairs = list(zip(first.samples, last.samples, strict=True))
    won = [pair for pair in pairs if not pair[0]["correct"] and pair[1]["correct"]]
    lost = [pair for pair in pairs if pair[0]["correct"] and not pair[1]["correct"]]
    shown = [[tuple(map(transcript, pair)) for pair in side[:CHANGED]] for side in (won, lost)]
    return {"won": len(won), "lost": len(lost), "won_shown": shown[0], "lost_shown": shown[1]}


def count_equations(samples: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """The number of equations in the completions, and of those that are right."""
    kinds = [piece.kind for sample in samples for piece in pieces(sample["completion"])]
    return kinds.count("right") + kinds.count("wrong"), kinds.count("right")
