"""How figures, options and tables are spelled on a page for people."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, right: str = "") -> str:
    """A table of Markdown; the columns whose numbers *right* holds ("12" for the second and third) align right."""
    rule = ["---:" if str(place) in right else "---" for place in range(len(heads))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (heads, rule, *rows))


def percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def interval(ends: Sequence[float]) -> str:
    return f"{percent(ends[0])} to {percent(ends[1])}"


def short(digest: Any) -> str:
    return str(digest or "unknown")[:12]


def flag(key: str) -> str:
    return key.rstrip("_").replace("_", "-")


def flags(options: Mapping[str, Any]) -> str:
    """*options* as a person would type them after a command."""
    words = []
    for key, value in options.items():
        name = f"--{flag(key)}"
        if isinstance(value, bool):
            words.append(name if value else f"--no-{flag(key)}")
        elif value is not None:
            words += [f"{name} {one}" for one in (value if isinstance(value, list | tuple) else [value])]
    return " ".join(words)


def value(what: Any) -> str:
    """An option's value in a cell."""
    if isinstance(what, bool):
        return "yes" if what else "no"
    if isinstance(what, list | tuple):
        return ", ".join(map(value, what)) or "none"
    if isinstance(what, Mapping):
        return ", ".join(f"{key} {value(inner)}" for key, inner in what.items())
    return f"{what:g}" if isinstance(what, float) else str(what)


def options_table(options: Mapping[str, Any]) -> str:
    """All options that were set, folded away until somebody looks."""
    rows = [(flag(key), value(what)) for key, what in sorted(options.items()) if what is not None]
    return f"<details><summary>All options</summary>\n\n{table(('option', 'value'), rows)}\n\n</details>"


def checksums(files: Mapping[str, Mapping[str, Any]]) -> str:
    rows = [(name, f"{entry['size']:,}", f"`{entry['sha256']}`") for name, entry in sorted(files.items())]
    return table(("file", "bytes", "sha256"), rows, right="1")


def below(page: str) -> str:
    """*page* without its first heading, the others two levels deeper, to stand inside a section."""
    lines = page.strip().splitlines()
    if lines and lines[0].startswith("# "):
        lines = lines[1:]
    return "\n".join(f"##{line}" if line.startswith("#") else line for line in lines).strip()


def literal(content: str) -> str:
    """*content* as a Python string in double quotes."""
    return '"' + content.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
