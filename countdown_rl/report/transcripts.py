"""Completions to read: which ones, in pieces with their sums checked, and their answers step by step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from countdown_rl.evaluation.results import Result
from countdown_rl.formatting import printable
from countdown_rl.puzzle import solver
from countdown_rl.puzzle.expression import ExpressionError, parse
from countdown_rl.puzzle.rules import MAX_NUMBERS, Puzzle
from countdown_rl.report.arithmetic import Piece, Step, pieces, steps
from countdown_rl.tasks.countdown import CountdownRow
from countdown_rl.tasks.explain import verdict

#: Puzzles of each side that are shown of those that changed side.
CHANGED = 4


@dataclass(frozen=True)
class Transcript:
    """A completion to read.

    Attributes:
        sample: as an evaluation keeps it.
        pieces: its text, in pieces.
        steps: its answer worked out; none where it is no expression.
        numbers: the numbers of the puzzle, and whether the answer uses each.
        foreign: numbers in the answer that the puzzle does not give, or not so often.
        verdict: the grade in words.
        way: a solution, where the answer is wrong and there is one.
    """

    sample: Mapping[str, Any]
    pieces: Sequence[Piece]
    steps: Sequence[Step]
    numbers: Sequence[tuple[int, bool]]
    foreign: Sequence[int]
    verdict: str
    way: str | None


def transcript(sample: Mapping[str, Any]) -> Transcript:
    """*sample*, made readable; what a page would obey in its text is gone."""
    try:
        expression = parse(sample["answer"] or "")
        used = expression.numbers
        worked = steps(expression.tree) if "nums" in sample else []
    except ExpressionError:
        used, worked = [], []
    given, foreign = list(sample.get("nums", [])), list(used)
    numbers = []
    for number in given:
        numbers.append((number, number in foreign))
        if number in foreign:
            foreign.remove(number)
    shown = pieces(printable(sample["completion"]).strip("\n"))
    way = None if sample["correct"] or not 0 < len(given) <= MAX_NUMBERS else _way(CountdownRow(sample).puzzle)
    return Transcript(sample, shown, worked, numbers, foreign, printable(verdict(sample)), way)


@lru_cache(maxsize=4_096)
def _way(posed: Puzzle) -> str | None:
    return solver.solve(posed).solution


def leading(result: Result, puzzles: int) -> list[Transcript]:
    """The first completion of each of the first so many *puzzles*."""
    each = len(result.samples) // result.metrics["n"]
    return [transcript(sample) for sample in result.samples[: puzzles * each : each]]


def changed(first: Result, last: Result) -> dict[str, Any] | None:
    """The puzzles that one of two models alone solved, the first few with both completions.

    None where a puzzle has several completions: it need not be on one side then.
    """
    if len(first.samples) > first.metrics["n"]:
        return None
    pairs = list(zip(first.samples, last.samples, strict=True))
    won = [pair for pair in pairs if not pair[0]["correct"] and pair[1]["correct"]]
    lost = [pair for pair in pairs if pair[0]["correct"] and not pair[1]["correct"]]

    def shown(some: Sequence[tuple[Any, Any]]) -> list[tuple[Transcript, Transcript]]:
        return [(transcript(one), transcript(other)) for one, other in some[:CHANGED]]

    return {"won": len(won), "lost": len(lost), "won_shown": shown(won), "lost_shown": shown(lost)}


def sums(samples: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """How many sums with their result the completions write, and how many of them are right."""
    kinds = [piece.kind for sample in samples for piece in pieces(sample["completion"])]
    return kinds.count("right") + kinds.count("wrong"), kinds.count("right")
