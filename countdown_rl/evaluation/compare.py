"""Comparison of evaluations on the same puzzles.

Paired differences, means over runs, and the puzzles whose grade changed.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from statistics import stdev

from countdown_rl.core import artifacts
from countdown_rl.core.errors import InputError, UsageError
from countdown_rl.core.types import JsonObject
from countdown_rl.evaluation import tables
from countdown_rl.evaluation.caveats import caveats
from countdown_rl.evaluation.metrics import measure, puzzle_share, rounded
from countdown_rl.evaluation.results import Result, read, split
from countdown_rl.evaluation.sample import DecodingSettings, EvaluatedModel, Metrics, Sample
from countdown_rl.evaluation.statistics import mcnemar, paired_difference, paired_mean
from countdown_rl.tasks import jsonl
from countdown_rl.tasks.registry import task

TABLE, SCORES, CHANGES = "comparison.md", "comparison.json", "changes.jsonl"

#: Scores of each result in a comparison, and fields of each of the two completions of a change.
_SCORES = (
    "accuracy",
    "n",
    "of",
    "correct",
    "interval",
    "pass_at",
    "groups",
    "format",
    "mean_tokens",
    "truncated",
    "model",
)
_COMPLETION = ("correct", "completion", "answer", "value", "reason", "truncated")


def compare(
    evaluations: Mapping[str, Sequence[Path | Result]],
    out: Path | None = None,
    against: str | None = None,
    on_warning: Callable[[str], None] = lambda _: None,
) -> JsonObject:
    """Compare *evaluations*, and write a ``comparison`` artifact at *out*, if given.

    Args:
        evaluations: by name; several are runs of one setting, whose means are compared.
        out: the directory of the artifact.
        against: the name that all others are compared with.
        on_warning: called with each of the :func:`caveats`.

    Returns:
        The :func:`scores` of the results.
    """
    if out:
        artifacts.check_writable(out, "comparison")
    if len(evaluations) < 2:
        raise InputError("give at least two evaluations to compare.")
    runs: dict[str, list[Result]] = {}
    for name, given in evaluations.items():
        runs[name] = [run if isinstance(run, Result) else read(run) for run in given]
    results = paired({name: pooled(name, of_name) for name, of_name in runs.items()})
    comparison = scores(results, against)
    for sentence in caveats(results):
        on_warning(sentence)
    if out is None:
        return comparison

    inputs = {}
    for name, of_name in runs.items():
        for number, run in enumerate(of_name, 1):
            inputs[name if len(of_name) == 1 else f"{name} {number}"] = run.manifest.as_input()
    options: JsonObject = {"names": list(evaluations)}
    if against:
        options["against"] = against
    with artifacts.writing(out, "comparison", options=options, inputs=inputs) as writer:
        (writer.path / SCORES).write_text(json.dumps(comparison, indent=2) + "\n", "utf-8")
        (writer.path / TABLE).write_text(tables.markdown(comparison), "utf-8")
        jsonl.write_rows(writer.path / CHANGES, changes(results, against))
    return comparison


def by_setting(words: Sequence[str | Path]) -> dict[str, list[Path]]:
    """The evaluations in *words* by name: each a directory, or ``NAME=DIR,DIR,...`` for runs.

    A directory is named by its last component, or by its path if two names are equal.
    """
    settings: list[tuple[str, list[Path]]] = []
    for word in map(str, words):
        name, sign, directories = word.partition("=")
        if not sign or os.path.exists(word):
            settings.append(("", [Path(word)]))
            continue
        paths = directories.split(",")
        if "" in (name, *paths):
            raise UsageError(f"{word} should be NAME=DIR,DIR,...")
        settings.append((name, list(map(Path, paths))))

    single = [paths[0] for name, paths in settings if not name]
    names = [path.name or path.resolve().name for path in single]
    if len(set(names)) < len(names):  # runs/a/eval and runs/b/eval
        names = [path.as_posix() for path in single]
    named = [(name or names.pop(0), paths) for name, paths in settings]
    evaluations = dict(named)
    if len(evaluations) < len(named):
        raise UsageError(f"a name is given twice: {' '.join(map(str, words))}; give each once.")
    return evaluations


def paired(results: Mapping[str, Result]) -> dict[str, Result]:
    """*results* with their puzzles in the order of the first.

    Raises:
        InputError: the puzzles differ, or the grammars of answers that they were graded by.
    """
    first_name, first = next(iter(results.items()))
    puzzles = Counter(first.puzzles)
    ordered = {}
    for name, result in results.items():
        grammars = {first.metrics.grammar, result.metrics.grammar}
        if len(grammars - {None}) > 1:
            raise InputError(
                f"{name} and {first_name} were graded by different versions of the answer grammar; "
                "evaluate both again with --overwrite."
            )
        others = Counter(result.puzzles)
        if others != puzzles:
            noun = task(first.metrics.task).noun
            raise InputError(
                f"{name} and {first_name} have {(others & puzzles).total():,} {noun}s in common, "
                f"of {others.total():,} and {puzzles.total():,}; "
                "evaluate both on the same rows of one task and rule (--data and --limit)."
            )
        completions: dict[tuple[str, str, str], list[list[Sample]]] = {}
        for puzzle, samples in zip(result.puzzles, result.by_puzzle, strict=True):
            completions.setdefault(puzzle, []).append(samples)
        in_order = [completions[puzzle].pop(0) for puzzle in first.puzzles]
        ordered[name] = replace(result, samples=list(chain.from_iterable(in_order)))
    return ordered


def pooled(name: str, runs: Sequence[Result]) -> Result:
    """The *runs* of the setting *name* as one result, whose scores are means over runs.

    The interval of a mean covers the choice of puzzles, for these runs. Their decoding may differ
    in the seed alone.
    """
    first = runs[0]
    if len(runs) == 1:
        return first
    if len({decoding(run) for run in runs}) > 1:
        raise InputError(
            f"the runs of {name} differ in decoding; evaluate them with the same options."
        )
    runs = [*paired({f"{name} {number}": run for number, run in enumerate(runs, 1)}).values()]
    texts = {tuple(sample.completion for sample in run.samples) for run in runs}
    if len(texts) < len(runs):
        raise InputError(f"two runs of {name} have the same completions; give each run once.")
    samples: list[Sample] = []
    for puzzle in zip(*(run.by_puzzle for run in runs), strict=True):
        completions = chain.from_iterable(puzzle)
        samples += [replace(sample, turn=turn) for turn, sample in enumerate(completions)]
    metrics = Metrics(
        **vars(measure(samples, len(runs))),
        decoding=decoding(first),
        data=first.metrics.data,
        model=EvaluatedModel(source=name, kind=first.metrics.model.kind),
        of=first.metrics.of,
        grammar=first.metrics.grammar,
    )
    return Result(metrics, samples, manifest=first.manifest, path=first.path, runs=runs)


def scores(results: Mapping[str, Result], against: str | None = None) -> JsonObject:
    """The metrics of each of *results*, which are :func:`paired`, and their differences.

    Each is compared with the first one that is decoded like it, or with *against*, a name.
    Baselines are listed but not compared, except against a single model. A result that is decoded
    unlike the first has its own ``decoding``.

    Raises:
        InputError: no result is of a model, or one is decoded like no other.
    """
    first_of = _first_of_each(results, against)
    models = _models(results)
    first = results[models[0]]
    rows = []
    for name, result in results.items():
        metrics = result.metrics.to_json()
        row = {"name": name} | {key: metrics[key] for key in _SCORES if key in metrics}
        if result.runs:
            row |= {"runs": _accuracies(result), "sd": round(stdev(_accuracies(result)), 6)}
        if name in models and decoding(result) != decoding(first):
            row["decoding"] = metrics["decoding"]
        if name in first_of:
            other = first_of[name]
            row["against"] = difference(results[other], result) | {"reference": other}
        rows.append(row)
    metrics = first.metrics.to_json()
    described = {key: metrics[key] for key in ("data", "decoding", "rules", "task")}
    return described | {"split": split(*(results[name] for name in models)), "results": rows}


def _models(results: Mapping[str, Result]) -> list[str]:
    return [name for name, result in results.items() if not result.metrics.is_baseline]


def _first_of_each(results: Mapping[str, Result], against: str | None) -> dict[str, str]:
    """The name of the result that each is compared with, by its name."""
    models = _models(results)
    if not models:
        raise InputError("give an evaluation of a model beside the baselines.")
    if against is not None and against not in results:
        raise UsageError(
            f"{against} is none of the results: {', '.join(results)}.", option="against"
        )
    alike: dict[DecodingSettings, list[str]] = {}
    for name in models:
        alike.setdefault(decoding(results[name]), []).append(name)

    first_of: dict[str, str] = {}
    for names in alike.values() if len(models) > 1 else [list(results)]:
        first = against or names[0]
        if first in names:
            first_of |= {name: first for name in names if name != first}
    if against and not first_of:
        raise InputError(
            f"no result is compared with {against}: give one of a model, and one decoded like it."
        )
    compared = {against or models[0], *first_of, *first_of.values()}
    for name in models:
        if name not in compared:
            raise InputError(
                f"{name} and {against or models[0]} were decoded differently; "
                "evaluate both with the same options."
            )
    return first_of


def difference(first: Result, second: Result) -> JsonObject:
    """The accuracy of *second* less that of *first*, with 95% interval and p-value.

    Args:
        first: a result.
        second: another one, :func:`paired` with it.

    Returns:
        With one completion per puzzle: Newcombe's interval and McNemar's exact test. With several,
        or means over runs: :func:`paired_mean`, also for pass@k. ``runs`` are the differences of
        the first runs, of the second runs and so on, or of each run from a single result; ``sd`` is
        their standard deviation.
    """
    before, after = _shares(first), _shares(second)
    pairs = list(zip(before, after, strict=True))
    improved = sum(now > was for was, now in pairs)
    regressed = sum(now < was for was, now in pairs)
    passes = {}
    if len(first.samples) == len(second.samples) == len(pairs):
        both = pairs.count((1, 1))
        neither = pairs.count((0, 0))
        change, interval = paired_difference(both, regressed, improved, neither)
        p = mcnemar(regressed, improved)
    else:
        change, interval, p = paired_mean(before, after)
        for k in sorted(first.metrics.pass_at.keys() & second.metrics.pass_at.keys() - {1}):
            of_k, limits, _ = paired_mean(_shares(first, k), _shares(second, k))
            passes[str(k)] = {"difference": round(of_k, 6), "interval": [*rounded(limits)]}

    values: JsonObject = {"difference": round(change, 6), "interval": [*rounded(interval)]}
    if passes:
        values["pass_at"] = passes
    values |= {"improved": improved, "regressed": regressed, "p": float(f"{p:.3g}")}
    earlier, later = _accuracies(first), _accuracies(second)
    if len(earlier) == 1:
        earlier *= len(later)
    if len(later) == 1:
        later *= len(earlier)
    if len(earlier) == len(later) > 1:
        runs = [round(now - was, 6) for was, now in zip(earlier, later, strict=True)]
        values |= {"runs": runs, "sd": round(stdev(runs), 6)}
    return values


def _accuracies(result: Result) -> list[float]:
    """The accuracies of the runs of *result*."""
    return [run.metrics.accuracy for run in result.runs or [result]]


def _shares(result: Result, k: int = 1) -> list[float]:
    """pass@k of each puzzle, the mean over the runs of *result*."""
    return [puzzle_share(samples, k, len(result.runs) or 1) for samples in result.by_puzzle]


def decoding(result: Result) -> DecodingSettings:
    """The decoding settings without the seed: results of several seeds are comparable."""
    return replace(result.metrics.decoding, seed=None)


def changes(results: Mapping[str, Result], against: str | None = None) -> Iterator[JsonObject]:
    """Yield the puzzles that improved or regressed between each two results that are compared.

    *results* are :func:`paired`. With several completions per puzzle, more or fewer of them are
    correct, and the first incorrect and the first correct one are shown.
    """
    for second, first in _first_of_each(results, against).items():
        for before, after in zip(results[first].by_puzzle, results[second].by_puzzle, strict=True):
            was, now = puzzle_share(before), puzzle_share(after)
            if was == now:
                continue
            improved = now > was
            yield {
                "from": first,
                "to": second,
                "side": "improved" if improved else "regressed",
                **before[0].row.kept,
                "before": _first(before, not improved),
                "after": _first(after, improved),
            }


def _first(samples: Sequence[Sample], correct: bool) -> JsonObject:
    """The first of *samples* that is correct, or is not."""
    line = next(sample for sample in samples if sample.grade.correct is correct).to_json()
    return {key: line[key] for key in _COMPLETION}
