"""Evaluations side by side on the same puzzles: paired differences, and the one table that everyone shows."""

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

TABLE, NUMBERS, CHANGES = "comparison.md", "comparison.json", "changes.jsonl"

#: What a change keeps of its puzzle, and of each completion.
_PUZZLE = ("id", "nums", "target", "needs", "question", "gold")
_SAID = ("correct", "completion", "answer", "value", "reason")


def compare(results: Mapping[str, Path], out: Path) -> dict[str, Any]:
    """Compare the evaluations in *results* (name to path) and write a ``comparison`` artifact at *out*.

    ``changes.jsonl`` in it holds the puzzles that changed side, as :func:`changes` gives them.

    Returns:
        What ``comparison.json`` holds: each result's metrics, and each one's paired difference from the
        first and from the one before it.

    Raises:
        InputError: fewer than two results or none of a model, or results on other puzzles or with other decoding.
        ArtifactError: one of them is missing or damaged, or *out* cannot be written.
    """
    artifacts.check_writable(out, "comparison")
    if len(results) < 2:
        raise InputError("give at least two evaluations to compare.")
    manifests = {name: artifacts.read(path, "eval") for name, path in results.items()}
    loaded = {name: read(path) for name, path in results.items()}
    values = numbers(loaded)
    inputs = {name: manifest.as_input() for name, manifest in manifests.items()}
    with artifacts.writing(out, "comparison", options={"names": list(results)}, inputs=inputs) as draft:
        (draft.path / NUMBERS).write_text(json.dumps(values, indent=2) + "\n", "utf-8")
        (draft.path / TABLE).write_text(table(values), "utf-8")
        jsonl.write_rows(draft.path / CHANGES, changes(loaded))
    return values


def named(paths: Sequence[Path]) -> dict[str, Path]:
    """Evaluations by their directory's name, or by their whole path where two have one name.

    Raises:
        InputError: one is given twice.
    """
    names = [path.name for path in paths]
    if len(set(names)) < len(names):  # runs/a/eval and runs/b/eval
        names = [path.as_posix() for path in paths]
    if len(set(names)) < len(names):
        raise InputError("an evaluation is given twice; give each once.")
    return dict(zip(names, paths, strict=True))


def numbers(results: Mapping[str, Result]) -> dict[str, Any]:
    """The figures of *results*, in their order, with paired differences.

    Beside several models a floor or a ceiling has figures only; a single one is held against them.
    """
    models = _models(results)
    if not models:
        raise InputError("give an evaluation of a model beside its floor and ceiling.")
    first = results[models[0]]
    for name, result in results.items():
        _same_terms(models[0], first, name, result)
    compared = _compared(results)
    rows = []
    for name, result in results.items():
        keys = ("accuracy", "n", "correct", "interval", "pass_at", "by_size", "by_needs", "format", "mean_tokens")
        kept = {key: result.metrics[key] for key in (*keys, "truncated", "model") if key in result.metrics}
        row = {"name": name} | kept
        if name in compared[1:]:
            row["against_first"] = difference(results[compared[0]], result)
            row["against_previous"] = difference(results[compared[compared.index(name) - 1]], result)
        rows.append(row)
    shared = {key: first.metrics[key] for key in ("data", "decoding", "rules", "task")}
    return shared | {"results": rows}


def difference(first: Result, second: Result) -> dict[str, Any]:
    """How far *second* is ahead of *first* on the same puzzles: share, 95% interval, and how likely chance is.

    One completion a puzzle: Newcombe's interval and McNemar's exact p. Several: those of the mean of
    differences between puzzles' shares.
    """
    one, other = _shares(first), _shares(second)
    pairs = list(zip(one, other, strict=True))
    if len(first.samples) == first.metrics["n"]:
        lost, won = pairs.count((1, 0)), pairs.count((0, 1))
        share, (low, high) = paired_difference(pairs.count((1, 1)), lost, won, pairs.count((0, 0)))
        p = mcnemar(lost, won)
    else:
        share, (low, high), p = paired_mean(one, other)
    return {
        "difference": round(share, 6),
        "interval": [round(low, 6), round(high, 6)],
        "won": sum(before < after for before, after in pairs),
        "lost": sum(before > after for before, after in pairs),
        "p": float(f"{p:.3g}"),
    }


def changes(results: Mapping[str, Result]) -> list[dict[str, Any]]:
    """The puzzles that changed side, from the first result that is compared to each other and from each to the next.

    Of several completions of a puzzle the side is how many are right, and those shown are the first wrong
    and the first right one that tell.
    """
    names = _compared(results)
    pairs = dict.fromkeys([*((names[0], name) for name in names[1:]), *pairwise(names)])
    return [change for first, second in pairs for change in _changes(first, second, results)]


def _models(results: Mapping[str, Result]) -> list[str]:
    return [name for name, result in results.items() if not baselines.is_bound(result.metrics)]


def _compared(results: Mapping[str, Result]) -> list[str]:
    """Which of *results* are held against each other."""
    models = _models(results)
    return models if len(models) > 1 else list(results)


def read_changes(path: Path) -> list[dict[str, Any]]:
    """What :func:`changes` gave for the comparison at *path*."""
    # Bytes, because a text's lines also end at characters that a model may have written.
    return [json.loads(line) for line in (Path(path) / CHANGES).read_bytes().splitlines()]


def _changes(first: str, second: str, results: Mapping[str, Result]) -> Iterator[dict[str, Any]]:
    sides = [_by_puzzle(results[name]) for name in (first, second)]
    for before, after in zip(*sides, strict=True):
        was, now = (sum(sample["correct"] for sample in side) for side in (before, after))
        if was == now:
            continue
        won = now > was
        shown = {
            when: next(sample for sample in side if sample["correct"] is right)
            for when, side, right in (("before", before, not won), ("after", after, won))
        }
        yield (
            {"from": first, "to": second, "side": "won" if won else "lost"}
            | {key: before[0][key] for key in _PUZZLE if key in before[0]}
            | ({"right_before": was, "right_after": now, "completions": len(before)} if len(before) > 1 else {})
            | {when: {key: sample.get(key) for key in _SAID} for when, sample in shown.items()}
        )


def _by_puzzle(result: Result) -> list[list[dict[str, Any]]]:
    each = len(result.samples) // result.metrics["n"]
    return [result.samples[at : at + each] for at in range(0, len(result.samples), each)]


def _shares(result: Result) -> list[float]:
    """The share of each puzzle's completions that is right."""
    return [sum(sample["correct"] for sample in some) / len(some) for some in _by_puzzle(result)]


def table(values: Mapping[str, Any]) -> str:
    """The Markdown table of :func:`numbers`."""
    sizes = sorted({size for row in values["results"] for size in row["by_size"]}, key=int)
    head = ["", "solved", "95%", *(f"{size} numbers" for size in sizes), "format", "tokens", "against the one before"]
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    for row in values["results"]:
        low, high = row["interval"]
        cells = [
            row["name"].replace("|", "\\|"),
            percent(row["accuracy"]),
            f"{percent(low)} to {percent(high)}",
            *(percent(row["by_size"][size]["accuracy"]) if size in row["by_size"] else "" for size in sizes),
            *(("", "") if baselines.is_bound(row) else (percent(row["format"]), f"{row['mean_tokens']:.0f}")),
            points(row["against_previous"]) if "against_previous" in row else "",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", terms(values)]
    return "\n".join(lines) + "\n"


def terms(values: Mapping[str, Any]) -> str:
    """On which puzzles, how decoded, and which intervals, in one sentence."""
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


def percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def points(change: Mapping[str, Any]) -> str:
    """A paired difference in percentage points, with its interval."""
    low, high = change["interval"]
    return f"{100 * change['difference']:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"


def _same_terms(first_name: str, first: Result, name: str, other: Result) -> None:
    # A row need not have an id; the first so many rows of one file are the same puzzles.
    if any(first.metrics[key] != other.metrics[key] for key in ("n", "data")):
        raise InputError(
            f"{name} and {first_name} were scored on different puzzles; give both the same --data and --limit."
        )
    one, another = first.metrics["decoding"], other.metrics["decoding"]
    if baselines.is_bound(other.metrics):  # nothing is decoded, but there may be several answers a puzzle
        one, another = one.get("samples", 1), another["samples"]
    if one != another:
        raise InputError(f"{name} and {first_name} were decoded differently; evaluate both with the same options.")
