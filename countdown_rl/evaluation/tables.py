"""Tables of a comparison, as Markdown and LaTeX."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from countdown_rl.core.formatting import interval, one_line, percent, plural
from countdown_rl.evaluation.sample import BASELINE_KINDS
from countdown_rl.tasks.registry import task_of

#: Directions in which the grade of a puzzle changes.
SIDES = ("improved", "regressed")


def markdown(values: Mapping[str, Any]) -> str:
    """The Markdown table of the *values* of :func:`compare.scores`, with the conditions under it."""
    head, *rows = _cells(values)
    lines = ["| " + " | ".join(map(cell, row)) + " |" for row in (head, *rows)]
    lines.insert(1, "|---" + "|---:" * (len(head) - 1) + "|")
    return "\n".join([*lines, "", conditions(values, cell)]) + "\n"


def latex(values: Mapping[str, Any]) -> str:
    """The same table as a ``tabular``, with the conditions as a comment."""
    rows = (" & ".join(one_line(cell).translate(_TEX) for cell in row) for row in _cells(values))
    lines = [
        re.sub(r"(?<![\w.])[+-](?=\d)", r"$\g<0>$", row) + r" \\" for row in rows
    ]  # signs in math mode
    begin = r"\begin{tabular}{l" + "r" * lines[0].count(" & ") + "}"
    lines = [begin, r"\hline", lines[0], r"\hline", *lines[1:], r"\hline", r"\end{tabular}"]
    return "\n".join([*lines, f"% {conditions(values)}"]) + "\n"


FORMATS = {"latex": latex, "markdown": markdown}


def _cells(values: Mapping[str, Any]) -> list[list[str]]:
    """The cells of the head and of each result."""
    task, results, k = task_of(values), values["results"], largest_k(values)
    main = next((group for group in results[0]["groups"] if task.group(group).main), "")
    groups = [
        row["groups"].get(main, {}) for row in results
    ]  # another version may have had other groups
    columns = [value for value in groups[0] if all(value in shares for shares in groups)]
    names = (task.group(main).name(value) for value in columns)
    heading = reference(values)
    changes = [row.get("against", {}).get("pass_at", {}).get(k) for row in results]
    partial = any("of" in row for row in results)
    head = [
        "",
        "solved",
        "95%",
        *(["n"] if partial else []),
        *names,
        *([f"pass@{k}"] if k else []),
        "format",
        "tokens",
    ]
    head += [heading, "improved", "regressed", "p"]
    rows = [head + ([f"pass@{k} {heading}"] if any(changes) else [])]
    for row, shares, change in zip(results, groups, changes, strict=True):
        cells = [row["name"], percent(row["accuracy"]) + _sd(row), interval(row["interval"])]
        cells += [counted(row)] if partial else []
        cells += [percent(shares[value]["accuracy"]) for value in columns]
        if k:
            cells.append(percent(row["pass_at"][k]["share"]) if k in row.get("pass_at", ()) else "")
        is_model, difference = row["model"]["kind"] not in BASELINE_KINDS, row.get("against")
        cells.append(percent(row["format"]) if is_model else "")
        cells.append(f"{row['mean_tokens']:.0f}" if is_model and "mean_tokens" in row else "")
        if difference:
            cells += [points(difference), *(f"{difference[side]:,}" for side in SIDES)]
            cells.append(f"{difference['p']:.2g}")
        else:
            cells += [""] * 4
        rows.append(cells + ([points(change) if change else ""] if any(changes) else []))
    return rows


def reference(values: Mapping[str, Any]) -> str:
    """The heading of the differences in *values*, such as ``against base``."""
    names = [row["against"]["reference"] for row in values["results"] if "against" in row]
    return f"against {' or '.join(dict.fromkeys(names))}"


def counted(row: Mapping[str, Any], noun: str = "") -> str:
    """The number of measured rows of a result, of those that completions were asked for, with their *noun*."""
    count = row.get("of", row["n"])
    part = f"{row['n']:,} of " if "of" in row else ""
    return part + (plural(count, noun) if noun else f"{count:,}")


#: Characters that LaTeX interprets or its default font lacks, by what prints each.
_TEX = str.maketrans(
    {sign: f"\\{sign}" for sign in "&%$#_{}"}
    | {
        "\\": r"\textbackslash{}",
        "^": r"\textasciicircum{}",
        "~": r"\textasciitilde{}",
        "[": "{[}",
        "*": "{*}",
    }
    | {
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        '"': r"\textquotedbl{}",
        "±": r"$\pm$",
    }
)


def largest_k(values: Mapping[str, Any]) -> str | None:
    """The largest k for which a result has pass@k; None if none has several completions."""
    ks: set[str] = set()
    for row in values["results"]:
        ks.update(row.get("pass_at", ()))
    return max(ks, key=int, default=None)


def subject(values: Mapping[str, Any]) -> str:
    """The number of puzzles and their split, such as ``1,000 held-out puzzles``."""
    return counted(values["results"][0], f"{values['split']} {task_of(values).noun}".strip())


def conditions(values: Mapping[str, Any], escape: Callable[[str], str] = one_line) -> str:
    """One sentence on puzzles, decoding and intervals, with names escaped by *escape*."""
    others: dict[str, list[str]] = {}
    for row in values["results"]:
        if "decoding" in row:
            others.setdefault(decoding_text(row["decoding"]), []).append(escape(row["name"]))
    decodings = [
        decoding_text(values["decoding"]),
        *(f"{', '.join(names)}: {how}" for how, names in others.items()),
    ]
    several = [row for row in values["results"] if "pass_at" in row or "runs" in row]
    intervals = "Wilson; Newcombe for paired differences"
    if several:
        intervals += (
            ", with several completions Wilson at the effective sample size; "
            "normal, or Agresti-Min if few differ, for paired differences"
        )
    runs = [
        f"{escape(row['name'])}: {len(row['runs'])}" for row in values["results"] if "runs" in row
    ]
    means = f"; means over runs ({', '.join(runs)}), ± their standard deviation" if runs else ""
    return (
        f"{subject(values)} ({escape(', '.join(values['rules']) or values['task'])}), "
        f"{'; '.join(decodings)}; intervals are 95% ({intervals}){means}."
    )


def decoding_text(settings: Mapping[str, Any]) -> str:
    """Decoding settings in words."""
    if "greedy" not in settings:
        return "decoding not stated"
    words = "greedy"
    if not settings["greedy"]:
        names = [name for name in ("temperature", "top_p", "top_k") if name in settings]
        words = ", ".join(f"{name.replace('_', '-')} {settings[name]:g}" for name in names)
    if settings.get("samples", 1) > 1:
        words += f", {settings['samples']} completions each"
    return f"{words}, at most {plural(settings['max_new_tokens'], 'token')}"


def points(change: Mapping[str, Any], sd: bool = True) -> str:
    """A paired difference in percentage points, with its standard deviation over runs, if *sd*, and its interval."""
    low, high = change["interval"]
    return f"{100 * change['difference']:+.1f}{_sd(change) if sd else ''} ({100 * low:+.1f} to {100 * high:+.1f})"


def _sd(score: Mapping[str, Any]) -> str:
    return f" ± {100 * score['sd']:.1f}" if "sd" in score else ""


def cell(text: str) -> str:
    """Return *text* for a line or a table's cell of Markdown, which it neither ends nor marks up."""
    text = re.sub(r"[\\`*\[\]|~]|(?<![^\W_])_|_(?![^\W_])", r"\\\g<0>", one_line(text))
    return text.replace("&", "&amp;").replace("<", "&lt;")
