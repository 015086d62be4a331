"""The values that the page's template shows of a run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from countdown_rl.core import artifacts
from countdown_rl.core.artifacts import ProvenanceEntry
from countdown_rl.core.errors import InputError
from countdown_rl.core.packages import version
from countdown_rl.evaluation import compare, diagnose, results, tables
from countdown_rl.evaluation.results import Result, breakdowns
from countdown_rl.evaluation.sample import Sample
from countdown_rl.release import charts
from countdown_rl.tasks import registry
from countdown_rl.tasks.countdown.arithmetic import pieces, steps
from countdown_rl.tasks.countdown.expression import ExpressionError, parse
from countdown_rl.tasks.task import REASONS
from countdown_rl.training import log as trainlog
from countdown_rl.training.log import StepRow

Group = Mapping[str, Result]

#: The number of puzzles won, and of puzzles lost, that are shown.
CHANGED = 4


def view(evaluations: Mapping[str, Path], training: Mapping[str, Sequence[Path]], puzzles: int) -> dict[str, Any]:
    """The values of the page about *evaluations* and the logs of *training* by run, with so many *puzzles* to read.

    Models are in the order in which they are made from each other, else as given; then the floor and
    the ceiling. Results on other puzzles, or decoded in another way, are in groups of their own, the
    largest first.
    """
    scored = {name: results.read(path) for name, path in evaluations.items()}
    logs = {path: trainlog.read(path) for paths in training.values() for path in paths}
    if empty := [path for path, rows in logs.items() if not rows]:
        raise InputError(f"{empty[0]} has no steps yet; give another --log, or continue the run.")
    runs = {name: [logs[path] for path in paths] for name, paths in training.items()}
    last_ones = {"floor": 1, "ceiling": 2}
    order = {
        name: (last_ones.get(item.metrics.model.kind, 0), len(results.chain(item))) for name, item in scored.items()
    }
    groups = _groups({name: scored[name] for name in sorted(scored, key=order.__getitem__)})
    main = groups[0]
    names = [name for name, evaluation in main.items() if not evaluation.metrics.is_baseline]
    first, last = main[names[0]], main[names[-1]]
    chain, task = results.chain(last), registry.task(last.metrics.task)
    tables = [_table(group) for group in groups]
    rows = {row["name"]: row for row in tables[0]["rows"]}
    own = next((path for path in logs if trainlog.is_log_of(path, chain)), None)
    log = logs[own or next(iter(logs))] if logs else []
    return {
        "version": version(),
        "origin": artifacts.origin(chain).name,
        "groups": tables,
        "names": names,
        "noun": task.noun,
        "first": rows[names[0]],
        "last": rows[names[-1]],
        "log": log,
        "runs": runs,
        "curves": charts.curves(runs, task) if log else [],
        "seconds": seconds(log),
        "puzzles": min(puzzles, first.metrics.n),
        "transcripts": {name: [_annotated(samples[0]) for samples in main[name].by_puzzle[:puzzles]] for name in names},
        "changed": _changed(first, last) if len(names) > 1 else None,
        "lost": {name: diagnose.causes(main[name]) for name in dict.fromkeys((names[0], names[-1]))},
        "shapes": diagnose.shapes(last),
        "chain": [(link, _summary(link)) for link in chain],
        "other_log": logs and own is None,
        "curriculum": own and any(link.by_grpo and link.options.get("curriculum") for link in chain),
        "versions": last.manifest.versions,
        "reasons": {**REASONS, **task.reasons},
    }


def seconds(log: Sequence[StepRow]) -> float:
    """The time that all steps of *log* took. A row is the mean of the steps since the row before it."""
    before = [0, *(row.step for row in log)]
    return sum(row.seconds * (row.step - step) for row, step in zip(log, before, strict=False))


def _groups(scored: Group) -> list[dict[str, Result]]:
    """The models that were evaluated on the same puzzles in the same way, each group with the baselines."""
    groups: dict[str, dict[str, Result]] = {}
    for name, evaluation in scored.items():
        metrics = evaluation.metrics
        if not metrics.is_baseline:
            terms = f"{metrics.n} {metrics.data} {metrics.decoding}"
            groups.setdefault(terms, {})[name] = evaluation
    if not groups:
        raise InputError("give an evaluation of a model beside the baselines.")
    for group in groups.values():
        model = next(iter(group.values())).metrics
        for name, evaluation in scored.items():
            bound = evaluation.metrics
            same = (model.n, model.data, model.decoding.samples or 1) == (bound.n, bound.data, bound.decoding.samples)
            if bound.is_baseline and same:
                group[name] = evaluation
    return sorted(groups.values(), key=len, reverse=True)


def _table(group: Group) -> dict[str, Any]:
    """One comparison: its rows, breakdowns, and the reasons why answers were not right."""
    values = compare.figures(group)
    rows = [row | _details(group[row["name"]]) for row in values["results"]]
    models = [row for row in rows if not row["bound"]]
    reasons: dict[str, dict[str, int]] = {}
    for row in models:
        for reason, count in row["metrics"].reasons.items():
            reasons.setdefault(reason, {})[row["name"]] = count
    kinds: dict[str, dict[str, list[Any]]] = {}  # of puzzles, by title: each row's name, its share, if it is a bound
    for row in rows:
        for title, kind, figures in breakdowns(row["metrics"]):
            kinds.setdefault(title, {}).setdefault(kind, []).append((row["name"], figures, row["bound"]))
    pass_at = [k for k in rows[0]["metrics"].pass_at if all(k in row["metrics"].pass_at for row in rows)]
    return {
        "rows": rows,
        "models": models,
        "samples": models[0]["completions"] // rows[0]["n"],
        "data": values["data"],
        "split": values["split"],
        "called": f"{values['split']} {registry.task_of(values).noun}s".strip(),
        "terms": tables.conditions(values),
        "breakdowns": kinds,
        "reasons": dict(sorted(reasons.items(), key=lambda item: -sum(item[1].values()))),
        "pass_at": pass_at,
        "coverage": charts.coverage({row["name"]: row["metrics"] for row in models}, pass_at) if pass_at else None,
    }


def _details(evaluation: Result) -> dict[str, Any]:
    """The cells of a row that a comparison does not have."""
    metrics = evaluation.metrics
    baseline = registry.task(metrics.task).baselines.get(metrics.model.source)
    return {
        "bound": metrics.is_baseline,
        "about": baseline.about if baseline else f"{metrics.model.source}, held as {metrics.precision}",
        "metrics": metrics,
        "completions": len(evaluation.samples),
    }


def _annotated(sample: Sample) -> dict[str, Any]:
    """*sample* with all that the page shows beside it: its text in pieces, and the operations of its answer."""
    try:
        operations = steps(parse(sample.grade.answer or "").tree)
    except ExpressionError:
        operations = []
    return {
        "sample": sample,
        "headline": sample.row.headline,
        "pieces": pieces(sample.completion.strip("\n")),
        "steps": operations,
        "verdict": sample.verdict,
        "solution": None if sample.grade.correct else sample.row.right_answer,
    }


def _changed(first: Result, last: Result) -> dict[str, Any] | None:
    """The puzzles that only one of two models solved, the first few with both completions.

    None where a puzzle has several completions, which may differ.
    """
    if len(first.by_puzzle[0]) > 1:
        return None
    pairs = list(zip(first.samples, last.samples, strict=True))
    won = [pair for pair in pairs if not pair[0].grade.correct and pair[1].grade.correct]
    lost = [pair for pair in pairs if pair[0].grade.correct and not pair[1].grade.correct]
    shown = [[tuple(map(_annotated, pair)) for pair in side[:CHANGED]] for side in (won, lost)]
    return {"won": len(won), "lost": len(lost), "won_shown": shown[0], "lost_shown": shown[1]}


def _summary(link: ProvenanceEntry) -> str:
    """The options or facts that distinguish a link from others of its kind, in a few words."""
    options, facts = link.options, link.facts
    if link.kind == "data":
        rows = sum(split["rows"] for split in facts.get("splits", {}).values())
        return f"{rows:,} rows, seed {options['seed']}" if rows and "seed" in options else ""
    steps = facts.get("steps") or options.get("max_steps") or options.get("steps")
    if link.kind in ("model", "shipped", "adapter") and steps:
        return f"{steps:,} steps"
    return str(options.get("format", ""))
