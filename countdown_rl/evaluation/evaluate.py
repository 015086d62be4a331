"""Evaluation: rows completed by a model, server or baseline, or elsewhere, graded, as an ``eval`` artifact."""

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from countdown_rl.core import artifacts, processes
from countdown_rl.core.errors import ArtifactError, CountdownError, InputError, UsageError
from countdown_rl.core.formatting import flag, plural
from countdown_rl.core.identity import Identity, finished
from countdown_rl.core.manifest import file_input
from countdown_rl.evaluation import results
from countdown_rl.evaluation.complete import OnBatch, complete, load_engine
from countdown_rl.evaluation.completions import Reader
from countdown_rl.evaluation.config import EvalOptions
from countdown_rl.evaluation.metrics import measure
from countdown_rl.evaluation.results import Result
from countdown_rl.evaluation.sample import DecodingSettings, EvaluatedModel, Metrics, Sample
from countdown_rl.inference import engines
from countdown_rl.inference.engine import Completion, Engine
from countdown_rl.models import reference
from countdown_rl.tasks import jsonl, registry
from countdown_rl.tasks.task import Row

OnText = Callable[[str], None]


class _Made(NamedTuple):
    """Rows with their graded completions, the fields of :class:`Metrics` about these, and the libraries used."""

    rows: Sequence[Row]
    samples: Sequence[Sample]
    description: dict[str, Any]
    libraries: tuple[str, ...] = ()


#: Completes rows: from the inputs of the manifest and the file of unfinished work.
_MadeBy = Callable[[Mapping[str, Any], Path], _Made]


def evaluate(
    options: EvalOptions,
    *,
    out: Path,
    data: Path | None = None,
    model: str = "",
    completions: Path | None = None,
    overwrite: bool = True,
    revision: str | None = None,
    base_model: str | None = None,
    trust_remote_code: bool = False,
    on_batch: OnBatch | None = None,
    on_warning: OnText = lambda _: None,
    on_note: OnText = lambda _: None,
) -> Result:
    """Evaluate *model*, or *completions* made elsewhere, and write an ``eval`` artifact at *out*.

    Args:
        data: a file of rows, or a data artifact, whose test split is used; None if *completions* have their rows.
        model: a model reference, ``random`` or ``solver`` for a baseline, or a server's name for it.
        completions: a file; of *options* only those on completions apply to it.
        overwrite: replace a finished evaluation at *out*. If False, the same one is returned, and another is an error.
        on_batch: called after every batch and within slow ones.
    """
    out, suite = Path(out), jsonl.suite_name(data)
    jsonl.check_rules(data, rule=options.rule, operators=options.operators)
    file = jsonl.test_file(Path(data)) if data else completions
    if file is None or not (model or completions):
        raise UsageError("give a model and rows, or completions.")
    if not completions and (unused := [*map(flag, options.of_completions)]):
        raise UsageError(
            f"{unused[0]} is for completions made elsewhere; give them as --completions."
        )
    if completions and (unused := [*map(flag, options.of_models)]):
        raise UsageError(
            f"{unused[0]} is for a model that completes rows; leave it out with --completions."
        )
    artifacts.check_writable(out, "eval")
    rows: Sequence[Row] = jsonl.read_rows(file, on_note) if data else []
    if completions and not completions.is_file():
        raise InputError(f"{completions} does not exist or is no file.")
    inputs: dict[str, Any] = {"data": file_input(file) | ({"suite": suite} if suite else {})}
    part: dict[str, Any] = {}  # of a suite
    if completions:
        compared = recorded = options.of_completions
        inputs |= {
            "completions": file_input(completions),
            "model": {"source": completions.name, "kind": "completions"},
        }
        with suppress(CountdownError):  # nothing is there
            registry.task(results.read_metrics(out).task)  # whose code is a part of the identity
        made_by: _MadeBy = partial(_made_elsewhere, completions, rows, options, bool(suite))
    else:
        compared = recorded = options.recorded
        asked, rows = len(rows), _selected(rows, str(data), options, on_warning)
        part = {"of": asked} if suite and len(rows) < asked else {}
        reading = {
            "revision": revision,
            "trust_remote_code": trust_remote_code,
            "base_model": base_model,
        }
        inputs["model"], made_by = _made_by(
            model, rows, options, reading, on_batch, on_warning, on_note
        )
    shares = [
        f".{rank}" if rank else "" for rank in range(processes.world_size())
    ]  # of each process
    unfinished = [out.with_name(f".{out.name}.progress{share}.jsonl") for share in shares]
    run = Identity.of(compared, inputs)
    if finished(out, "eval", run, overwrite=overwrite):
        unfinished[0].unlink(missing_ok=True)  # if the run was killed between its last two steps
        result = results.read(out)
        grammar = registry.task(result.metrics.task).grammar
        if result.metrics.grammar != grammar:
            raise ArtifactError(
                f"{out} was graded by version {result.metrics.grammar} of the answer grammar, and "
                f"{grammar} is the present one; give --overwrite to grade it again."
            )
        on_note(f"{out} is up to date (use --overwrite to rebuild).")
        return result
    limits = options.limits if len(options.limits) > 1 and not completions else []
    made = made_by(inputs, unfinished[processes.rank()])
    result = measured(made.rows, made.samples, inputs, limits, **made.description | part)
    if not processes.is_main():
        return result
    with artifacts.writing(
        out, "eval", options=recorded, inputs=inputs, libraries=made.libraries
    ) as writer:
        code = Identity.of(recorded, inputs).machine["code"]  # now the tasks of all rows are known
        writer.facts |= {"code": code} if code else {}
        results.write(writer.path, result.metrics, result.samples)
    for file in unfinished:
        file.unlink(missing_ok=True)
    return replace(result, manifest=artifacts.read(out, "eval", verify=False), path=out)


def _made_by(
    model: str,
    rows: Sequence[Row],
    options: EvalOptions,
    reading: Mapping[str, Any],
    on_batch: OnBatch | None,
    on_warning: OnText,
    on_note: OnText,
) -> tuple[dict[str, Any], _MadeBy]:
    """The entry of *model* among the inputs of a manifest, and the function that completes *rows* with it."""
    if baseline := registry.baseline(model, rows):
        draws = [
            (row, f"{options.seed} {i} {turn}")
            for i, row in enumerate(rows)
            for turn in range(options.samples)
        ]

        def drawn(*_: Any) -> _Made:
            texts = [
                Completion(baseline.completion(row, random.Random(seed)), 0, True)
                for row, seed in draws
            ]
            decoding = DecodingSettings(samples=options.samples, seed=options.seed)
            return _Made(rows, graded(rows, texts), {"decoding": decoding})

        return {"source": model, "kind": baseline.kind}, drawn
    is_server = options.engine == "openai"
    source: Any = (
        engines.engine_class("openai")(model, options)
        if is_server
        else reference.find_model(model, **reading)
    )

    def generated(inputs: Mapping[str, Any], unfinished: Path) -> _Made:
        engine: Engine = source
        if not is_server:
            on_note(f"Loading {model} ...")
            engine = load_engine(source, options, len(rows), on_warning)
        done, completions = complete(engine, rows, options, inputs, unfinished, on_batch=on_batch)
        return _Made(
            done,
            graded(done, completions),
            _description(engine, options, completions),
            engine.libraries,
        )

    return source.as_input(), generated


def default_out(source: Path) -> Path:
    """The directory of an evaluation of the model, or of the completions, at *source*."""
    name = source.resolve().name if source.exists() else source.name
    return Path("artifacts/eval", name.removesuffix(".gguf") or "model")


def _made_elsewhere(
    file: Path, known: Sequence[Row], options: EvalOptions, fill: bool, *others: Any
) -> _Made:
    """The rows and graded completions of *file*, which needs nothing of *others*.

    If *fill*, rows of *known* without a completion count as incorrect; else they are left out.
    """
    settings = {"style": options.style, "rule": options.rule, "operators": options.operators}
    reader = Reader(known, options.field, **settings)
    answers: dict[str, list[Sample]] = {}  # by the id of the row
    repeats: dict[str, str] = {}  # the place of the second record of a row
    with file.open("rb") as stream:
        for row, completions, place in reader.read(stream, str(file)):
            if row.id in answers:
                repeats.setdefault(row.id, place)
            samples = answers.setdefault(row.id, [])
            for completion in completions:
                samples.append(Sample.of(row, completion, len(samples)))
    if not answers:
        raise InputError(f"{file} has no completion that can be graded.")
    most = max(map(len, answers.values()))
    _check_counts(file, answers, repeats, fill)

    rows = [row for row in reader.rows.values() if fill or row.id in answers]
    rows = rows or [samples[0].row for samples in answers.values()]
    missing = Completion("", None, None, {"reason": "missing"})
    ordered: list[Sample] = []
    for row in rows:
        samples = answers.get(row.id, [])
        ordered += samples
        ordered += [Sample.of(row, missing, turn) for turn in range(len(samples), most)]
    if most == 1:
        ordered = [replace(sample, turn=None) for sample in ordered]
    asked = len(reader.rows) if len(reader.rows) > len(rows) else None
    return _Made(rows, ordered, {"decoding": DecodingSettings(samples=most), "of": asked})


def _check_counts(
    file: Path, answers: Mapping[str, Sequence[Sample]], repeats: Mapping[str, str], fill: bool
) -> None:
    """Raise InputError if some rows have more completions than others, or fewer unless *fill*."""
    counts = Counter(map(len, answers.values()))
    most = max(counts)
    usual, share = counts.most_common(1)[0]
    if usual < most and share > len(answers) / 2:
        extra = [name for name, samples in answers.items() if len(samples) > usual]
        noun = registry.task(answers[extra[0]][0].row.task).noun
        place = next((place for name, place in repeats.items() if name in extra), file)
        repeated = plural(len(extra), f"repeated {noun}")
        raise InputError(
            f"{place}: the first of {repeated}, of {len(answers):,} in all; remove the repeats."
        )
    for samples in answers.values():
        if len(samples) < most and not fill:
            count = plural(len(samples), "completion")
            raise InputError(
                f"{file}: {samples[0].row.headline} has {count}, others {most}; "
                "give all as many, or use `countdown-rl grade` for their share."
            )


def _selected(
    rows: Sequence[Row], name: str, options: EvalOptions, on_warning: OnText
) -> Sequence[Row]:
    """The *rows* of the file or suite *name* up to ``options.limit``."""
    if options.samples > 1 and options.temperature == 0:
        raise UsageError(
            "several completions of a row need a --temperature above 0; greedy ones are equal."
        )
    if options.limit is not None and options.limit > len(rows):
        raise InputError(
            f"{name} has {plural(len(rows), 'row')}, fewer than --limit {options.limit}."
        )
    rows = rows[: options.limit]
    if repeats := len(rows) - len({row.id for row in rows}):
        remedy = "remove them, and give --samples for several completions of a row"
        count = f"{repeats:,} of the {plural(len(rows), 'row')} in {name}"
        on_warning(f"{count} are repeats, which the intervals count as independent; {remedy}.")
    return rows


def graded(rows: Sequence[Row], completions: Sequence[Completion]) -> list[Sample]:
    """Grade *completions*, as many for each of *rows*, those of a row side by side."""
    per_row = len(completions) // len(rows)
    return [
        Sample.of(rows[index // per_row], completion, index % per_row if per_row > 1 else None)
        for index, completion in enumerate(completions)
    ]


def measured(
    rows: Sequence[Row],
    samples: Sequence[Sample],
    inputs: Mapping[str, Any],
    limits: Sequence[int] = (),
    **description: Any,
) -> Result:
    """Measure the *samples* of *rows*.

    *inputs* are entries of a manifest: ``data``, the file of the rows, and ``model``. *description* has the other
    fields of :class:`Metrics`, at least ``decoding``.
    """
    metrics = Metrics(
        **vars(measure(samples, rows, limits=limits)),
        data=inputs["data"],
        model=EvaluatedModel(
            **{key: inputs["model"].get(key) for key in ("source", "kind", "digest")}
        ),
        **identity(rows),
        **description,
    )
    return Result(metrics, samples)


def identity(rows: Sequence[Row]) -> dict[str, Any]:
    """The fields of :class:`Metrics` on what was graded: the sha256 of the ids of *rows*, and the grammar."""
    digest = hashlib.sha256("\n".join(sorted(row.id for row in rows)).encode()).hexdigest()
    return {"puzzles": digest, "grammar": registry.task(rows[0].task).grammar}


def _description(
    engine: Engine, options: EvalOptions, completions: Sequence[Completion]
) -> dict[str, Any]:
    """The fields of :class:`Metrics` on how *engine* made *completions*."""
    names = {field.name for field in fields(DecodingSettings)}
    used = {name: value for name, value in options.recorded.items() if name in names}
    used |= {
        "max_new_tokens": options.limits[-1],
        "top_k": options.top_k or None,
    }
    about: dict[str, Any] = {"decoding": DecodingSettings(greedy=options.temperature == 0, **used)}
    about |= {"engine": engine.name, "precision": engine.precision, "path": engine.storage}
    if engine.endpoint is not None:
        details = [completion.details for completion in completions]
        about["endpoint"] = engine.endpoint | {
            "refused": sum(part.get("reason") == "refused" for part in details),
            "prompt_tokens": sum(part.get("prompt_tokens", 0) for part in details),
            "completion_tokens": sum(completion.tokens or 0 for completion in completions),
        }
        if any("cost" in part for part in details):
            about["endpoint"]["cost"] = round(sum(part.get("cost", 0) for part in details), 6)
    return about
