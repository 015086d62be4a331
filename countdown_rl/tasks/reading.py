"""Readings of completions for ``diagnose``: faults, and whether a completion would be correct with one repaired."""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from countdown_rl.puzzle import arithmetic, expression
from countdown_rl.tasks.task import Row

#: Faults that every text can have.
LIMIT, FORMAT, ANSWER = "token limit", "format", "answer other than its work"


def wrong_step(operator: str) -> str:
    """The name of the fault of a step with a wrong result."""
    return f"wrong {operator}"


class Reading(Protocol):
    """A completion that was read: occurrences of ``faults`` by name, and ``steps`` by operator."""

    faults: Counter[str]
    steps: Counter[str]

    def repaired(self, fault: str, budget: float) -> bool:
        """Return True if the completion is correct within *budget* characters where *fault* never happens."""


class Reader(Protocol):
    """Reader of the completions of one model, in a language that it was trained on."""

    def read(self, sample: Mapping[str, Any], row: Row) -> Reading | None:
        """Read the completion of the graded *sample*; None where it is in another language."""

    def solved_within(self, samples: Sequence[tuple[Mapping[str, Any], Row]]) -> dict[str, dict[str, dict[str, float]]]:
        """Return the shares solved within a length of search, by group of puzzles, by name of a curve, by length."""


@dataclass
class FreeText:
    """A completion in any language; ``equations`` are (left side, value claimed, operators if it is wrong)."""

    row: Row
    equations: list[tuple[str, str, Collection[str]]] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    steps: Counter[str] = field(default_factory=Counter)

    def repaired(self, fault: str, budget: float) -> bool:
        """Return True if an equation reaches the right answer where *fault* never happens.

        The result of a repaired equation replaces the wrong one in those that follow, except where the prompt has that
        number. Nothing is known of the text beyond the token limit: a completion that reached it counts as correct.
        """
        known: dict[str, str] = {}
        prompt = set(re.findall(r"\d+", " ".join(turn["content"] for turn in self.row.messages())))
        for left, claim, wrong in self.equations:
            if wrong and fault not in map(wrong_step, wrong):
                continue
            text = re.sub(r"\d+", lambda n: n[0] if n[0] in prompt else known.get(n[0], n[0]), left)
            if not self.row.judge(text)[1]:
                return True
            if len(text) < expression.MAX_LENGTH:
                known[claim] = f"({text})"
        return fault == LIMIT


def read_text(sample: Mapping[str, Any], row: Row) -> FreeText:
    """Read the completion of the graded *sample* as text in any language: its equations, format and answer."""
    text = FreeText(row)
    for piece in arithmetic.pieces(sample["completion"]):
        if piece.kind not in ("right", "wrong"):
            continue
        left, claim = piece.text.rsplit("=", 1)
        operators = expression.operators(expression.parse(left).tree)
        text.steps.update(operators)
        wrong = operators if piece.kind == "wrong" else ()
        text.faults.update(map(wrong_step, wrong))
        text.equations.append((left, claim.strip(), wrong))
    if sample["truncated"]:
        text.faults[LIMIT] = 1
    elif sample["value"] is None and not sample["correct"]:
        text.faults[FORMAT] = 1
    elif not sample["correct"]:
        text.faults[ANSWER] = 1
    return text
