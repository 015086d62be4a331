"""The table of a comparison, as Markdown, and its parts."""

import re

from countdown_rl.core.formatting import interval, one_line, percent, plural
from countdown_rl.core.types import Record
from countdown_rl.evaluation.sample import BASELINE_KINDS
from countdown_rl.tasks.registry import task_of

#: Directions in which the grade of a puzzle changes.
SIDES = ("improved", "regressed")


def markdown(comparison: Record) -> str:
    """The Markdown table of a *comparison*, which :func:`compare.scores` returns."""
    heads, *rows = _cells(comparison)
    lines = ["| " + " | ".join(map(cell, row)) + " |" for row in (heads, *rows)]
    lines.insert(1, "|---" + "|---:" * (len(heads) - 1) + "|")
    return "\n".join([*lines, "", conditions(comparison)]) + "\n"


def _cells(comparison: Record) -> list[list[str]]:
    """The heads of the columns that are not empty, and the cells of each result."""
    task, results, k = task_of(comparison), comparison["results"], largest_k(comparison)
    main = next((name for name in results[0]["groups"] if task.group(name).main), "")
    breakdowns = [row["groups"].get(main, {}) for row in results]
    labels = {}
    for value in breakdowns[0]:
        if all(value in breakdown for breakdown in breakdowns):  # files may state other fields
            labels[value] = task.group(main).name(value)
    difference = difference_head(comparison)
    is_partial = any("of" in row for row in results)

    rows = []
    for row, breakdown in zip(results, breakdowns, strict=True):
        cells = {"": row["name"], "solved": percent(row["accuracy"]) + _sd(row)}
        cells["95%"] = interval(row["interval"])
        if is_partial:
            cells["n"] = counted(row)
        for value, label in labels.items():
            cells[label] = percent(breakdown[value]["accuracy"])
        if k in row.get("pass_at", ()):
            cells[f"pass@{k}"] = percent(row["pass_at"][k]["share"])
        if row["model"]["kind"] not in BASELINE_KINDS:
            cells["format"] = percent(row["format"])
            if "mean_tokens" in row:
                cells["tokens"] = f"{row['mean_tokens']:.0f}"
        if "against" in row:
            change = row["against"]
            cells |= {difference: points(change), "p": f"{change['p']:.2g}"}
            cells |= {side: f"{change[side]:,}" for side in SIDES}
            if k in change.get("pass_at", ()):
                cells[f"pass@{k} {difference}"] = points(change["pass_at"][k])
        rows.append(cells)

    columns = ["", "solved", "95%", "n", *labels.values(), f"pass@{k}", "format", "tokens"]
    columns += [difference, *SIDES, "p", f"pass@{k} {difference}"]
    heads = [head for head in columns if any(head in cells for cells in rows)]
    return [heads] + [[cells.get(head, "") for head in heads] for cells in rows]


def difference_head(comparison: Record) -> str:
    """The heading of the differences in a *comparison*, such as ``against base``."""
    names = [row["against"]["reference"] for row in comparison["results"] if "against" in row]
    return f"against {' or '.join(dict.fromkeys(names))}"


def counted(row: Record, noun: str = "") -> str:
    """The number of measured rows of a result, of those that completions were asked for.

    Args:
        row: a row of a comparison.
        noun: the word for one of them; "" for the number alone.
    """
    count = row.get("of", row["n"])
    measured = f"{row['n']:,} of " if "of" in row else ""
    return measured + (plural(count, noun) if noun else f"{count:,}")


def largest_k(comparison: Record) -> str | None:
    """The largest k for which a result has pass@k; None if none has several completions."""
    ks: set[str] = set()
    for row in comparison["results"]:
        ks.update(row.get("pass_at", ()))
    return max(ks, key=int, default=None)


def subject(comparison: Record) -> str:
    """The number of puzzles and their split, such as ``1,000 held-out puzzles``."""
    noun = f"{comparison['split']} {task_of(comparison).noun}".strip()
    return counted(comparison["results"][0], noun)


def conditions(comparison: Record) -> str:
    """One sentence in Markdown on puzzles, decoding and intervals."""
    results = comparison["results"]
    others: dict[str, list[str]] = {}
    for row in results:
        if "decoding" in row:
            others.setdefault(decoding_text(row["decoding"]), []).append(cell(row["name"]))
    decodings = [decoding_text(comparison["decoding"])]
    decodings += [f"{', '.join(names)}: {words}" for words, names in others.items()]
    rules = cell(", ".join(comparison["rules"]) or comparison["task"])

    intervals = "Wilson; Newcombe for paired differences"
    if any("pass_at" in row or "runs" in row for row in results):
        intervals += (
            ", with several completions Wilson at the effective sample size; "
            "normal, or Agresti-Min if few differ, for paired differences"
        )
    text = (
        f"{subject(comparison)} ({rules}), {'; '.join(decodings)}; intervals are 95% ({intervals})"
    )
    runs = [f"{cell(row['name'])}: {len(row['runs'])}" for row in results if "runs" in row]
    if runs:
        text += f"; means over runs ({', '.join(runs)}), ± their standard deviation"
    return f"{text}."


def decoding_text(settings: Record) -> str:
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


def points(change: Record, sd: bool = True) -> str:
    """A paired difference in percentage points, with its interval.

    Args:
        change: a difference of a comparison.
        sd: with its standard deviation over runs, if it has one.
    """
    low, high = change["interval"]
    deviation = _sd(change) if sd else ""
    return f"{100 * change['difference']:+.1f}{deviation} ({100 * low:+.1f} to {100 * high:+.1f})"


def _sd(score: Record) -> str:
    return f" ± {100 * score['sd']:.1f}" if "sd" in score else ""


def cell(text: str) -> str:
    """Return *text* for a line or a cell of Markdown, which it neither ends nor marks up."""
    text = re.sub(r"[\\`*\[\]|~]|(?<![^\W_])_|_(?![^\W_])", r"\\\g<0>", one_line(text))
    return text.replace("&", "&amp;").replace("<", "&lt;")
