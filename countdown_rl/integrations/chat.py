"""Prompt and completion of a row as chat messages, for evaluators that talk to a chat endpoint."""

from countdown_rl.tasks.registry import parse_row
from countdown_rl.tasks.task import Row


def without_begun_turn(row: Row) -> Row:
    """*row* in a style whose prompt ends in the user turn: most endpoints do not continue a begun assistant turn."""
    return row if row.style.own else parse_row({**row, "style": "own"})


def completion(row: Row, content: str | None, reasoning: str | None) -> str:
    """The completion as one text; *reasoning* that the endpoint keeps apart is put back between its tags."""
    if not reasoning:
        return content or ""
    end = "\n" if row.style.lines else ""
    return f"<{row.style.tag}>{end}{reasoning}{end}</{row.style.tag}>\n{content or ''}"
