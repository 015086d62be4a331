"""The templates of the pages and cards, and the text that they print."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from countdown_rl.core.formatting import duration, flag, interval, one_line, percent, plural
from countdown_rl.evaluation.tables import cell

if TYPE_CHECKING:
    import jinja2

__all__ = [
    "cell",
    "code",
    "duration",
    "flag",
    "html_templates",
    "interval",
    "percent",
    "plural",
    "short",
    "value",
]


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


def short(digest: str | None) -> str:
    return str(digest or "unknown")[:12]


def value(option: object) -> str:
    if isinstance(option, bool):
        return "yes" if option else "no"
    if isinstance(option, list | tuple):
        return ", ".join(map(value, option)) or "none"
    if isinstance(option, Mapping):
        return ", ".join(f"{key} {value(inner)}" for key, inner in option.items())
    return f"{option:g}" if isinstance(option, float) else str(option)


def code(text: str) -> str:
    return f"`{one_line(text).replace('`', chr(39))}`"
