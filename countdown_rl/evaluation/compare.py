"""Comparison of evaluations on the same puzzles: paired differences, a table, and the puzzles that changed."""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from countdown_rl import artifacts
from countdown_rl.data import jsonl
from countdown_rl.errors import InputError
from countdown_rl.evaluation import baselines
from countdown_rl.evaluation.results import Result, read
from countdown_rl.evaluation.statistics import mcnemar, paired_difference, paired_mean
from countdown_rl.formatting import interval, percent

TABLE, FIGURES, CHANGES = "comparison.md", "comparison.json", "changes.jsonl"

#: Fields of a change: of its puzzle, and of each of its two completions.
_PUZZLE = ("id", "nums", "target", "needs", "question", "gold")
_COMPLETION = ("correct", "completion", "answer", "value", "reason")


def compare(paths: Mapping[str, Path], out: Path) -> dict[str, Any]:
    """Compare the evaluations at *paths*, by name, and write a ``comparison`` artifact at *out*.

    Returns:
        The contents of ``comparison.json``: see :func:`figures`.

    Raises:
        InputError: there are fewer than two results, none is of a model, or their puzzles or decoding differ.
        ArtifactError: a result is missing or damaged, or *out* cannot be written.
    """
    artifacts.check_writable(out, "comparison")
    if len(paths) < 2:
        raise InputError("give at least two evaluations to compare.")
    inputs = {name: artifacts.read(path, "eval").as_input() for name, path in paths.items()}
    results = {name: read(path) for name, path in paths.items()}
    values = figures(results)
    with artifacts.writing(out, "comparison", options={"names": list(paths)}, inputs=inputs) as draft:
        (draft.path / FIGURES).write_text(json.dumps(values, indent=2) + "\n", "utf-8")
        (draft.path / TABLE).write_text(table(values), "utf-8")
        jsonl.write_rows(draft.path / CHANGES, changes(results))
    return values


def by_name(paths: Sequence[Path]) -> dict[str, Path]:
    """*paths* by the name of the directory, or by the whole path where two names are equal.

    Raises:
        InputError: a path is given twice.
    """
    names = [path.name for path in paths]
    if len(set(names)) < len(names):  # runs/a/eval and runs/b/eval
        names = [path.as_posix() for path in paths]
    if len(set(names)) < len(names):
        raise InputError("an evaluation is given twice; give each once.")
    return dict(zip(names, paths, strict=True))


def figures(results: Mapping[str, Result]) -> dict[str, Any]:
    """The metrics of each result, and its paired differences from the first and from the previous one.

    Baselines have no differences, unless there is only one model to compare them with.

    Raises:
        InputError: none is of a model, or their puzzles or decoding differ.
    """
    models = _models(results)
    if not models:
        raise InputError("give an evaluation of a model beside the baselines.")
    first = results[models[0]]
    for name, result in results.items():
        _check_conditions(models[0], first, name, result)
    compared = _compared(results)
    rows = []
    for name, result in results.items():
        keys = ("accuracy", "n", "correct", "interval", "pass_at", "by_size", "by_needs", "format", "mean_tokens")
        row = {"name": name} | {
            key: result.metrics[key] for key in (*keys, "truncated", "model") if key in result.metrics
        }
        if name in compared[1:]:
            row["against_first"] = difference(results[compared[0]], result)
            row["against_previous"] = difference(results[compared[compared.index(name) - 1]], result)
        rows.append(row)
    return {key: first.metrics[key] for key in ("data", "decoding", "rules", "task")} | {"results": rows}


def difference(first: Result, second: Result) -> dict[str, Any]:
    """The accuracy of *second* less that of *first*, paired by puzzle, with 95% interval and p-value.

    With one completion per puzzle: Newcombe's interval and McNemar's exact test. With several: the normal interval
    and test of the mean difference.
    """
    shares = _shares(first), _shares(second)
    pairs = list(zip(*shares, strict=True))
    if len(first.samples) == first.metrics["n"]:
        lost, won = pairs.count((1, 0)), pairs.count((0, 1))
        value, (low, high) = paired_difference(pairs.count((1, 1)), lost, won, pairs.count((0, 0)))
        p = mcnemar(lost, won)
    else:
        value, (low, high), p = paired_mean(*shares)
    return {
        "difference": round(value, 6),
        "interval": [round(low, 6), round(high, 6)],
        "won": sum(before < after for before, after in pairs),
        "lost": sum(before > after for before, after in pairs),
        "p": float(f"{p:.3g}"),
    }


def changes(results: Mapping[str, Result]) -> list[dict[str, Any]]:
    """The puzzles won and lost, from the first compared result to each other one, and from each to the next.

    With several completions per puzzle, more or fewer of them are correct; shown are the first wrong and the first
    correct one.
    """
    names = _compared(results)
    pairs = dict.fromkeys([*((names[0], name) for name in names[1:]), *pairwise(names)])
    return [change for first, second in pairs for change in _changes(first, second, results)]


def read_changes(path: Path) -> list[dict[str, Any]]:
    """The :func:`changes` of the comparison at *path*."""
    # Bytes, because a text's lines also end at characters that a model may have written.
    return [json.loads(line) for line in (Path(path) / CHANGES).read_bytes().splitlines()]


def _models(results: Mapping[str, Result]) -> list[str]:
    return [name for name, result in results.items() if not baselines.is_baseline(result.metrics)]


def _compared(results: Mapping[str, Result]) -> list[str]:
    """The names of the results that have paired differences."""
    models = _models(results)
    return models if len(models) > 1 else list(results)


def _changes(first: str, second: str, results: Mapping[str, Result]) -> Iterator[dict[str, Any]]:
    for before, after in zip(_by_puzzle(results[first]), _by_puzzle(results[second]), strict=True):
        was, now = (sum(sample["correct"] for sample in samples) for samples in (before, after))
        if was == now:
            continue
        won = now > was
        shown = {
            "before": next(sample for sample in before if sample["correct"] is not won),
            "after": next(sample for sample in after if sample["correct"] is won),
        }
        yield (
            {"from": first, "to": second, "side": "won" if won else "lost"}
            | {key: before[0][key] for key in _PUZZLE if key in before[0]}
            | ({"right_before": was, "right_after": now, "completions": len(before)} if len(before) > 1 else {})
            | {when: {key: sample.get(key) for key in _COMPLETION} for when, sample in shown.items()}
        )


def _by_puzzle(result: Result) -> list[list[dict[str, Any]]]:
    per_puzzle = len(result.samples) // result.metrics["n"]
    return [result.samples[start : start + per_puzzle] for start in range(0, len(result.samples), per_puzzle)]


def _shares(result: Result) -> list[float]:
    """The share of each puzzle's completions that is correct."""
    return [sum(sample["correct"] for sample in samples) / len(samples) for samples in _by_puzzle(result)]


def table(values: Mapping[str, Any]) -> str:
    """The Markdown table of :func:`figures`."""
    sizes = sorted({size for row in values["results"] for size in row["by_size"]}, key=int)
    head = ["", "solved", "95%", *(f"{size} numbers" for size in sizes), "format", "tokens", "against the one before"]
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    for row in values["results"]:
        cells = [
            row["name"].replace("|", "\\|"),
            percent(row["accuracy"]),
            interval(row["interval"]),
            *(percent(row["by_size"][size]["accuracy"]) if size in row["by_size"] else "" for size in sizes),
            *(("", "") if baselines.is_baseline(row) else (percent(row["format"]), f"{row['mean_tokens']:.0f}")),
            points(row["against_previous"]) if "against_previous" in row else "",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", conditions(values)]
    return "\n".join(lines) + "\n"


def conditions(values: Mapping[str, Any]) -> str:
    """One sentence on the puzzles, the decoding and the intervals."""
    first, decoding = values["results"][0], values["decoding"]
    how = "greedy" if decoding["greedy"] else f"temperature {decoding['temperature']:g}, top-p {decoding['top_p']:g}"
    intervals = "Wilson; Newcombe for paired differences"
    if decoding.get("samples", 1) > 1:
        how += f", {decoding['samples']} completions each"
        intervals = "Wilson at the effective sample size; normal for paired differences"
    return (
        f"{first['n']:,} held-out puzzles ({', '.join(values['rules']) or values['task']}), {how}, at most "
        f"{decoding['max_new_tokens']} tokens; intervals are 95% ({intervals})."
    )


def points(change: Mapping[str, Any]) -> str:
    """A paired difference in percentage points, with its interval."""
    low, high = change["interval"]
    return f"{100 * change['difference']:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"


def _check_conditions(first_name: str, first: Result, name: str, other: Result) -> None:
    # Rows need no id; the first n rows of the same file are the same puzzles.
    if any(first.metrics[key] != other.metrics[key] for key in ("n", "data")):
        raise InputError(
            f"{name} and {first_name} were scored on different puzzles; give both the same --data and --limit."
        )
    expected, decoding = first.metrics["decoding"], other.metrics["decoding"]
    if baselines.is_baseline(other.metrics):  # decodes nothing, but may give several answers per puzzle
        expected, decoding = expected.get("samples", 1), decoding["samples"]
    if expected != decoding:
        raise InputError(f"{name} and {first_name} were decoded differently; evaluate both with the same options.")
