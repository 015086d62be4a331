"""The report: one self-contained HTML page about results, training, completions and provenance.

The page needs no network and no font; its one script moves the film of validation completions. Every
number is read from the artifacts or counted from their completions. The same artifacts give the same
bytes.
"""

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from countdown_rl.core import artifacts, formatting
from countdown_rl.core.errors import ArtifactError, InputError
from countdown_rl.core.manifest import MADE_BY, ProvenanceEntry
from countdown_rl.core.packages import version
from countdown_rl.core.types import Record
from countdown_rl.evaluation import compare, diagnose, results, tables, training_log
from countdown_rl.evaluation.caveats import caveats
from countdown_rl.evaluation.results import Result
from countdown_rl.evaluation.sample import Accuracy, Sample
from countdown_rl.release import templates
from countdown_rl.release.report import charts
from countdown_rl.release.report.film import film, sampled
from countdown_rl.tasks import registry
from countdown_rl.tasks.task import REASONS

#: Logs, or directories of evaluations, of the seeds of a setting, by its name.
Runs = dict[str, list[Path]]
Group = Mapping[str, Result]
#: Variables of the template of the page, or of one comparison in it.
Content = dict[str, Any]
#: Values of the page that are empty without an evaluation.
_COMPARED = ("names", "groups", "puzzles", "changed", "chain", "versions", "warnings")
#: Order of the baselines, after the models.
_PLACES = {"floor": 1, "ceiling": 2}
#: Puzzles whose completions are shown.
TRANSCRIPTS = 24


def find(root: Path, *, results: Sequence[str] = (), logs: Sequence[str] = ()) -> tuple[Runs, Runs]:
    """Find what the page is about.

    Args:
        root: directory where the pipeline writes evaluations and a log, which are the default.
        results: other evaluations, as ``PATH``, or ``NAME=PATH,PATH,...`` for seeds.
        logs: other logs, in the same form. With *logs* alone there are no evaluations.

    Returns:
        The evaluations by name, and the logs by run.

    Raises:
        ArtifactError: there are neither.
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


def save(page: str, out: Path) -> None:
    """Write *page* at *out*, atomically."""
    if out.is_dir():
        raise ArtifactError(f"{out} is a directory; give --out a file.")
    with artifacts.replacing(out) as partial:
        partial.write_text(page, "utf-8")


def save_figures(curves: Sequence[charts.Curve], directory: Path) -> None:
    """Write each of *curves* as an SVG file named by its title into *directory*."""
    for curve in curves:
        name = re.sub(r"[^a-z0-9]+", "-", curve.title.lower()).strip("-")
        save(charts.picture([curve]), directory / f"{name}.svg")


def text(content: Content, demo: str | None = None) -> str:
    """Return the HTML of the report about the *content* of :func:`view`.

    *demo* is the file name of the demo beside it.
    """
    environment = templates.html_templates()
    for name in ("percent", "interval", "short", "duration", "plural"):
        environment.filters[name] = getattr(templates, name)
    for function in (tables.counted, tables.points, tables.conditions, _leaves, _value, _sha256):
        environment.filters[function.__name__.lstrip("_")] = function
    template = environment.get_template("release/report/page.html.jinja")
    return formatting.printable(template.render(content, demo=demo))


def _sha256(script: str) -> str:
    """Return the digest of *script* for the Content-Security-Policy."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _value(value: object) -> str:
    return f"{value:,}" if type(value) is int else templates.value(value)


def _leaves(tree: Record, path: str = "") -> Iterator[tuple[str, object]]:
    """Yield every value in the nested *tree* but None, with the keys that lead to it."""
    for key, value in tree.items():
        name = f"{path} {key.rstrip('_').replace('_', '-')}".strip()
        if isinstance(value, Mapping):
            yield from _leaves(value, name)
        elif value is not None:
            yield name, value


def view(evaluations: Runs, training: Runs) -> Content:
    """Return the content of the page about *evaluations* and the logs of *training* by run.

    Several evaluations of one name are the runs of a setting: their means are shown, with
    completions of the first. Without evaluations, the page is about training alone.
    """
    scored = {}
    for name, paths in evaluations.items():
        scored[name] = compare.pooled(name, list(map(results.read, paths)))
    compared = _compared(scored) if scored else {name: {} for name in _COMPARED}
    links = compared["chain"]

    read = {path: _log(path) for path in chain.from_iterable(training.values())}
    runs = {name: [read[path] for path in paths] for name, paths in training.items()}
    logs = list(read)
    own = [path for path in logs if training_log.is_log_of(path, links)]
    log: charts.Log = []
    samples: list[Sample] = []
    for path in (own or logs)[:1]:
        log = read[path]
        samples = training_log.samples_of(path)
    seconds = 0.0
    before = 0
    for step in log:
        seconds += step.seconds * (step.step - before)
        before = step.step

    rows = [sample.row for sample in samples[:1]]
    rows += [result.samples[0].row for result in scored.values()]
    task = registry.task_of({"task": rows[-1].task} if rows else {})
    has_curriculum = any(
        link.by_grpo and link.options.get("sampler") == "curriculum" for link in links
    )
    return compared | {
        "version": version(),
        "noun": task.noun,
        "baselines": task.baselines,
        "reasons": {**REASONS, **task.reasons},
        "results": list(scored.values()),
        "log": log,
        "runs": runs,
        "curves": charts.curves(runs, task),
        "film": film(samples),
        "sampled": sampled(samples),
        "seconds": seconds,
        "other_log": scored and logs and not own,
        "curriculum": own and has_curriculum,
    }


def _log(path: Path) -> charts.Log:
    rows: charts.Log = training_log.read(path)
    if not rows:
        raise InputError(f"{path} has no steps yet; give another --log, or continue the run.")
    return rows


def _ordered(scored: Group) -> list[str]:
    """Return the names of *scored*: models in the order of their making, then the baselines.

    Those that the last model was trained from come first. Where nothing tells, names stay as given.
    """
    chains = {name: results.chain(result) for name, result in scored.items()}
    lineages = {name: lineage(links) for name, links in chains.items()}
    names = sorted(scored, key=lambda name: (len(lineages[name]), len(chains[name])))
    policy = lineages[names[-1]]
    names.sort(key=lambda name: not set() < lineages[name] < policy)
    return sorted(names, key=lambda name: _PLACES.get(scored[name].metrics.model.kind, 0))


def _compared(scored: Group) -> Content:
    """Return the content of the page about the results *scored*."""
    groups = comparable({name: scored[name] for name in _ordered(scored)})
    models = {name: item for name, item in groups[0].items() if not item.metrics.is_baseline}
    names = list(models)
    first, last = models[names[0]], models[names[-1]]
    links = results.chain(last)
    origins, policy = lineage(results.chain(first)), lineage(links)
    is_paired = last is not first and len(first.samples) == len(last.samples) == first.metrics.n

    transcripts = {}
    for name, model in models.items():
        transcripts[name] = [samples[0] for samples in model.by_puzzle[:TRANSCRIPTS]]
    shown: dict[str, Result] = {}
    for group in groups:
        shown |= group
    warnings = caveats(shown)
    left_out = ", ".join(name for name in scored if name not in shown)
    if left_out:
        reason = "other puzzles or another number of completions than the models"
        warnings.insert(0, f"{left_out}: left out, as the evaluation has {reason}.")
    comparisons = list(map(_comparison, groups))
    return {
        "names": names,
        "first": comparisons[0]["models"][0],
        "last": comparisons[0]["models"][-1],
        "groups": comparisons,
        "method": "GRPO" if any(link.by_grpo for link in links) else names[-1],
        "trained": len(policy) > 1,
        "from_first": set() < origins < policy,
        "puzzles": min(TRANSCRIPTS, first.metrics.n),
        "transcripts": transcripts,
        "changed": _changed(first, last) if is_paired else None,
        "causes": diagnose.LABELS,
        "lost": {name: diagnose.diagnose(models[name]) for name in (names[0], names[-1])},
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
    groups: dict[tuple[object, ...], dict[str, Result]] = {}
    baselines = {}
    for name, result in scored.items():
        if result.metrics.is_baseline:
            baselines[name] = result
        else:
            terms = (*sorted(result.puzzles), compare.decoding(result))
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


def _comparison(group: Group) -> Content:
    """Return one comparison: its rows, breakdowns, and the reasons why answers were incorrect."""
    comparison = compare.scores(group)
    rows = comparison["results"]
    models = []
    reasons = Counter[str]()
    # By title and kind of puzzle: each row, and its scores.
    breakdowns: dict[str, dict[str, list[tuple[Content, Accuracy]]]] = {}
    for row in rows:
        result = group[row["name"]]
        row.update(metrics=result.metrics, completions=len(result.samples))
        for title, kind, scores in results.breakdowns(result.metrics):
            kinds = breakdowns.setdefault(title, {})
            kinds.setdefault(kind, []).append((row, scores))
        if not result.metrics.is_baseline:
            models.append(row)
            reasons.update(result.metrics.reasons)
    ks = set.intersection(*(set(row["metrics"].pass_at) for row in rows))
    return comparison | {
        "models": models,
        "breakdowns": breakdowns,
        "samples": models[0]["metrics"].decoding.samples or 1,
        "single": all(row["completions"] == row["n"] for row in models),
        "puzzles": sorted(next(iter(group.values())).puzzles),
        "reasons": [reason for reason, _ in reasons.most_common()],
        "pass_at": sorted(ks),
    }


def _changed(first: Result, last: Result) -> dict[str, list[tuple[Sample, Sample]]]:
    """Return the completions of two models for the puzzles that only one of them solved."""
    changed: dict[str, list[tuple[Sample, Sample]]] = {side: [] for side in tables.SIDES}
    for before, after in zip(first.samples, last.samples, strict=True):
        if before.grade.correct != after.grade.correct:
            changed["improved" if after.grade.correct else "regressed"].append((before, after))
    return changed
