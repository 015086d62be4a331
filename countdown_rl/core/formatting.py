"""Text for people: numbers, options as flags, and model text that is safe to show."""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jinja2

_UNUSUAL = re.compile(r"[^\n\t -~]")


def printable(text: str) -> str:
    """Return *text* with control and formatting characters (ESC, C1, bidi, surrogates), but \\n and \\t, as escapes."""

    def escaped(match: re.Match[str]) -> str:
        character = match[0]
        return character if character.isprintable() else repr(character)[1:-1]

    return _UNUSUAL.sub(escaped, text)


def html_templates() -> "jinja2.Environment":
    """Return the environment of the HTML templates, by their paths in this package."""
    import jinja2

    return jinja2.Environment(
        loader=jinja2.PackageLoader("countdown_rl", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )


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
    if minutes < 60:
        return f"{minutes}m {seconds:02d}s" if minutes else f"{seconds}s"
    return f"{minutes // 60}h {minutes % 60:02d}m"


def short(digest: Any) -> str:
    return str(digest or "unknown")[:12]


def flag(name: str) -> str:
    """Return the flag of the option *name*, which may end in an underscore, as ``from_`` does."""
    return "--" + name.rstrip("_").replace("_", "-")


def value(option: Any) -> str:
    if isinstance(option, bool):
        return "yes" if option else "no"
    if isinstance(option, list | tuple):
        return ", ".join(map(value, option)) or "none"
    if isinstance(option, Mapping):
        return ", ".join(f"{key} {value(inner)}" for key, inner in option.items())
    return f"{option:g}" if isinstance(option, float) else str(option)


def cell(text: str) -> str:
    """Return *text* for a line or a table's cell of Markdown, which it neither ends nor marks up."""
    text = re.sub(r"[\\`*\[\]|~]|(?<![^\W_])_|_(?![^\W_])", r"\\\g<0>", one_line(text))
    return text.replace("&", "&amp;").replace("<", "&lt;")


def code(text: str) -> str:
    return f"`{one_line(text).replace('`', chr(39))}`"


def one_line(text: str) -> str:
    return printable(" ".join(text.split()))
