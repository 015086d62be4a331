"""What a page shows of a run, as values for its template."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from countdown_rl import __version__, artifacts
from countdown_rl.artifacts import MADE_BY, Link, Manifest
from countdown_rl.errors import InputError
from countdown_rl.evaluation import baselines, compare
from countdown_rl.evaluation.results import Result
from countdown_rl.hub import results
from countdown_rl.report import charts, transcripts
from countdown_rl.runlog import log as trainlog
from countdown_rl.runlog.log import StepRow
from countdown_rl.tasks.explain import REASONS

#: Titles of what metrics are broken down by, and of each kind of puzzle.
BREAKDOWNS = {
    "by_size": ("Count of numbers", "{} numbers"),
    "by_needs": ("Operators that are needed", "{}"),
    "by_solutions": ("Number of solutions", "{} solutions"),
}
KINDS = {
    "add-sub": "+ and − suffice",
    "mul-div": "× or ÷ is needed",
    "1 solutions": "1 solution",
}
REFUSALS = {
    "impossible": "impossible puzzles, and it says so",
    "wrong_refusals": "puzzles that have a way, and it says impossible",
}


@dataclass(frozen=True)
class Scored:
    """An evaluation: what it says, and how it came to be."""

    manifest: Manifest
    result: Result

    @property
    def bound(self) -> bool:
        return baselines.is_baseline(self.result.metrics)

    @property
    def chain(self) -> list[Link]:
        """Everything that the model was made from, itself last; none for a floor or a ceiling."""
        return [] if self.bound else artifacts.chain(self.manifest.inputs["model"])


Group = Mapping[str, Scored]


def view(scored: Group, training: Path | None, puzzles: int) -> dict[str, Any]:
    """All that the page about *scored* and the *training* log shows, with *puzzles* to read.

    Models come in the order in which they are made from each other, else as given; then the floor, then the
    ceiling. Results on other puzzles, or decoded in another way, are in groups of their own; the largest is
    first, and the page's main one.

    Raises:
        InputError: no evaluation is of a model, or *training* is no training log.
    """
    log = trainlog.read(training) if training else []
    groups = _groups(dict(sorted(scored.items(), key=lambda item: _place(item[1]))))
    main = groups[0]
    names = [name for name, one in main.items() if not one.bound]
    first, last = main[names[0]], main[names[-1]]
    tables = [_table(group) for group in groups]
    rows = {row["name"]: row for row in tables[0]["rows"]}
    return {
        "version": __version__,
        "origin": artifacts.origin(last.chain).name,
        "groups": tables,
        "names": names,
        "first": rows[names[0]],
        "last": rows[names[-1]],
        "log": log,
        "curves": charts.curves(log) if log else [],
        "window": charts.window(log) if log else 0,
        "every": charts.every(log) if log else 0,
        "seconds": sum(row.seconds * steps for row, steps in _spans(log)),
        "puzzles": min(puzzles, first.result.metrics["n"]),
        "transcripts": {name: transcripts.leading(main[name].result, puzzles) for name in names},
        "changed": transcripts.changed(first.result, last.result) if len(names) > 1 else None,
        "chain": [(link, _told(link)) for link in last.chain],
        "other_log": training is not None and not results.is_log_of(training, last.chain),
        "broken": artifacts.altered(last.manifest.inputs["model"]),
        "made_by": MADE_BY,
        "versions": last.manifest.versions,
        "reasons": REASONS,
    }


def _place(one: Scored) -> tuple[int, int]:
    kinds = ("floor", "ceiling")
    return kinds.index(one.result.metrics["model"]["kind"]) + 1 if one.bound else 0, len(one.chain)


def _groups(scored: Group) -> list[dict[str, Scored]]:
    groups: dict[str, dict[str, Scored]] = {}
    for name, one in scored.items():
        if not one.bound:
            terms = [one.result.metrics[key] for key in ("n", "data", "decoding")]
            groups.setdefault(json.dumps(terms, sort_keys=True), {})[name] = one
    if not groups:
        raise InputError("give an evaluation of a model beside its floor and ceiling.")
    for group in groups.values():
        model = next(iter(group.values())).result
        beside = {name: one for name, one in scored.items() if one.bound and _held(model, one.result)}
        group |= beside
    return sorted(groups.values(), key=len, reverse=True)


def _held(model: Result, bound: Result) -> bool:
    """Whether *bound* answers the puzzles of *model*, as often."""
    each = model.metrics["decoding"].get("samples", 1)
    same = all(model.metrics[key] == bound.metrics[key] for key in ("n", "data"))
    return same and bound.metrics["decoding"]["samples"] == each


def _table(group: Group) -> dict[str, Any]:
    """One comparison: its rows, the kinds of puzzle, and why answers were refused."""
    values = compare.figures({name: one.result for name, one in group.items()})
    rows = [row | _more(group[row["name"]]) for row in values["results"]]
    models = [row for row in rows if not row["bound"]]
    reasons: dict[str, dict[str, int]] = {}
    for row in models:
        for reason, count in row["metrics"]["reasons"].items():
            reasons.setdefault(reason, {})[row["name"]] = count
    return {
        "rows": rows,
        "models": models,
        "n": rows[0]["n"],
        "each": models[0]["completions"] // rows[0]["n"],
        "data": values["data"],
        "terms": compare.conditions(values),
        "breakdowns": _breakdowns(rows),
        "reasons": dict(sorted(reasons.items(), key=lambda item: -sum(item[1].values()))),
        "passes": _passes(models[0]["metrics"].get("pass_at", {})),
    }


def _more(one: Scored) -> dict[str, Any]:
    """What the row of *one* tells beside its comparison."""
    samples = one.result.samples
    return {
        "bound": one.bound,
        "about": _about(one),
        "metrics": one.result.metrics,
        "completions": len(samples),
        "sums": None if one.bound else transcripts.sums(samples),
    }


def _passes(found: Mapping[str, Any]) -> list[str]:
    """The k of pass@k that a table has room for: powers of two, and the last."""
    return [k for k in found if int(k).bit_count() == 1 or int(k) == len(found)]


def _about(one: Scored) -> str:
    model = one.result.metrics["model"]
    if one.bound:
        return {"floor": "a random legal expression", "ceiling": "the exact solver"}[model["kind"]]
    return f"{model['source']}, held as {one.result.metrics['precision']}"


def _breakdowns(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[Any]]]:
    """By title and kind of puzzle: each row's name, its share, and whether it is a bound."""
    found: dict[str, dict[str, list[Any]]] = {}
    refused = any("impossible" in row["metrics"] or "not-impossible" in row["metrics"]["reasons"] for row in rows)
    for row in rows:
        metrics = row["metrics"]
        shares = [
            (title, KINDS.get(kind, name.format(kind)), share)
            for key, (title, name) in BREAKDOWNS.items()
            for kind, share in metrics.get(key, {}).items()
        ]
        if refused:
            shares += [("Saying impossible", REFUSALS[key], metrics[key]) for key in REFUSALS if key in metrics]
        for title, kind, share in shares:
            kinds = found.setdefault(title, {}).setdefault(KINDS.get(kind, kind), [])
            kinds.append((row["name"], {"accuracy": share.get("share")} | share, row["bound"]))
    return found


def _told(link: Link) -> str:
    """What tells this link from others of its kind, in a few words."""
    options, facts = link.options, link.facts
    if link.kind == "data":
        rows = sum(split["rows"] for split in facts.get("splits", {}).values())
        return f"{rows:,} rows, seed {options['seed']}" if rows and "seed" in options else ""
    if link.kind in ("model", "shipped", "adapter") and "steps" in options:
        return f"{facts.get('steps', options['steps']):,} steps"
    return str(options.get("format", ""))


def _spans(log: Sequence[StepRow]) -> list[tuple[StepRow, int]]:
    """Each row of the log, and how many steps it is the mean of."""
    before = [0, *(row.step for row in log)]
    return [(row, row.step - last) for row, last in zip(log, before, strict=False)]
