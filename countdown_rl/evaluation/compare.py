"""Comparison of evaluations on the same puzzles: paired differences, a table, and the puzzles that changed."""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from countdown_rl import artifacts
from countdown_rl.data import jsonl
from countdown_rl.errors import InputError
from countdown_rl.evaluation.metrics import pass_at_k
from countdown_rl.evaluation.results import Result, is_baseline, read
from countdown_rl.evaluation.statistics import mcnemar, paired_difference, paired_mean
from countdown_rl.formatting import interval, percent
from countdown_rl.tasks.registry import parse_row, task_of

TABLE, FIGURES, CHANGES = "comparison.md", "comparison.json", "changes.jsonl"

#: Figures of a result that a comparison has.
_FIGURES: tuple[str, ...] = ("accuracy", "n", "correct", "interval", "pass_at", "groups")
_FIGURES += ("format", "mean_tokens", "truncated", "model")
#: Fields of each of the two completions of a change.
_COMPLETION = ("correct", "completion", "answer", "value", "reason", "truncated")


def compare(paths: Mapping[str, Path], out: Path) -> dict[str, Any]:
    """Compare the evaluations at *paths*, by name, and write a ``comparison`` artifact at *out*.

    Returns:
        The contents of ``comparison.json``: see :func:`figures`.
    """
    artifacts.check_writable(out, "comparison")
    if len(paths) < 2:
        raise InputError("give at least two evaluations to compare.")
    results = {name: read(path) for name, path in paths.items()}
    inputs = {name: result.manifest.as_input() for name, result in results.items()}
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
    """The metrics of each result, and its paired differences from the first and the previous one decoded like it.

    Baselines have no differences, unless there is only one model to compare them with; the teacher never has, as its
    accuracy is an expectation. A result that is not decoded like the first one has its own ``decoding``.

    Raises:
        InputError: none is of a model, their puzzles differ, or one is decoded like no other.
    """
    models = _models(results)
    if not models:
        raise InputError("give an evaluation of a model beside the baselines.")
    first = results[models[0]]
    groups = _comparable(results)
    # A baseline may have several answers per puzzle.
    counts = {results[name].metrics["decoding"].get("samples", 1) for name in models}
    rows = []
    for name, result in results.items():
        compared = next((group for group in groups if name in group), [])
        # Rows need no id; the first n rows of the same file are the same puzzles.
        if any(first.metrics[key] != result.metrics[key] for key in ("n", "data")):
            raise InputError(
                f"{name} and {models[0]} were scored on different data; give both the same --data and --limit."
            )
        unlike = result.metrics["decoding"]["samples"] not in counts if name not in models else len(compared) == 1
        if unlike and name != models[0]:
            raise InputError(f"{name} and {models[0]} were decoded differently; evaluate both with the same options.")
        row = {"name": name} | {key: result.metrics[key] for key in _FIGURES if key in result.metrics}
        if name in models and result.metrics["decoding"] != first.metrics["decoding"]:
            row["decoding"] = result.metrics["decoding"]
        if name in compared[1:]:
            row["against_first"] = difference(results[compared[0]], result)
            row["against_previous"] = difference(results[compared[compared.index(name) - 1]], result)
        rows.append(row)
    return {key: first.metrics[key] for key in ("data", "decoding", "rules", "task")} | {"results": rows}


def difference(first: Result, second: Result) -> dict[str, Any]:
    """The accuracy of *second* less that of *first*, paired by puzzle, with 95% interval and p-value.

    With one completion per puzzle: Newcombe's interval and McNemar's exact test. With several: the normal interval
    and test of the mean difference, also of pass@k under ``pass_at`` for each k above 1 that both have.
    """
    per_puzzle = len(first.by_puzzle[0])
    counts = [[sum(sample["correct"] for sample in samples) for samples in side.by_puzzle] for side in (first, second)]
    pairs = list(zip(*counts, strict=True))
    passes = {}
    if per_puzzle == 1:
        lost, won = pairs.count((1, 0)), pairs.count((0, 1))
        value, (low, high) = paired_difference(pairs.count((1, 1)), lost, won, pairs.count((0, 0)))
        p = mcnemar(lost, won)
    else:
        value, (low, high), p = paired_mean(*([pass_at_k(1, c, per_puzzle) for c in side] for side in counts))
        for k in [k for k in first.metrics["pass_at"] if k != "1" and k in second.metrics["pass_at"]]:
            change, limits, _ = paired_mean(*([pass_at_k(int(k), c, per_puzzle) for c in side] for side in counts))
            passes[k] = {"difference": round(change, 6), "interval": [round(limit, 6) for limit in limits]}
    return {
        "difference": round(value, 6),
        "interval": [round(low, 6), round(high, 6)],
        **({"pass_at": passes} if passes else {}),
        "won": sum(before < after for before, after in pairs),
        "lost": sum(before > after for before, after in pairs),
        "p": float(f"{p:.3g}"),
    }


def changes(results: Mapping[str, Result]) -> list[dict[str, Any]]:
    """The puzzles won and lost, from the first result decoded alike to each other one, and from each to the next.

    With several completions per puzzle, more or fewer of them are correct; shown are the first wrong and the first
    correct one.
    """
    pairs = dict.fromkeys(
        pair for names in _comparable(results) for pair in [*((names[0], name) for name in names[1:]), *pairwise(names)]
    )
    return [change for first, second in pairs for change in _changes(first, second, results)]


def _models(results: Mapping[str, Result]) -> list[str]:
    return [name for name, result in results.items() if not is_baseline(result.metrics)]


def _comparable(results: Mapping[str, Result]) -> list[list[str]]:
    """The names of the results that have paired differences: models decoded alike, or one model and the baselines.

    The accuracy of the teacher is not that of its samples.
    """
    models = _models(results)
    if len(models) == 1:
        return [[name for name, result in results.items() if result.metrics["model"]["kind"] != "teacher"]]
    groups: dict[str, list[str]] = {}
    for name in models:
        groups.setdefault(json.dumps(results[name].metrics.get("decoding"), sort_keys=True), []).append(name)
    return list(groups.values())


def _changes(first: str, second: str, results: Mapping[str, Result]) -> Iterator[dict[str, Any]]:
    for before, after in zip(results[first].by_puzzle, results[second].by_puzzle, strict=True):
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
            | parse_row(before[0]).kept
            | ({"right_before": was, "right_after": now, "completions": len(before)} if len(before) > 1 else {})
            | {when: {key: sample.get(key) for key in _COMPLETION} for when, sample in shown.items()}
        )


def table(values: Mapping[str, Any]) -> str:
    """The Markdown table of :func:`figures`."""
    task, groups = task_of(values), values["results"][0]["groups"]
    main = next((group for group in groups if task.group(group).main), "")
    columns = list(groups.get(main, ()))
    k = largest_k(values)
    passes = [f"pass@{k}"] if k else []
    values_of_group = (task.group(main).name(value) for value in columns)
    head = ["", "solved", "95%", *values_of_group, *passes, "format", "tokens", "against the one before"]
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    for row in values["results"]:
        cells = [
            row["name"].replace("|", "\\|"),
            percent(row["accuracy"]),
            interval(row["interval"]),
            *(percent(row["groups"][main][value]["accuracy"]) for value in columns),
            *(percent(row["pass_at"][k]["share"]) if k in row.get("pass_at", ()) else "" for _ in passes),
            *(("", "") if is_baseline(row) else (percent(row["format"]), f"{row['mean_tokens']:.0f}")),
            points(row["against_previous"]) if "against_previous" in row else "",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", conditions(values)]
    return "\n".join(lines) + "\n"


def largest_k(values: Mapping[str, Any]) -> str | None:
    """The largest k of which a result has pass@k; None where none has several completions."""
    return max((k for row in values["results"] for k in row.get("pass_at", ())), key=int, default=None)


def conditions(values: Mapping[str, Any]) -> str:
    """One sentence on the puzzles, the decoding and the intervals."""
    first = values["results"][0]
    others: dict[str, list[str]] = {}
    for row in values["results"]:
        if "decoding" in row:
            others.setdefault(_how(row["decoding"]), []).append(row["name"])
    decodings = [_how(values["decoding"]), *(f"{', '.join(names)}: {how}" for how, names in others.items())]
    several = [row for row in values["results"] if "pass_at" in row]
    intervals = ["Wilson; Newcombe for paired differences"] if len(several) < len(values["results"]) else []
    intervals += ["Wilson at the effective sample size; normal for paired differences"] if several else []
    return (
        f"{first['n']:,} held-out {task_of(values).noun}s ({', '.join(values['rules']) or values['task']}), "
        f"{'; '.join(decodings)}; intervals are 95% ({', with several completions '.join(intervals)})."
    )


def _how(decoding: Mapping[str, Any]) -> str:
    how = "greedy"
    if not decoding["greedy"]:
        names = [name for name in ("temperature", "top_p", "top_k", "min_p") if name in decoding]
        how = ", ".join(f"{name.replace('_', '-')} {decoding[name]:g}" for name in names)
    if decoding.get("samples", 1) > 1:
        how += f", {decoding['samples']} completions each"
    return f"{how}, at most {decoding['max_new_tokens']} tokens"


def points(change: Mapping[str, Any]) -> str:
    """A paired difference in percentage points, with its interval."""
    low, high = change["interval"]
    return f"{100 * change['difference']:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"
