"""Text for people: Markdown tables, figures, options as flags, and model text that is safe to show."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any


def printable(text: str) -> str:
    """Return *text* with control and formatting characters (ESC, C1, bidi, surrogates) written as escapes.

    A terminal or a page obeys such characters, and a model may write any. New lines and tabs stay.
    """
    return "".join(
        char if char.isprintable() or char in "\n\t" else char.encode("unicode_escape").decode() for char in text
    )


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, right: Collection[int] = ()) -> str:
    """Return a Markdown table; the columns whose indices are in *right* are aligned to the right."""
    rule = ["---:" if column in right else "---" for column in range(len(heads))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (heads, rule, *rows))


def percent(share: float) -> str:
    """Return ``12.3%`` of 0.123."""
    return f"{100 * share:.1f}%"


def interval(ends: Sequence[float]) -> str:
    """Return ``10.0% to 20.0%``."""
    return f"{percent(ends[0])} to {percent(ends[1])}"


def short(digest: Any) -> str:
    """Return the first twelve characters of a digest."""
    return str(digest or "unknown")[:12]


def flag(key: str) -> str:
    """Return the name of an option's flag, without dashes in front."""
    return key.rstrip("_").replace("_", "-")


def flags(options: Mapping[str, Any]) -> str:
    """Return *options* as they are typed after a command."""
    words = []
    for key, option in options.items():
        if isinstance(option, bool):
            words.append(f"--{'' if option else 'no-'}{flag(key)}")
        elif option is not None:
            words += [f"--{flag(key)} {item}" for item in (option if isinstance(option, list | tuple) else [option])]
    return " ".join(words)


def value(option: Any) -> str:
    """Return the value of an option for a table's cell."""
    if isinstance(option, bool):
        return "yes" if option else "no"
    if isinstance(option, list | tuple):
        return ", ".join(map(value, option)) or "none"
    if isinstance(option, Mapping):
        return ", ".join(f"{key} {value(inner)}" for key, inner in option.items())
    return f"{option:g}" if isinstance(option, float) else str(option)


def options_table(options: Mapping[str, Any]) -> str:
    """Return a folded table of all options that are set."""
    rows = [(flag(key), value(option)) for key, option in sorted(options.items()) if option is not None]
    return f"<details><summary>All options</summary>\n\n{table(('option', 'value'), rows)}\n\n</details>"


def checksums(files: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a table of the files of a manifest."""
    rows = [(name, f"{entry['size']:,}", f"`{entry['sha256']}`") for name, entry in sorted(files.items())]
    return table(("file", "bytes", "sha256"), rows, right=(1,))


def below(page: str) -> str:
    """Return a Markdown page as part of a section: without its title, other headings two levels deeper."""
    lines = page.strip().splitlines()
    if lines and lines[0].startswith("# "):
        lines = lines[1:]
    return "\n".join(f"##{line}" if line.startswith("#") else line for line in lines).strip()


def literal(content: str) -> str:
    """Return *content* as a Python string literal in double quotes."""
    return '"' + content.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
