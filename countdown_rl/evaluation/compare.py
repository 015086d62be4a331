"""Comparison of evaluations on the same puzzles: paired differences, means over runs, and the puzzles that changed."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path
from statistics import stdev
from typing import Any

from countdown_rl.core import artifacts
from countdown_rl.core.errors import InputError, UsageError
from countdown_rl.evaluation import tables
from countdown_rl.evaluation.caveats import caveats
from countdown_rl.evaluation.metrics import measure, puzzle_share, rounded
from countdown_rl.evaluation.results import Result, read, split
from countdown_rl.evaluation.sample import DecodingSettings, EvaluatedModel, Metrics
from countdown_rl.evaluation.statistics import few_differ, mcnemar, paired_difference, paired_mean
from countdown_rl.tasks import jsonl

TABLE, FIGURES, CHANGES = "comparison.md", "comparison.json", "changes.jsonl"

#: Figures of a result that a comparison has.
_FIGURES: tuple[str, ...] = ("accuracy", "n", "correct", "interval", "pass_at", "groups")
_FIGURES += ("format", "mean_tokens", "truncated", "model")
#: Fields of each of the two completions of a change.
_COMPLETION = ("correct", "completion", "answer", "value", "reason", "truncated")


def compare(
    evaluations: Mapping[str, Sequence[Path | Result]],
    out: Path | None = None,
    against: str | None = None,
    on_warning: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Return the :func:`figures` of *evaluations*, by name, and write a ``comparison`` artifact at *out*, if given.

    Several under one name are runs of one setting, of which means are compared. *against* is the name of the one that
    all others are compared with. *on_warning* is called with each of the :func:`caveats`.
    """
    if out:
        artifacts.check_writable(out, "comparison")
    if len(evaluations) < 2:
        raise InputError("give at least two evaluations to compare.")
    runs = {
        name: [evaluation if isinstance(evaluation, Result) else read(evaluation) for evaluation in group]
        for name, group in evaluations.items()
    }
    results = {name: pooled(name, group) for name, group in runs.items()}
    values = figures(results, against)
    for sentence in caveats(results):
        on_warning(sentence)
    if out is None:
        return values
    inputs = {
        name if len(group) == 1 else f"{name} {number}": result.manifest.as_input()
        for name, group in runs.items()
        for number, result in enumerate(group, 1)
    }
    options = {"names": list(evaluations), **({"against": against} if against else {})}
    with artifacts.writing(out, "comparison", options=options, inputs=inputs) as draft:
        (draft.path / FIGURES).write_text(json.dumps(values, indent=2) + "\n", "utf-8")
        (draft.path / TABLE).write_text(tables.markdown(values), "utf-8")
        jsonl.write_rows(draft.path / CHANGES, changes(results, against))
    return values


def by_name(paths: Sequence[Path]) -> dict[str, Path]:
    """*paths*, each given once, by the name of the directory, or by the whole path where two names are equal."""
    _check_distinct([path.resolve() for path in paths])
    names = [path.name or path.resolve().name for path in paths]
    if len(set(names)) < len(names):  # runs/a/eval and runs/b/eval
        names = [path.as_posix() for path in paths]
    return dict(zip(names, paths, strict=True))


def by_setting(words: Sequence[str]) -> dict[str, list[Path]]:
    """The evaluations that *words* give by name: each a directory, or ``NAME=DIR,DIR,...`` for runs of one setting."""
    parts = [(word, "", "") if os.path.exists(word) else word.partition("=") for word in words]
    names = {path: name for name, path in by_name([Path(word) for word, sign, _ in parts if not sign]).items()}
    settings = [
        (word, directories.split(",")) if sign else (names[Path(word)], [word]) for word, sign, directories in parts
    ]
    for name, directories in settings:
        if not name or "" in directories:
            raise UsageError(f"{name}={','.join(directories)} should be NAME=DIR,DIR,...")
    _check_distinct([Path(directory).resolve() for _, directories in settings for directory in directories])
    _check_distinct([name for name, _ in settings])
    return {name: [Path(directory) for directory in directories] for name, directories in settings}


def _check_distinct(values: Sequence[Path | str]) -> None:
    if repeated := [value for value in values if values.count(value) > 1]:
        raise UsageError(f"{repeated[0]} is given twice; give each directory and each NAME= once.")


def pooled(name: str, runs: Sequence[Result]) -> Result:
    """The *runs* of the setting *name* as one result: figures are means over runs, puzzles have the samples of all.

    The interval of a mean is that of the puzzles, for these runs. Of their decoding only the seeds may differ.
    """
    first = runs[0]
    if len(runs) == 1:
        return first
    terms = [(run.metrics.n, run.metrics.data, decoding(run)) for run in runs]
    if terms != terms[:1] * len(runs):
        raise InputError(f"the runs of {name} differ in data or decoding; evaluate them with the same options.")
    for run, other in combinations(runs, 2):
        texts = [[sample.completion for sample in result.samples] for result in (run, other)]
        if texts[0] == texts[1] and run.metrics.model.digest == other.metrics.model.digest:
            raise InputError(
                f"{run.path} and {other.path}, runs of {name}, have the same completions: one run given twice says "
                "nothing about the deviation between runs; give each run once."
            )
    puzzles = zip(*(run.by_puzzle for run in runs), strict=True)
    samples = [sample for puzzle in puzzles for of_run in puzzle for sample in of_run]
    rows = [puzzle[0].row for puzzle in first.by_puzzle]
    pass_at = [k for k in first.metrics.pass_at if all(k in run.metrics.pass_at for run in runs)]
    metrics = Metrics(
        **vars(measure(samples, rows, pass_at, len(runs))),
        decoding=decoding(first),
        data=first.metrics.data,
        model=EvaluatedModel(source=name, kind=first.metrics.model.kind),
    )
    return Result(metrics, samples, manifest=first.manifest, path=first.path, runs=runs)


def figures(results: Mapping[str, Result], against: str | None = None) -> dict[str, Any]:
    """The metrics of each result, and its paired differences from the first and the previous one decoded like it.

    With *against*, a name, the difference is from that result alone. Baselines are listed but not compared, except
    against a single model. A result that is not decoded like the first one has its own ``decoding``. Raises InputError
    if none is of a model, puzzles differ, or one is decoded like no other.
    """
    models = _models(results)
    if not models:
        raise InputError("give an evaluation of a model beside the baselines.")
    first, references = results[models[0]], _references(results, against)
    compared = {other for others in references.values() for other in others.values()} | references.keys()
    sample_counts = {results[name].metrics.decoding.samples or 1 for name in models}
    rows = []
    for name, result in results.items():
        metrics = result.metrics.to_json()
        # Rows need no id; the first n rows of the same file are the same puzzles.
        if (first.metrics.n, first.metrics.data) != (result.metrics.n, result.metrics.data):
            raise InputError(
                f"{name} and {models[0]} were scored on different data; give both the same --data and --limit."
            )
        # A baseline may have several answers per puzzle.
        alike = name in compared if name in models else result.metrics.decoding.samples in sample_counts
        reference = against or models[0]
        if not alike and name != reference:
            raise InputError(f"{name} and {reference} were decoded differently; evaluate both with the same options.")
        row = {"name": name} | {key: metrics[key] for key in _FIGURES if key in metrics}
        if result.runs:
            row |= {"runs": _accuracies(result), "sd": round(stdev(_accuracies(result)), 6)}
        if name in models and decoding(result) != decoding(first):
            row["decoding"] = metrics["decoding"]
        for key, other in references.get(name, {}).items():
            row[key] = difference(results[other], result)
        rows.append(row)
    metrics = first.metrics.to_json()
    described = {key: metrics[key] for key in ("data", "decoding", "rules", "task")}
    described |= {"against": against} if against else {}
    return described | {"split": split(*(results[name] for name in models)), "results": rows}


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
        value, interval = paired_difference(pairs.count((1, 1)), lost, won, pairs.count((0, 0)))
        p = mcnemar(lost, won)
    else:
        value, interval, p = paired_mean(before, after)
        adjusted = few_differ(before, after)
        for k in sorted(first.metrics.pass_at.keys() & second.metrics.pass_at.keys() - {1}):
            change, limits, _ = paired_mean(_shares(first, k), _shares(second, k))
            passes[str(k)] = {"difference": round(change, 6), "interval": [*rounded(limits)]}
    return {
        "difference": round(value, 6),
        "interval": [*rounded(interval)],
        **({"pass_at": passes} if passes else {}),
        "won": sum(before < after for before, after in pairs),
        "lost": sum(before > after for before, after in pairs),
        "p": float(f"{p:.3g}"),
        **({"adjusted": True} if adjusted else {}),
        **_by_run(_accuracies(first), _accuracies(second)),
    }


def _by_run(before: Sequence[float], after: Sequence[float]) -> dict[str, Any]:
    """The differences of the runs, and their standard deviation; nothing without runs, or with unequal numbers."""
    count = max(len(before), len(after))
    if count == 1 or not {len(before), len(after)} <= {1, count}:
        return {}
    differences = [round(after[run % len(after)] - before[run % len(before)], 6) for run in range(count)]
    return {"runs": differences, "sd": round(stdev(differences), 6)}


def _accuracies(result: Result) -> list[float]:
    """The accuracies of the runs of *result*."""
    return [run.metrics.accuracy for run in result.runs or [result]]


def _shares(result: Result, k: int = 1) -> list[float]:
    """pass@k of each puzzle, the mean over the runs of *result*."""
    return [puzzle_share(samples, k, len(result.runs) or 1) for samples in result.by_puzzle]


def _models(results: Mapping[str, Result]) -> list[str]:
    return [name for name, result in results.items() if not result.metrics.is_baseline]


def decoding(result: Result) -> DecodingSettings:
    """The decoding settings of *result*, without the seed: results of several seeds are comparable."""
    return replace(result.metrics.decoding, seed=None)


def _comparable(results: Mapping[str, Result]) -> list[list[str]]:
    """The names of the results that have paired differences: models decoded alike, or one model and the baselines."""
    models = _models(results)
    if len(models) == 1:
        return [[*results]]
    groups: dict[DecodingSettings, list[str]] = {}
    for name in models:
        groups.setdefault(decoding(results[name]), []).append(name)
    return list(groups.values())


def _references(results: Mapping[str, Result], against: str | None) -> dict[str, dict[str, str]]:
    """The names that each result is compared with, by the key of the difference."""
    if against is not None and against not in results:
        raise UsageError(f"--against {against} is none of the results: {', '.join(results)}.")
    references: dict[str, dict[str, str]] = {}
    for names in _comparable(results):
        if against in names:
            references |= {name: {"against": against} for name in names if name != against}
        elif against is None:
            pairs = pairwise(names)
            references |= {name: {"against_first": names[0], "against_previous": before} for before, name in pairs}
    if against and not references:
        raise InputError(f"no result is compared with {against}: give one of a model, and one decoded like it.")
    return references


def changes(results: Mapping[str, Result], against: str | None = None) -> Iterator[dict[str, Any]]:
    """Yield the puzzles won and lost, from the results that each one is compared with to it.

    With several completions per puzzle, more or fewer of them are correct; shown are the first wrong and the first
    correct one.
    """
    references = _references(results, against)
    pairs = dict.fromkeys(
        (references[name][key], name)
        for names in _comparable(results)
        for key in tables.DIFFERENCES
        for name in names
        if key in references.get(name, {})
    )
    for first, second in pairs:
        for before, after in zip(results[first].by_puzzle, results[second].by_puzzle, strict=True):
            was, now = puzzle_share(before), puzzle_share(after)
            if was == now:
                continue
            change = {"from": first, "to": second, "side": "won" if now > was else "lost"} | before[0].row.kept
            if len(before) == len(after) > 1:
                right = [sum(sample.grade.correct for sample in samples) for samples in (before, after)]
                change |= {"right_before": right[0], "right_after": right[1], "completions": len(before)}
            for when, samples, correct in (("before", before, now < was), ("after", after, now > was)):
                line = next(sample for sample in samples if sample.grade.correct is correct).to_json()
                change[when] = {key: line[key] for key in _COMPLETION}
            yield change
