"""The report: one self-contained HTML page about the results, training, completions and provenance of a run.

The page needs no network and no font; its one script moves the film of validation completions. Every number is read
from the artifacts or counted from their completions. The same artifacts give the same bytes.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from countdown_rl.core import artifacts, formatting
from countdown_rl.core.errors import ArtifactError, InputError
from countdown_rl.core.manifest import MADE_BY, ProvenanceEntry, lineage
from countdown_rl.core.packages import version
from countdown_rl.evaluation import compare, diagnose, results, tables, training_log
from countdown_rl.evaluation.caveats import caveats
from countdown_rl.evaluation.sample import Sample
from countdown_rl.release.report import charts
from countdown_rl.tasks import registry
from countdown_rl.tasks.task import REASONS

#: Logs, or directories of evaluations, of the seeds of a setting by its name, and evaluations by name.
Runs = dict[str, list[Path]]
Group = Mapping[str, results.Result]
#: Values of the page that are empty without an evaluation.
_COMPARED = ("names", "groups", "puzzles", "changed", "chain", "versions")
#: Limits on the puzzles and on the validations of a film.
PUZZLES, FRAMES = 20, 25
#: Puzzles whose completions are shown.
TRANSCRIPTS = 24


@dataclass(frozen=True)
class Film:
    """The samples of each puzzle after each of *steps*."""

    steps: list[int]
    puzzles: list[list[list[Sample]]]

    @property
    def shares(self) -> list[list[float]]:
        """For each puzzle the share of correct samples after each step."""
        grades = [
            [[sample.grade.correct for sample in samples] for samples in puzzle]
            for puzzle in self.puzzles
        ]
        return [[sum(correct) / len(correct) for correct in puzzle] for puzzle in grades]

    @property
    def chosen(self) -> int:
        """The index of the puzzle to show first: the one that improved most."""
        gains = [shares[-1] - shares[0] for shares in self.shares]
        return gains.index(max(gains))


def film(samples: Sequence[Sample]) -> Film | None:
    """Return the film of the *samples* of a run; None unless it was validated twice."""
    shown: dict[str, dict[int, list[Sample]]] = {}
    for sample in samples:
        key = json.dumps(sample.row.kept)
        if sample.validation and sample.step is not None and (key in shown or len(shown) < PUZZLES):
            shown.setdefault(key, {}).setdefault(sample.step, []).append(sample)
    steps = sorted(set.intersection(*map(set, shown.values()))) if shown else []
    if len(steps) > FRAMES:
        steps = [steps[round(index * (len(steps) - 1) / (FRAMES - 1))] for index in range(FRAMES)]
    return (
        Film(steps, [[by_step[step] for step in steps] for by_step in shown.values()])
        if len(steps) > 1
        else None
    )


def sampled(samples: Sequence[Sample]) -> list[list[Sample]]:
    """Return the first group with a gradient of the first and of the last step of *samples* that has one."""
    groups: dict[tuple[int, int], list[Sample]] = {}
    for sample in samples:
        if sample.step is not None and sample.group is not None:
            groups.setdefault((sample.step, sample.group), []).append(sample)
    by_step: dict[int, list[Sample]] = {}
    for (step, _), group in groups.items():
        if any(sample.advantage for sample in group):
            by_step.setdefault(step, group)
    return [by_step[step] for step in sorted({min(by_step), max(by_step)})] if by_step else []


def find(root: Path, *, results: Sequence[str] = (), logs: Sequence[str] = ()) -> tuple[Runs, Runs]:
    """Return the evaluations by name, and the logs by run: those in *root*, where the pipeline writes them.

    Args:
        results: other evaluations, as ``PATH``, or ``NAME=PATH,PATH,...`` for seeds.
        logs: other logs, in the same form. With *logs* alone there are no evaluations.

    Raises ArtifactError if there are neither.
    """
    default_log, directory = root / "train" / "log.csv", root / "eval"
    runs = compare.by_setting(logs or ([str(default_log)] if default_log.is_file() else []))
    if missing := [path for paths in runs.values() for path in paths if not path.is_file()]:
        raise ArtifactError(
            f"{missing[0]} does not exist or is no file; `{MADE_BY['adapter']}` writes it."
        )
    paths = list(results)
    if not results and not logs:
        paths = sorted(str(path) for path in directory.glob("*") if artifacts.peek(path) == "eval")
    if not paths and not runs:
        raise ArtifactError(
            f"{directory} holds no evaluation; `{MADE_BY['eval']}` makes one, or give --log."
        )
    return compare.by_setting(paths), runs


def save(page: str, out: Path) -> int:
    """Write *page* at *out*, atomically, and return its size in bytes."""
    if out.is_dir():
        raise ArtifactError(f"{out} is a directory; give --out a file.")
    artifacts.check_place(out, "--out")
    with artifacts.replacing(out) as partial:
        return partial.write_bytes(page.encode())


def save_figures(curves: Sequence[charts.Curve], directory: Path) -> None:
    """Write each of *curves* as an SVG file named by its title into *directory*."""
    for curve in curves:
        name = re.sub(r"[^a-z0-9]+", "-", curve.title.lower()).strip("-")
        save(charts.picture([curve]), directory / f"{name}.svg")


def text(values: Mapping[str, Any], demo: str | None = None) -> str:
    """The HTML of the report about *values* of :func:`view`; *demo* is the file name of the demo beside it."""
    environment = formatting.html_templates()
    for name in ("percent", "interval", "short", "duration", "plural"):
        environment.filters[name] = getattr(formatting, name)
    environment.filters |= {"counted": tables.counted, "points": tables.points, "leaves": _leaves}
    environment.filters["value"] = lambda value: (
        f"{value:,}" if type(value) is int else formatting.value(value)
    )
    # For the Content-Security-Policy.
    environment.filters["sha256"] = lambda script: base64.b64encode(
        hashlib.sha256(script.encode()).digest()
    ).decode()
    return formatting.printable(
        environment.get_template("release/report/page.html.jinja").render(values, demo=demo)
    )


def _leaves(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value in nested *values* but None, each with the keys that lead to it."""
    for key, value in values.items():
        name = f"{path} {key.rstrip('_').replace('_', '-')}".strip()
        if isinstance(value, Mapping):
            yield from _leaves(value, name)
        elif value is not None:
            yield name, value


def view(evaluations: Runs, training: Runs) -> dict[str, Any]:
    """The values of the page about *evaluations* and the logs of *training* by run.

    Several evaluations of one name are the runs of a setting: their means are shown, with completions of the first.
    Without evaluations, the page is about training alone.
    """
    scored = {
        name: compare.pooled(name, [*map(results.read, paths)])
        for name, paths in evaluations.items()
    }
    logs = {path: training_log.read(path) for paths in training.values() for path in paths}
    if empty := [path for path, rows in logs.items() if not rows]:
        raise InputError(f"{empty[0]} has no steps yet; give another --log, or continue the run.")
    runs = {name: [logs[path] for path in paths] for name, paths in training.items()}
    compared = _compared(scored) if scored else {key: {} for key in _COMPARED}
    chain = [link for link, _ in compared["chain"]]
    own = next((path for path in logs if training_log.is_log_of(path, chain)), None)
    shown = own or next(iter(logs), None)
    log = logs[shown] if shown else []
    steps = [row.step for row in log]
    samples = training_log.samples_of(shown) if shown else []
    rows = [item.samples[0].row for item in scored.values()] or [
        sample.row for sample in samples[:1]
    ]
    task = registry.task_of({"task": rows[0].task} if rows else {})
    return compared | {
        "version": version(),
        "noun": task.noun,
        "log": log,
        "runs": runs,
        "results": list(scored.values()),
        "curves": charts.curves(runs, task) if log else [],
        "film": film(samples),
        "sampled": sampled(samples),
        "seconds": sum(
            row.seconds * (row.step - before) for row, before in zip(log, [0, *steps], strict=False)
        ),
        "other_log": scored and logs and own is None,
        "curriculum": own
        and any(link.by_grpo and link.options.get("curriculum") for link in chain),
        "reasons": {**REASONS, **task.reasons},
    }


def _compared(scored: Group) -> dict[str, Any]:
    """The values of the page about the results *scored*.

    Models are in the order in which they are made from each other, else as given, before the baselines; those that the
    last one was trained from come first. Results on other puzzles, or decoded in another way, are in groups of their
    own, the largest first.
    """
    places = {"floor": 1, "ceiling": 2}
    lineages = {name: lineage(results.chain(item)) for name, item in scored.items()}
    ordered = sorted(
        scored, key=lambda name: (len(lineages[name]), len(results.chain(scored[name])))
    )
    policy = lineages[ordered[-1]]
    ordered.sort(
        key=lambda name: (
            places.get(scored[name].metrics.model.kind, 0),
            not set() < lineages[name] < policy,
        )
    )
    groups = _groups({name: scored[name] for name in ordered})
    names = [name for name, evaluation in groups[0].items() if not evaluation.metrics.is_baseline]
    first, last = groups[0][names[0]], groups[0][names[-1]]
    chain = results.chain(last)
    described = [_table(group) for group in groups]
    rows = {row["name"]: row for row in described[0]["rows"]}
    paired = len(names) > 1 and len(first.samples) == len(last.samples) == first.metrics.n
    return {
        "names": names,
        "first": rows[names[0]],
        "last": rows[names[-1]],
        "groups": described,
        "method": "GRPO" if any(link.by_grpo for link in chain) else names[-1],
        "trained": len(lineages[names[-1]]) > 1,
        "from_first": set() < lineages[names[0]] < lineages[names[-1]],
        "puzzles": min(TRANSCRIPTS, first.metrics.n),
        "transcripts": {
            name: [samples[0] for samples in groups[0][name].by_puzzle[:TRANSCRIPTS]]
            for name in names
        },
        "changed": _changed(first, last) if paired else None,
        "causes": diagnose.LABELS,
        "lost": {
            name: diagnose.diagnose(groups[0][name])
            for name in dict.fromkeys((names[0], names[-1]))
        },
        "chain": [(link, _summary(link)) for link in chain],
        "versions": last.manifest.versions,
        "warnings": _left_out(scored, groups)
        + caveats({name: item for group in groups for name, item in group.items()}),
    }


def _groups(scored: Group) -> list[Group]:
    """The models that were evaluated on the same puzzles in the same way, each group with its baselines."""
    groups: dict[Any, dict[str, results.Result]] = {}
    baselines = {name: item for name, item in scored.items() if item.metrics.is_baseline}
    for name in (name for name in scored if name not in baselines):
        terms = *sorted(scored[name].puzzles), compare.decoding(scored[name])
        groups.setdefault(terms, {})[name] = scored[name]
    if not groups:
        raise InputError("there are evaluations of baselines alone; give --result one of a model.")
    for group in groups.values():
        model = next(iter(group.values()))
        asked = sorted(model.puzzles), model.metrics.decoding.samples or 1
        of_puzzles = {
            name: (sorted(item.puzzles), item.metrics.decoding.samples)
            for name, item in baselines.items()
        }
        group |= {name: item for name, item in baselines.items() if of_puzzles[name] == asked}
    return sorted(map(compare.paired, groups.values()), key=len, reverse=True)


def _left_out(scored: Group, groups: Sequence[Group]) -> list[str]:
    """A sentence about the baselines of no group."""
    if names := [name for name in scored if all(name not in group for group in groups)]:
        why = "other puzzles or another number of completions than the models"
        return [f"{', '.join(names)}: left out, as the evaluation has {why}."]
    return []


def _table(group: Group) -> dict[str, Any]:
    """One comparison: its rows, breakdowns, and the reasons why answers were incorrect."""
    values = compare.scores(group)
    reasons: dict[str, dict[str, int]] = {}
    kinds: dict[
        str, dict[str, list[Any]]
    ] = {}  # of puzzles, by title: each row's name, its share, if it is a bound
    for row in values["results"]:
        metrics, completions = group[row["name"]].metrics, len(group[row["name"]].samples)
        baseline = registry.task(metrics.task).baselines.get(metrics.model.source)
        loaded = f", loaded in {metrics.precision}" if metrics.precision else ""
        about = baseline.about if baseline else metrics.model.source + loaded
        if "runs" in row:
            about = f"mean of {formatting.plural(len(row['runs']), 'run')}, ± {100 * row['sd']:.1f}"
        row |= {
            "bound": metrics.is_baseline,
            "about": about,
            "metrics": metrics,
            "completions": completions,
        }
        for reason, count in metrics.reasons.items() if not metrics.is_baseline else ():
            reasons.setdefault(reason, {})[row["name"]] = count
        for title, kind, scores in results.breakdowns(metrics):
            kinds.setdefault(title, {}).setdefault(kind, []).append(
                (row["name"], scores, row["bound"])
            )
    rows, models = values["results"], [row for row in values["results"] if not row["bound"]]
    return values | {
        "rows": rows,
        "models": models,
        "breakdowns": kinds,
        "terms": tables.conditions(values),
        "samples": models[0]["metrics"].decoding.samples or 1,
        "single": all(row["completions"] == row["n"] for row in models),
        "majority": all(row["metrics"].majority for row in rows),
        "puzzles": sorted(next(iter(group.values())).puzzles),
        "called": f"{values['split']} {registry.task_of(values).noun}s".strip(),
        "reasons": dict(sorted(reasons.items(), key=lambda item: -sum(item[1].values()))),
        "pass_at": [
            k
            for k in rows[0]["metrics"].pass_at
            if all(k in row["metrics"].pass_at for row in rows)
        ],
        "lengths": all(row["metrics"].tokens for row in models),
        "budgets": charts.budgets({row["name"]: row["metrics"] for row in models}),
    }


def _changed(first: results.Result, last: results.Result) -> dict[str, list[tuple[Sample, Sample]]]:
    """The completions of two models for the puzzles that only one of them solved."""
    changed: dict[str, list[tuple[Sample, Sample]]] = {side: [] for side in tables.SIDES}
    for before, after in zip(first.samples, last.samples, strict=True):
        if before.grade.correct != after.grade.correct:
            changed["improved" if after.grade.correct else "regressed"].append((before, after))
    return changed


def _summary(link: ProvenanceEntry) -> str:
    """The options or facts that distinguish a link from others of its kind, in a few words."""
    options, facts = link.options, link.facts
    if link.kind == "data":
        rows = sum(split["rows"] for split in facts.get("splits", {}).values())
        return (
            f"{formatting.plural(rows, 'row')}, seed {options['seed']}"
            if rows and "seed" in options
            else ""
        )
    steps = facts.get("steps") or options.get("max_steps") or options.get("steps")
    if link.kind in ("model", "shipped", "adapter") and steps:
        return formatting.plural(steps, "step")
    return str(options.get("format", ""))
