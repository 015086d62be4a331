"""The report: one self-contained HTML page about the results, training, completions and provenance of a run.

The page needs no network and no font; its one script moves the film of validation completions. Every number is read
from the artifacts or counted from their completions. The same artifacts give the same bytes.
"""

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from countdown_rl.core import artifacts, formatting
from countdown_rl.core.errors import ArtifactError, InputError
from countdown_rl.core.manifest import MADE_BY, ProvenanceEntry
from countdown_rl.core.packages import version
from countdown_rl.evaluation import compare, diagnose, results, tables, training_log
from countdown_rl.evaluation.caveats import caveats
from countdown_rl.evaluation.sample import Metrics, Sample
from countdown_rl.release import templates
from countdown_rl.release.report import charts
from countdown_rl.release.report.film import film, sampled
from countdown_rl.tasks import registry
from countdown_rl.tasks.task import REASONS

#: Logs, or directories of evaluations, of the seeds of a setting by its name, and evaluations by name.
Runs = dict[str, list[Path]]
Group = Mapping[str, results.Result]
#: Values of the page that are empty without an evaluation.
_COMPARED = ("names", "groups", "puzzles", "changed", "chain", "versions", "warnings")
#: Order of the baselines, after the models.
_PLACES = {"floor": 1, "ceiling": 2}
#: Puzzles whose completions are shown.
TRANSCRIPTS = 24


def find(root: Path, *, results: Sequence[str] = (), logs: Sequence[str] = ()) -> tuple[Runs, Runs]:
    """Return the evaluations by name, and the logs by run: those in *root*, where the pipeline writes them.

    Args:
        results: other evaluations, as ``PATH``, or ``NAME=PATH,PATH,...`` for seeds.
        logs: other logs, in the same form. With *logs* alone there are no evaluations.

    Raises ArtifactError if there are neither.
    """
    default_log = root / "train" / "log.csv"
    runs = compare.by_setting(logs or ([default_log] if default_log.is_file() else []))
    for path in chain.from_iterable(runs.values()):
        if not path.is_file():
            raise ArtifactError(f"{path} is not a file; `{MADE_BY['adapter']}` writes it.")
    directory = root / "eval"
    paths: Sequence[str | Path] = results
    if not results and not logs:
        paths = [path for path in sorted(directory.glob("*")) if artifacts.peek(path) == "eval"]
    if not paths and not runs:
        raise ArtifactError(
            f"{directory} holds no evaluation; `{MADE_BY['eval']}` makes one, or give --log."
        )
    return compare.by_setting(paths), runs


def save(page: str, out: Path) -> int:
    """Write *page* at *out*, atomically, and return its size in bytes."""
    if out.is_dir():
        raise ArtifactError(f"{out} is a directory; give --out a file.")
    with artifacts.replacing(out) as partial:
        return partial.write_bytes(page.encode())


def save_figures(curves: Sequence[charts.Curve], directory: Path) -> None:
    """Write each of *curves* as an SVG file named by its title into *directory*."""
    for curve in curves:
        name = re.sub(r"[^a-z0-9]+", "-", curve.title.lower()).strip("-")
        save(charts.picture([curve]), directory / f"{name}.svg")


def text(values: Mapping[str, Any], demo: str | None = None) -> str:
    """Return the HTML of the report about *values* of :func:`view`.

    *demo* is the file name of the demo beside it.
    """
    environment = templates.html_templates()
    for name in ("percent", "interval", "short", "duration", "plural"):
        environment.filters[name] = getattr(templates, name)
    for function in (tables.counted, tables.points, _leaves, _value, _sha256):
        environment.filters[function.__name__.lstrip("_")] = function
    template = environment.get_template("release/report/page.html.jinja")
    return formatting.printable(template.render(values, demo=demo))


def _sha256(script: str) -> str:
    """Return the digest of *script* for the Content-Security-Policy."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _value(value: Any) -> str:
    return f"{value:,}" if type(value) is int else templates.value(value)


def _leaves(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value in nested *values* but None, each with the keys that lead to it."""
    for key, value in values.items():
        name = f"{path} {key.rstrip('_').replace('_', '-')}".strip()
        if isinstance(value, Mapping):
            yield from _leaves(value, name)
        elif value is not None:
            yield name, value


def view(evaluations: Runs, training: Runs) -> dict[str, Any]:
    """Return the values of the page about *evaluations* and the logs of *training* by run.

    Several evaluations of one name are the runs of a setting: their means are shown, with completions of the first.
    Without evaluations, the page is about training alone.
    """
    scored = {}
    for name, paths in evaluations.items():
        scored[name] = compare.pooled(name, list(map(results.read, paths)))
    compared = _compared(scored) if scored else {key: {} for key in _COMPARED}

    read = {path: _log(path) for path in chain.from_iterable(training.values())}
    runs = {name: [read[path] for path in paths] for name, paths in training.items()}
    links = compared["chain"]
    own = [path for path in read if training_log.is_log_of(path, links)]
    shown = next(chain(own, read), None)
    log = read[shown] if shown else []
    samples = training_log.samples_of(shown) if shown else []
    seconds = 0.0
    before = 0
    for row in log:
        seconds += row.seconds * (row.step - before)
        before = row.step

    rows = [sample.row for sample in samples[:1]]
    rows += [result.samples[0].row for result in scored.values()]
    task = registry.task_of({"task": rows[-1].task} if rows else {})
    has_curriculum = any(
        link.by_grpo and link.options.get("sampler") == "curriculum" for link in links
    )
    return compared | {
        "version": version(),
        "noun": task.noun,
        "log": log,
        "runs": runs,
        "results": list(scored.values()),
        "curves": charts.curves(runs, task) if log else [],
        "film": film(samples),
        "sampled": sampled(samples),
        "seconds": seconds,
        "other_log": scored and read and not own,
        "curriculum": own and has_curriculum,
        "reasons": {**REASONS, **task.reasons},
    }


def _log(path: Path) -> charts.Log:
    rows: charts.Log = training_log.read(path)
    if not rows:
        raise InputError(f"{path} has no steps yet; give another --log, or continue the run.")
    return rows


def _compared(scored: Group) -> dict[str, Any]:
    """Return the values of the page about the results *scored*.

    Models are in the order in which they are made from each other, else as given, before the baselines; those that the
    last one was trained from come first.
    """
    lineages = {name: lineage(results.chain(result)) for name, result in scored.items()}
    chains = {name: len(results.chain(result)) for name, result in scored.items()}
    ordered = sorted(scored, key=lambda name: (len(lineages[name]), chains[name]))
    policy = lineages[ordered[-1]]
    ordered.sort(key=lambda name: not set() < lineages[name] < policy)
    ordered.sort(key=lambda name: _PLACES.get(scored[name].metrics.model.kind, 0))

    groups = comparable({name: scored[name] for name in ordered})
    models = {name: item for name, item in groups[0].items() if not item.metrics.is_baseline}
    ordered = list(models)
    first_name, last_name = ordered[0], ordered[-1]
    first, last = models[first_name], models[last_name]
    links = results.chain(last)
    described = [_table(group) for group in groups]
    rows = {row["name"]: row for row in described[0]["rows"]}
    is_paired = last is not first and len(first.samples) == len(last.samples) == first.metrics.n
    transcripts = {}
    for name, model in models.items():
        transcripts[name] = [samples[0] for samples in model.by_puzzle[:TRANSCRIPTS]]
    shown: dict[str, results.Result] = {}
    for group in groups:
        shown |= group
    left_out = ", ".join(name for name in scored if name not in shown)
    warnings = caveats(shown)
    if left_out:
        reason = "other puzzles or another number of completions than the models"
        warnings.insert(0, f"{left_out}: left out, as the evaluation has {reason}.")
    return {
        "names": list(models),
        "first": rows[first_name],
        "last": rows[last_name],
        "groups": described,
        "method": "GRPO" if any(link.by_grpo for link in links) else last_name,
        "trained": len(lineages[last_name]) > 1,
        "from_first": set() < lineages[first_name] < lineages[last_name],
        "puzzles": min(TRANSCRIPTS, first.metrics.n),
        "transcripts": transcripts,
        "changed": _changed(first, last) if is_paired else None,
        "causes": diagnose.LABELS,
        "lost": {name: diagnose.diagnose(models[name]) for name in (first_name, last_name)},
        "chain": links,
        "versions": last.manifest.versions,
        "warnings": warnings,
    }


def lineage(ancestors: Sequence[ProvenanceEntry]) -> set[str]:
    """Return the digests of the last model of *ancestors* and of those it was trained from.

    A merge or format counts as its source. Unlike a chain, a lineage has neither data nor teachers.
    """
    known = {entry.digest for entry in ancestors}
    wanted = {entry.digest for entry in ancestors[-1:]}
    digests = set()
    for entry in reversed(ancestors):
        if entry.digest not in wanted:
            continue
        models = [entry.inputs.get(name) for name in ("base", "model", "adapter")]
        parents = known.intersection(models)
        wanted |= parents
        if not parents or entry.kind not in ("merged", "quantized", "release"):
            digests.add(entry.digest)
    return digests


def comparable(scored: Group) -> list[Group]:
    """Return the results on the same puzzles that are decoded alike, each group with its baselines.

    The largest group is the first. Baselines of no group are left out.
    """
    groups: dict[Any, dict[str, results.Result]] = {}
    baselines = {}
    for name, result in scored.items():
        if result.metrics.is_baseline:
            baselines[name] = result
        else:
            terms = *sorted(result.puzzles), compare.decoding(result)
            groups.setdefault(terms, {})[name] = result
    if not groups:
        raise InputError("there are evaluations of baselines alone; give --result one of a model.")
    for group in groups.values():
        model = next(iter(group.values()))
        for name, baseline in baselines.items():
            samples = baseline.metrics.decoding.samples
            is_as_often = samples == (model.metrics.decoding.samples or 1)
            if is_as_often and sorted(baseline.puzzles) == sorted(model.puzzles):
                group[name] = baseline
    return sorted(map(compare.paired, groups.values()), key=len, reverse=True)


def _table(group: Group) -> dict[str, Any]:
    """Return one comparison: its rows, breakdowns, and the reasons why answers were incorrect."""
    values = compare.scores(group)
    rows = values["results"]
    reasons: dict[str, dict[str, int]] = {}
    # By title and kind of puzzle: the name of each row, its scores, and whether it is a baseline.
    breakdowns: dict[str, dict[str, list[Any]]] = {}
    for row in rows:
        result = group[row["name"]]
        metrics = result.metrics
        row["bound"] = metrics.is_baseline
        row["about"] = _about(row, metrics)
        row["metrics"] = metrics
        row["completions"] = len(result.samples)
        for title, kind, scores in results.breakdowns(metrics):
            kinds = breakdowns.setdefault(title, {})
            kinds.setdefault(kind, []).append((row["name"], scores, row["bound"]))
        if not row["bound"]:
            for reason, count in metrics.reasons.items():
                reasons.setdefault(reason, {})[row["name"]] = count
    models = [row for row in rows if not row["bound"]]
    ks = set.intersection(*(set(row["metrics"].pass_at) for row in rows))
    by_count = sorted(reasons.items(), key=lambda item: -sum(item[1].values()))
    return values | {
        "rows": rows,
        "models": models,
        "breakdowns": breakdowns,
        "terms": tables.conditions(values),
        "samples": models[0]["metrics"].decoding.samples or 1,
        "single": all(row["completions"] == row["n"] for row in models),
        "majority": all(row["metrics"].majority for row in rows),
        "puzzles": sorted(next(iter(group.values())).puzzles),
        "called": f"{values['split']} {registry.task_of(values).noun}s".strip(),
        "reasons": dict(by_count),
        "pass_at": sorted(ks),
        "lengths": all(row["metrics"].tokens for row in models),
    }


def _about(row: Mapping[str, Any], metrics: Metrics) -> str:
    """Return the line below the name of *row*."""
    if "runs" in row:
        return f"mean of {formatting.plural(len(row['runs']), 'run')}, ± {100 * row['sd']:.1f}"
    baseline = registry.task(metrics.task).baselines.get(metrics.model.source)
    if baseline:
        return baseline.about
    loaded = f", loaded in {metrics.precision}" if metrics.precision else ""
    return metrics.model.source + loaded


def _changed(first: results.Result, last: results.Result) -> dict[str, list[tuple[Sample, Sample]]]:
    """Return the completions of two models for the puzzles that only one of them solved."""
    changed: dict[str, list[tuple[Sample, Sample]]] = {side: [] for side in tables.SIDES}
    for before, after in zip(first.samples, last.samples, strict=True):
        if before.grade.correct != after.grade.correct:
            changed["improved" if after.grade.correct else "regressed"].append((before, after))
    return changed
