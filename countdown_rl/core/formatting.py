"""Text for people: numbers, options as flags, and model text that is safe to show."""

import re
from collections.abc import Sequence

_UNUSUAL = re.compile(r"[^\n\t -~]")


def printable(text: str) -> str:
    """Return *text* with control and formatting characters (ESC, C1, bidi, surrogates), but \\n and
    \\t, as escapes.
    """

    def escaped(match: re.Match[str]) -> str:
        character = match[0]
        return character if character.isprintable() else repr(character)[1:-1]

    return _UNUSUAL.sub(escaped, text)


def plural(count: int, noun: str) -> str:
    """Return ``1 row`` or ``2,000 rows``."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def interval(ends: Sequence[float]) -> str:
    return f"{percent(ends[0])} to {percent(ends[1])}"


def duration(seconds: float) -> str:
    """Return ``45s``, ``3m 20s`` or ``2h 05m``."""
    minutes, seconds = divmod(round(seconds), 60)
    if not minutes:
        return f"{seconds}s"
    if minutes < 60:
        return f"{minutes}m {seconds:02d}s"
    return f"{minutes // 60}h {minutes % 60:02d}m"


def flag(name: str) -> str:
    """Return the flag of the option *name*, which may end in an underscore, as ``from_`` does."""
    return "--" + name.rstrip("_").replace("_", "-")


def one_line(text: str) -> str:
    return printable(" ".join(text.split()))
