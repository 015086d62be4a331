"""Comparison of evaluations on the same puzzles: paired differences, means over runs, and the puzzles that changed."""

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from countdown_rl.core import artifacts
from countdown_rl.core.errors import InputError
from countdown_rl.evaluation import tables
from countdown_rl.evaluation.metrics import pass_at_k, rounded
from countdown_rl.evaluation.results import Result, common_split, read
from countdown_rl.evaluation.sample import DecodingSettings, EvaluatedModel, Metrics
from countdown_rl.evaluation.statistics import few_differ, mcnemar, mean_interval, paired_difference, paired_mean
from countdown_rl.tasks import jsonl

TABLE, FIGURES, CHANGES = "comparison.md", "comparison.json", "changes.jsonl"

#: Figures of a result that a comparison has.
_FIGURES: tuple[str, ...] = ("accuracy", "n", "correct", "interval", "pass_at", "groups")
_FIGURES += ("format", "mean_tokens", "truncated", "model")
#: Fields of each of the two completions of a change.
_COMPLETION = ("correct", "completion", "answer", "value", "reason", "truncated")


def compare(evaluations: Mapping[str, Sequence[Path | Result]], out: Path | None = None) -> dict[str, Any]:
    """Compare *evaluations*, by name, and write a ``comparison`` artifact at *out*, if that is given.

    Several under one name are runs of one setting, of which means are compared.

    Returns:
        The contents of ``comparison.json``: see :func:`figures`.
    """
    if out:
        artifacts.check_writable(out, "comparison")
    if len(evaluations) < 2:
        raise InputError("give at least two evaluations to compare.")
    runs = {
        name: [one if isinstance(one, Result) else read(one) for one in group] for name, group in evaluations.items()
    }
    results = {name: averaged(name, group) for name, group in runs.items()}
    values = figures(results)
    if out is None:
        return values
    inputs = {
        name if len(group) == 1 else f"{name} {number}": result.manifest.as_input()
        for name, group in runs.items()
        for number, result in enumerate(group, 1)
    }
    with artifacts.writing(out, "comparison", options={"names": list(evaluations)}, inputs=inputs) as draft:
        (draft.path / FIGURES).write_text(json.dumps(values, indent=2) + "\n", "utf-8")
        (draft.path / TABLE).write_text(tables.markdown(values), "utf-8")
        jsonl.write_rows(draft.path / CHANGES, changes(results))
    return values


def by_name(paths: Sequence[Path]) -> dict[str, Path]:
    """*paths* by the name of the directory, or by the whole path where two names are equal.

    Raises:
        InputError: a path is given twice.
    """
    _check_distinct(paths)
    names = [path.name or path.resolve().name for path in paths]
    if len(set(names)) < len(names):  # runs/a/eval and runs/b/eval
        names = [path.as_posix() for path in paths]
    return dict(zip(names, paths, strict=True))


def by_setting(words: Sequence[str]) -> dict[str, list[Path]]:
    """The evaluations that *words* give by name: each a directory, or ``NAME=DIR,DIR,...`` for runs of one setting.

    Raises:
        InputError: a path or a name is given twice.
    """
    groups = {word: word.partition("=") for word in words if "=" in word and not os.path.exists(word)}
    if unnamed := [word for word in groups if not re.fullmatch(r"[^=]+=[^,]+(,[^,]+)*", word)]:
        raise InputError(f"{unnamed[0]} should be NAME=DIR,DIR,...")
    names = {path: name for name, path in by_name([Path(word) for word in words if word not in groups]).items()}
    settings: dict[str, list[Path]] = {}
    for word in words:
        name, _, directories = groups.get(word) or (names[Path(word)], "", "")
        if name in settings:
            raise InputError(f"the name {name} is given twice; give the runs of a setting after one NAME=.")
        settings[name] = list(map(Path, directories.split(","))) if directories else [Path(word)]
    _check_distinct([path for paths in settings.values() for path in paths])
    return settings


def _check_distinct(paths: Sequence[Path]) -> None:
    repeated = [path for path, count in Counter(path.resolve() for path in paths).items() if count > 1]
    if repeated:
        raise InputError(f"{repeated[0].name} is given twice; give each path once.")


def averaged(name: str, runs: Sequence[Result]) -> Result:
    """The *runs* of the setting *name* as one result: figures are means over runs, puzzles have the samples of all.

    The interval of a mean is that of the puzzles, for these runs.

    Raises:
        InputError: they are not of the same puzzles, or not decoded alike; seeds may differ. Or two of them are one.
    """
    first = runs[0]
    if len(runs) == 1:
        return first
    terms = [(run.metrics.n, run.metrics.data, _decoding(run)) for run in runs]
    if any(term != terms[0] for term in terms):
        raise InputError(f"the runs of {name} differ in data or decoding; evaluate them with the same options.")
    texts = [[sample.completion for sample in run.samples] for run in runs]
    for (index, run), (other, copy) in combinations(enumerate(runs), 2):
        if texts[index] == texts[other] and run.metrics.model.digest == copy.metrics.model.digest:
            raise InputError(
                f"{run.path} and {copy.path}, runs of {name}, have the same completions: one run given twice says "
                "nothing about the deviation between runs; give each run once."
            )
    values = [run.metrics.to_json() for run in runs]
    mean = Metrics.from_json(
        values[0] | _mean([{key: part[key] for key in _FIGURES if key in part} for part in values]), name
    )
    puzzles = zip(*(run.by_puzzle for run in runs), strict=True)
    result = Result(mean, [sample for puzzle in puzzles for samples in puzzle for sample in samples], runs=runs)

    def interval(k: int) -> tuple[float, float]:
        return rounded(mean_interval(_shares(result, k), len(runs) * (len(first.by_puzzle[0]) // k)))

    metrics = replace(
        mean,
        interval=interval(1),
        pass_at={k: replace(share, interval=interval(k)) for k, share in mean.pass_at.items()},
        decoding=_decoding(first),
        model=EvaluatedModel(source=name, kind=first.metrics.model.kind),
    )
    return replace(result, metrics=metrics)


def _mean(values: Sequence[Any]) -> Any:
    """The mean of figures of one form, key by key; of what is equal or no number, the first one. Has no intervals."""
    first = values[0]
    if isinstance(first, dict):
        keys = [key for key in first if key != "interval" and all(key in value for value in values)]
        return {key: _mean([value[key] for value in values]) for key in keys}
    if not isinstance(first, int | float) or all(value == first for value in values):
        return first
    return round(fmean(values), 6)


def _shares(result: Result, k: int = 1) -> list[float]:
    """pass@k of each puzzle, the mean over the runs of *result*."""
    count = len(result.by_puzzle[0]) // max(1, len(result.runs))  # of completions in one run
    return [
        fmean(
            pass_at_k(k, sum(sample.grade.correct for sample in samples[start : start + count]), count)
            for start in range(0, len(samples), count)
        )
        for samples in result.by_puzzle
    ]


def figures(results: Mapping[str, Result]) -> dict[str, Any]:
    """The metrics of each result, and its paired differences from the first and the previous one decoded like it.

    Baselines are listed but not compared, except against a single model. A result that is not decoded like the first
    one has its own ``decoding``.

    Raises:
        InputError: none is of a model, their puzzles differ, or one is decoded like no other.
    """
    models = _models(results)
    if not models:
        raise InputError("give an evaluation of a model beside the baselines.")
    first = results[models[0]]
    groups = _comparable(results)
    # A baseline may have several answers per puzzle.
    counts = {results[name].metrics.decoding.samples or 1 for name in models}
    rows = []
    for name, result in results.items():
        compared = next((group for group in groups if name in group), [])
        # Rows need no id; the first n rows of the same file are the same puzzles.
        if (first.metrics.n, first.metrics.data) != (result.metrics.n, result.metrics.data):
            raise InputError(
                f"{name} and {models[0]} were scored on different data; give both the same --data and --limit."
            )
        unlike = result.metrics.decoding.samples not in counts if name not in models else len(compared) == 1
        if unlike and name != models[0]:
            raise InputError(f"{name} and {models[0]} were decoded differently; evaluate both with the same options.")
        metrics = result.metrics.to_json()
        row = {"name": name} | {key: metrics[key] for key in _FIGURES if key in metrics}
        if result.runs:
            accuracies = _accuracies(result)
            row |= {"runs": accuracies, "sd": round(stdev(accuracies), 6)}
        if name in models and _decoding(result) != _decoding(first):
            row["decoding"] = metrics["decoding"]
        if name in compared[1:]:
            row["against_first"] = difference(results[compared[0]], result)
            row["against_previous"] = difference(results[compared[compared.index(name) - 1]], result)
        rows.append(row)
    metrics = first.metrics.to_json()
    described = {key: metrics[key] for key in ("data", "decoding", "rules", "task")}
    return described | {"split": common_split([results[name] for name in models]), "results": rows}


def difference(first: Result, second: Result) -> dict[str, Any]:
    """The accuracy of *second* less that of *first*, paired by puzzle, with 95% interval and p-value.

    With one completion per puzzle: Newcombe's interval and McNemar's exact test. With several, or means over runs:
    :func:`paired_mean`, ``adjusted`` where few puzzles differ; also of pass@k under ``pass_at`` for each k above 1 that
    both have. ``runs`` are the differences of the runs, with ``sd``: of the first run of each, of the second and so on,
    or of each with a single result.
    """
    before, after = _shares(first), _shares(second)
    pairs = list(zip(before, after, strict=True))
    passes, adjusted = {}, False
    if len(first.samples) == len(second.samples) == len(pairs):
        lost, won = pairs.count((1, 0)), pairs.count((0, 1))
        value, (low, high) = paired_difference(pairs.count((1, 1)), lost, won, pairs.count((0, 0)))
        p = mcnemar(lost, won)
    else:
        value, (low, high), p = paired_mean(before, after)
        adjusted = few_differ(before, after)
        for k in sorted(first.metrics.pass_at.keys() & second.metrics.pass_at.keys() - {1}):
            change, limits, _ = paired_mean(*(_shares(result, k) for result in (first, second)))
            passes[str(k)] = {"difference": round(change, 6), "interval": [*rounded(limits)]}
    return {
        "difference": round(value, 6),
        "interval": [round(low, 6), round(high, 6)],
        **({"pass_at": passes} if passes else {}),
        "won": sum(before < after for before, after in pairs),
        "lost": sum(before > after for before, after in pairs),
        "p": float(f"{p:.3g}"),
        **({"adjusted": True} if adjusted else {}),
        **_by_run(first, second),
    }


def _by_run(first: Result, second: Result) -> dict[str, Any]:
    """The differences of the runs, and their standard deviation; nothing without runs, or with unequal numbers."""
    before, after = _accuracies(first), _accuracies(second)
    count = max(len(before), len(after))
    if count == 1 or not {len(before), len(after)} <= {1, count}:
        return {}
    differences = [round(after[run % len(after)] - before[run % len(before)], 6) for run in range(count)]
    return {"runs": differences, "sd": round(stdev(differences), 6)}


def _accuracies(result: Result) -> list[float]:
    """The accuracies of the runs of *result*."""
    return [run.metrics.accuracy for run in result.runs or [result]]


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
    return [name for name, result in results.items() if not result.metrics.is_baseline]


def _decoding(result: Result) -> DecodingSettings:
    """The decoding settings of *result*, without the seed: results of several seeds are comparable."""
    return replace(result.metrics.decoding, seed=None)


def _comparable(results: Mapping[str, Result]) -> list[list[str]]:
    """The names of the results that have paired differences: models decoded alike, or one model and the baselines."""
    models = _models(results)
    if len(models) == 1:
        return [list(results)]
    groups: dict[DecodingSettings, list[str]] = {}
    for name in models:
        groups.setdefault(_decoding(results[name]), []).append(name)
    return list(groups.values())


def _changes(first: str, second: str, results: Mapping[str, Result]) -> Iterator[dict[str, Any]]:
    for before, after in zip(results[first].by_puzzle, results[second].by_puzzle, strict=True):
        was, now = (sum(sample.grade.correct for sample in samples) for samples in (before, after))
        if was * len(after) == now * len(before):
            continue
        won = now * len(before) > was * len(after)
        shown = {
            "before": next(sample for sample in before if sample.grade.correct is not won).to_json(),
            "after": next(sample for sample in after if sample.grade.correct is won).to_json(),
        }
        yield (
            {"from": first, "to": second, "side": "won" if won else "lost"}
            | before[0].row.kept
            | (
                {"right_before": was, "right_after": now, "completions": len(before)}
                if len(before) == len(after) > 1
                else {}
            )
            | {when: {key: sample[key] for key in _COMPLETION} for when, sample in shown.items()}
        )
