"""Completions to read: a selection, in pieces with their equations checked, and their answers step by step."""

from collections.abc import Mapping
from typing import Any

from countdown_rl.evaluation.results import Result
from countdown_rl.puzzle.arithmetic import pieces, steps
from countdown_rl.puzzle.expression import ExpressionError, parse
from countdown_rl.tasks.explain import verdict
from countdown_rl.tasks.registry import parse_row

#: The number of puzzles won, and of puzzles lost, that are shown.
CHANGED = 4


def annotated(sample: Mapping[str, Any]) -> dict[str, Any]:
    """*sample* with all that the page shows beside it: its text in pieces, and the operations of its answer."""
    try:
        operations = steps(parse(sample["answer"] or "").tree)
    except ExpressionError:
        operations = []
    row = parse_row(sample)
    return {
        "sample": sample,
        "headline": row.headline,
        "pieces": pieces(sample["completion"].strip("\n")),
        "steps": operations,
        "verdict": verdict(sample),
        "solution": None if sample["correct"] else row.right_answer,
    }


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
