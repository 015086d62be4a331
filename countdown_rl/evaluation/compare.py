"""Comparison of evaluations on the same puzzles: paired differences, means over runs, and the puzzles that changed."""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from statistics import stdev
from typing import Any

from countdown_rl.core import artifacts
from countdown_rl.core.errors import InputError, UsageError
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
) -> dict[str, Any]:
    """Return the :func:`scores` of *evaluations*, by name, and write a ``comparison`` artifact at *out*, if given.

    Several under one name are runs of one setting, whose means are compared. *against* names the result that all others
    are compared with. *on_warning* is called with each of the :func:`caveats`.
    """
    if out:
        artifacts.check_writable(out, "comparison")
    if len(evaluations) < 2:
        raise InputError("give at least two evaluations to compare.")
    runs = {
        name: [
            evaluation if isinstance(evaluation, Result) else read(evaluation)
            for evaluation in group
        ]
        for name, group in evaluations.items()
    }
    results = {name: pooled(name, group) for name, group in runs.items()}
    values = scores(results, against)
    for sentence in caveats(results):
        on_warning(sentence)
    if out:
        inputs = {
            name if len(group) == 1 else f"{name} {number}": result.manifest.as_input()
            for name, group in runs.items()
            for number, result in enumerate(group, 1)
        }
        options = {"names": list(evaluations)} | ({"against": against} if against else {})
        with artifacts.writing(out, "comparison", options=options, inputs=inputs) as writer:
            (writer.path / SCORES).write_text(json.dumps(values, indent=2) + "\n", "utf-8")
            (writer.path / TABLE).write_text(tables.markdown(values), "utf-8")
            jsonl.write_rows(writer.path / CHANGES, changes(results, against))
    return values


def by_setting(words: Sequence[str | Path]) -> dict[str, list[Path]]:
    """The evaluations in *words* by name: each a directory, or ``NAME=DIR,DIR,...`` for runs of one setting.

    A directory is named by its last component, or by its path if two names are equal.
    """
    settings: list[tuple[str, list[str]]] = []
    for word in map(str, words):
        name, sign, directories = word.partition("=")
        is_setting = sign and not os.path.exists(word)
        settings.append((name, directories.split(",")) if is_setting else ("", [word]))
        if is_setting and not all([name, *settings[-1][1]]):
            raise UsageError(f"{word} should be NAME=DIR,DIR,...")
    single = [Path(directories[0]) for name, directories in settings if not name]
    names = [path.name or path.resolve().name for path in single]
    if len(set(names)) < len(names):  # runs/a/eval and runs/b/eval
        names = [path.as_posix() for path in single]
    named = [(name or names.pop(0), [*map(Path, directories)]) for name, directories in settings]
    resolved = [path.resolve() for _, paths in named for path in paths]
    if len({*resolved}) < len(resolved) or len(dict(named)) < len(named):
        raise UsageError(
            f"a directory or a name is given twice: {' '.join(map(str, words))}; give each once."
        )
    return dict(named)


def paired(results: Mapping[str, Result]) -> dict[str, Result]:
    """*results* with their puzzles in the order of the first. Raises InputError if they are not of the same puzzles."""
    name, first = next(iter(results.items()))
    puzzles = Counter(first.puzzles)
    ordered = {}
    for other, result in results.items():
        grammars = {first.metrics.grammar, result.metrics.grammar}
        if len(grammars - {None}) > 1:
            raise InputError(
                f"{other} and {name} were graded by different versions of the answer grammar; "
                "evaluate both again with --overwrite."
            )
        own = Counter(result.puzzles)
        if own != puzzles:
            shared = f"{(own & puzzles).total():,} {task(first.metrics.task).noun}s in common"
            counts = f"{own.total():,} and {puzzles.total():,}"
            raise InputError(
                f"{other} and {name} have {shared}, of {counts}; "
                "evaluate both on the same rows of one task and rule (--data and --limit)."
            )
        groups: dict[Any, list[Sequence[Sample]]] = {}
        for key, samples in zip(result.puzzles, result.by_puzzle, strict=True):
            groups.setdefault(key, []).append(samples)
        samples = [sample for key in first.puzzles for sample in groups[key].pop(0)]
        ordered[other] = replace(result, samples=samples)
    return ordered


def pooled(name: str, runs: Sequence[Result]) -> Result:
    """The *runs* of the setting *name* as one result, whose scores are means over runs.

    The interval of a mean covers the choice of puzzles, for these runs. Their decoding may differ in the seed alone.
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


def scores(results: Mapping[str, Result], against: str | None = None) -> dict[str, Any]:
    """The metrics of each result, and its paired difference from the first one decoded like it, or from *against*, a name.

    Baselines are listed but not compared, except
    against a single model. A result that is decoded unlike the first has its own ``decoding``. Raises InputError if no
    result is of a model, puzzles differ, or a result is decoded like no other.
    """
    results = paired(results)
    models = [name for name, result in results.items() if not result.metrics.is_baseline]
    if not models:
        raise InputError("give an evaluation of a model beside the baselines.")
    first, reference = results[models[0]], against or models[0]
    references = _references(results, models, against)
    compared = {reference, *references, *references.values()}
    rows = []
    for name, result in results.items():
        metrics = result.metrics.to_json()
        if name in models and name not in compared:
            raise InputError(
                f"{name} and {reference} were decoded differently; "
                "evaluate both with the same options."
            )
        row = {"name": name} | {key: metrics[key] for key in _SCORES if key in metrics}
        if result.runs:
            row |= {"runs": _accuracies(result), "sd": round(stdev(_accuracies(result)), 6)}
        if name in models and decoding(result) != decoding(first):
            row["decoding"] = metrics["decoding"]
        if name in references:
            other = references[name]
            row["against"] = difference(results[other], result) | {"reference": other}
        rows.append(row)
    metrics = first.metrics.to_json()
    described = {key: metrics[key] for key in ("data", "decoding", "rules", "task")}
    return described | {"split": split(*(results[name] for name in models)), "results": rows}


def difference(first: Result, second: Result) -> dict[str, Any]:
    """The accuracy of *second* less that of *first*, which are :func:`paired`, with 95% interval and p-value.

    With one completion per puzzle: Newcombe's interval and McNemar's exact test. With several, or means over runs:
    :func:`paired_mean`, also for pass@k. ``runs`` are the differences of the first runs, of the second runs and so on,
    or of each run from a single result; ``sd`` is their standard deviation.
    """
    before, after = _shares(first), _shares(second)
    pairs = list(zip(before, after, strict=True))
    passes = {}
    if len(first.samples) == len(second.samples) == len(pairs):
        regressed, improved = pairs.count((1, 0)), pairs.count((0, 1))
        change, interval = paired_difference(
            pairs.count((1, 1)), regressed, improved, pairs.count((0, 0))
        )
        p = mcnemar(regressed, improved)
    else:
        change, interval, p = paired_mean(before, after)
        for k in sorted(first.metrics.pass_at.keys() & second.metrics.pass_at.keys() - {1}):
            of_k, limits, _ = paired_mean(_shares(first, k), _shares(second, k))
            passes[str(k)] = {"difference": round(of_k, 6), "interval": [*rounded(limits)]}
    values: dict[str, Any] = {"difference": round(change, 6), "interval": [*rounded(interval)]}
    if passes:
        values["pass_at"] = passes
    values |= {"improved": sum(before < after for before, after in pairs)}
    values |= {"regressed": sum(before > after for before, after in pairs), "p": float(f"{p:.3g}")}
    earlier, later = _accuracies(first), _accuracies(second)
    count = max(len(earlier), len(later))
    if count > 1 and {len(earlier), len(later)} <= {1, count}:
        runs = [
            round(later[run % len(later)] - earlier[run % len(earlier)], 6) for run in range(count)
        ]
        values |= {"runs": runs, "sd": round(stdev(runs), 6)}
    return values


def _accuracies(result: Result) -> list[float]:
    """The accuracies of the runs of *result*."""
    return [run.metrics.accuracy for run in result.runs or [result]]


def _shares(result: Result, k: int = 1) -> list[float]:
    """pass@k of each puzzle, the mean over the runs of *result*."""
    return [puzzle_share(samples, k, len(result.runs) or 1) for samples in result.by_puzzle]


def decoding(result: Result) -> DecodingSettings:
    """The decoding settings of *result* without the seed: results of several seeds are comparable."""
    return replace(result.metrics.decoding, seed=None)


def _references(
    results: Mapping[str, Result], models: Sequence[str], against: str | None
) -> dict[str, str]:
    """The name that each result is compared with, by the name of the result."""
    if against is not None and against not in results:
        raise UsageError(
            f"{against} is none of the results: {', '.join(results)}.", option="against"
        )
    alike: dict[DecodingSettings, list[str]] = {}
    for name in models:
        alike.setdefault(decoding(results[name]), []).append(name)
    groups = list(alike.values()) if len(models) > 1 else [list(results)]
    references: dict[str, str] = {}
    for names in groups:
        first = against or names[0]
        if first in names:
            references |= {name: first for name in names if name != first}
    if against and not references:
        raise InputError(
            f"no result is compared with {against}: give one of a model, and one decoded like it."
        )
    return references


def changes(results: Mapping[str, Result], against: str | None = None) -> Iterator[dict[str, Any]]:
    """Yield the puzzles that improved or regressed between each two results that are compared.

    With several completions per puzzle, more or fewer of them are correct, and the first wrong and the first correct
    one are shown.
    """
    results = paired(results)
    models = [name for name, result in results.items() if not result.metrics.is_baseline]
    for second, first in _references(results, models, against).items():
        for before, after in zip(results[first].by_puzzle, results[second].by_puzzle, strict=True):
            was, now = puzzle_share(before), puzzle_share(after)
            if was == now:
                continue
            improved = now > was
            side = "improved" if improved else "regressed"
            yield {
                "from": first,
                "to": second,
                "side": side,
                **before[0].row.kept,
                "before": _first(before, not improved),
                "after": _first(after, improved),
            }


def _first(samples: Sequence[Sample], correct: bool) -> dict[str, Any]:
    """The first of *samples* that is correct, or is not."""
    sample = next(sample for sample in samples if sample.grade.correct is correct)
    line = sample.to_json()
    return {key: line[key] for key in _COMPLETION}
