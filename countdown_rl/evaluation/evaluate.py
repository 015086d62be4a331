"""Evaluation: completions of rows, graded, as an ``eval`` artifact.

A model, a server or a baseline completes the rows, or they were completed elsewhere.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path

from countdown_rl.core import artifacts, processes
from countdown_rl.core.errors import ArtifactError, InputError, UsageError
from countdown_rl.core.formatting import plural
from countdown_rl.core.identity import Identity, finished
from countdown_rl.core.manifest import file_input, provenance_chain
from countdown_rl.core.types import JsonObject
from countdown_rl.evaluation import results
from countdown_rl.evaluation.complete import OnBatch, complete, load_engine
from countdown_rl.evaluation.completions import Reader
from countdown_rl.evaluation.config import EvalOptions
from countdown_rl.evaluation.metrics import measure
from countdown_rl.evaluation.overlap import overlap, trained_ids
from countdown_rl.evaluation.results import Result
from countdown_rl.evaluation.sample import DecodingSettings, EvaluatedModel, Metrics, Sample
from countdown_rl.inference import engines
from countdown_rl.inference.engine import Completion, Engine
from countdown_rl.models.reference import ModelRef, find_model
from countdown_rl.tasks import jsonl, probe, registry
from countdown_rl.tasks.task import Baseline, Row

OnText = Callable[[str], None]


@dataclass(frozen=True)
class _Graded:
    """Graded completions, the fields of :class:`Metrics` about them, and the libraries used."""

    samples: Sequence[Sample]
    description: JsonObject
    libraries: tuple[str, ...] = ()


#: Completes rows, given the inputs of the evaluation and the file of unfinished work.
_Completer = Callable[[JsonObject, Path], _Graded]


@dataclass(frozen=True)
class _Source:
    """The origin of completions.

    Its *entry* among the inputs of a manifest, and its options that decide the result. *trained*
    are the ids that the model was trained on, if they are known.
    """

    entry: JsonObject
    recorded: JsonObject
    complete: _Completer
    trained: set[str] | None = None
    inputs: JsonObject = field(default_factory=dict)


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
        options: the decoding; of them only those on completions apply to *completions*.
        out: the directory of the artifact.
        data: a file of rows, or a data artifact, whose test split is used; None if *completions*
            have their rows.
        model: a directory, file or Hub id, ``random`` or ``solver`` for a baseline, or a server's
            name for it.
        completions: a file.
        overwrite: replace a finished evaluation at *out*. If False, the same one is returned, and
            another is an error.
        revision: the revision of a model of the Hub.
        base_model: the base of an adapter, in place of the recorded one.
        trust_remote_code: run the code of a model of the Hub.
        on_batch: called after every batch and within slow ones.
        on_warning: called with what limits the conclusions, before any completion.
        on_note: called with what is going on.
    """
    jsonl.check_rules(data, rule=options.rule, operators=options.operators)
    file = jsonl.test_file(data) if data else completions
    if file is None or not (model or completions):
        raise UsageError("give a model and rows, or completions.")
    _check_options(options, completions)
    artifacts.check_writable(out, "eval")
    rows: Sequence[Row] = jsonl.read_rows(file, on_note) if data else []
    asked = len(rows)
    suite = jsonl.suite_name(data)

    if completions:
        source = _elsewhere(completions, rows, options, fill=bool(suite))
    else:
        rows = _selected(rows, str(data), options, on_warning)
        baseline = registry.baseline(model, rows)
        if baseline:
            source = _of_baseline(model, baseline, rows, options)
        elif options.engine == "openai":
            engines.check_installed("openai")
            server = engines.engine_class("openai")(model, options)
            complete_rows = _completer(lambda: server, rows, options, on_batch)
            source = _Source(server.as_input(), options.recorded, complete_rows)
        else:
            ref = find_model(
                model,
                revision=revision,
                trust_remote_code=trust_remote_code,
                base_model=base_model,
            )
            source = _of_model(ref, rows, options, on_batch, on_warning, on_note)
    entry = file_input(file) | ({"suite": suite} if suite else {})
    inputs = {"data": entry, "model": source.entry, **source.inputs}

    run = Identity.of(source.recorded, inputs)
    shares = [f".{rank}" if rank else "" for rank in range(processes.world_size())]
    unfinished = [out.with_name(f".{out.name}.progress{share}.jsonl") for share in shares]
    if finished(out, "eval", run, overwrite=overwrite):
        unfinished[0].unlink(missing_ok=True)  # if the run was killed between its last two steps
        on_note(f"{out} is up to date (use --overwrite to rebuild).")
        return _read_finished(out)

    graded = source.complete(inputs, unfinished[processes.rank()])
    samples = graded.samples
    description = dict(graded.description)
    if suite and not completions and len(rows) < asked:
        description["of"] = asked
    if source.trained is not None:
        description["overlap"] = overlap(samples, source.trained)
    evaluated: JsonObject = {name: source.entry.get(name) for name in ("source", "kind", "digest")}
    metrics = Metrics(
        **vars(measure(samples, on_note=on_note)),
        data=entry,
        model=EvaluatedModel(**evaluated),
        grammar=registry.task(samples[0].row.task).grammar,
        **description,
    )
    if not processes.is_main():
        return Result(metrics, samples)
    with artifacts.writing(
        out, "eval", options=source.recorded, inputs=inputs, libraries=graded.libraries
    ) as writer:
        if code := run.machine["code"]:
            writer.facts["code"] = code
        results.write(writer.path, metrics, samples)
    for share in unfinished:
        share.unlink(missing_ok=True)
    manifest = artifacts.read(out, "eval", verify=False)
    return Result(metrics, samples, manifest=manifest, path=out)


def _check_options(options: EvalOptions, completions: Path | None) -> None:
    """Raise UsageError at an option that does not apply."""
    unfit = list(options.of_completions)
    remedy = "is for completions made elsewhere; give them as --completions."
    if completions is not None:
        unfit = options.of_models
        remedy = "is for a model that completes rows; leave it out with --completions."
    if unfit:
        raise UsageError(remedy, option=unfit[0])
    if completions is not None and not completions.exists():
        raise InputError(f"{completions} does not exist.")


def _selected(
    rows: Sequence[Row], name: str, options: EvalOptions, on_warning: OnText
) -> Sequence[Row]:
    """The *rows* of the file or suite *name* up to ``options.limit``."""
    if options.samples > 1 and options.temperature == 0:
        raise UsageError(
            "several completions of a row need a --temperature above 0; greedy ones are equal."
        )
    rows = rows[: options.limit]
    repeats = len(rows) - len({row.id for row in rows})
    if repeats:
        remedy = "remove them, and give --samples for several completions of a row"
        count = f"{repeats:,} of the {plural(len(rows), 'row')} in {name}"
        on_warning(f"{count} are repeats, which the intervals count as independent; {remedy}.")
    return rows


def _read_finished(out: Path) -> Result:
    """The evaluation at *out*. Raises ArtifactError if the answer grammar has changed since."""
    result = results.read(out)
    grammar = registry.task(result.metrics.task).grammar
    if result.metrics.grammar != grammar:
        raise ArtifactError(
            f"{out} was graded by version {result.metrics.grammar} of the answer grammar, and "
            f"{grammar} is the present one; give --overwrite to grade it again."
        )
    return result


def _of_baseline(
    name: str, baseline: Baseline, rows: Sequence[Row], options: EvalOptions
) -> _Source:
    def complete_rows(*_: object) -> _Graded:
        completions = []
        for index, row in enumerate(rows):
            for turn in range(options.samples):
                rng = random.Random(f"{options.seed} {index} {turn}")
                completions.append(Completion(baseline.completion(row, rng), 0, True))
        decoding = DecodingSettings(samples=options.samples, seed=options.seed)
        return _Graded(_grade(rows, completions), {"decoding": decoding})

    recorded = options.recorded | {"seed": options.seed}
    return _Source({"source": name, "kind": baseline.kind}, recorded, complete_rows)


def _of_model(
    ref: ModelRef,
    rows: Sequence[Row],
    options: EvalOptions,
    on_batch: OnBatch | None,
    on_warning: OnText,
    on_note: OnText,
) -> _Source:
    entry = ref.as_input()
    remedy = "make rows by `countdown-rl gen-data --style` or --prompt as in training."
    if warning := probe.other_prompt(provenance_chain(entry), rows, remedy):
        on_warning(warning)

    def load() -> Engine:
        on_note(f"Loading {ref.source} ...")
        return load_engine(ref, options, len(rows), on_warning)

    complete_rows = _completer(load, rows, options, on_batch)
    return _Source(entry, options.recorded, complete_rows, trained_ids(ref))


def _completer(
    load: Callable[[], Engine],
    rows: Sequence[Row],
    options: EvalOptions,
    on_batch: OnBatch | None,
) -> _Completer:
    """The function that completes and grades *rows* by the engine that *load* returns."""

    def complete_rows(inputs: JsonObject, unfinished: Path) -> _Graded:
        engine = load()
        done, completions = complete(engine, rows, options, inputs, unfinished, on_batch=on_batch)
        description = _description(engine, options, completions)
        return _Graded(_grade(done, completions), description, engine.libraries)

    return complete_rows


def default_out(source: Path) -> Path:
    """The directory of an evaluation of the model, or of the completions, at *source*."""
    name = source.resolve().name if source.exists() else source.name
    return Path("artifacts/eval", name.removesuffix(".gguf") or "model")


def _elsewhere(file: Path, known: Sequence[Row], options: EvalOptions, *, fill: bool) -> _Source:
    """The completions of *file*, which are read here, as their task is a part of the identity.

    If *fill*, rows of *known* without a completion count as incorrect; else they are left out.
    """
    settings = {"style": options.style, "rule": options.rule, "operators": options.operators}
    reader = Reader(known, options.field, options.records or "", **settings)
    answers: dict[str, list[Sample]] = {}  # by the id of the row
    for row, completions, _ in reader.read(str(file)):
        samples = answers.setdefault(row.id, [])
        for completion in completions:
            samples.append(Sample.of(row, completion, len(samples)))
    if not answers:
        raise InputError(f"{file} has no completion that can be graded.")

    most = max(map(len, answers.values()))
    if fill:
        missing = Completion("", None, None, {"reason": "missing"})
        for name, row in reader.rows.items():
            samples = answers.setdefault(name, [])
            for turn in range(len(samples), most):
                samples.append(Sample.of(row, missing, turn))
    ordered: list[Sample] = []
    for name in reader.rows or answers:
        ordered += answers.get(name, [])
    if most == 1:
        ordered = [replace(sample, turn=None) for sample in ordered]

    is_even = len(ordered) == most * len(answers)
    asked = len(reader.rows)
    description = {
        "decoding": DecodingSettings(samples=most if is_even else None),
        "of": asked if asked > len(answers) else None,
    }
    return _Source(
        {"source": file.name, "kind": "completions"},
        options.of_completions,
        lambda *_: _Graded(ordered, description),
        inputs={"completions": file_input(file)},
    )


def _grade(rows: Sequence[Row], completions: Sequence[Completion]) -> list[Sample]:
    """Grade *completions*, as many for each of *rows*, those of a row side by side."""
    per_row = len(completions) // len(rows)
    samples = []
    for index, completion in enumerate(completions):
        turn = index % per_row if per_row > 1 else None
        samples.append(Sample.of(rows[index // per_row], completion, turn))
    return samples


def _description(
    engine: Engine, options: EvalOptions, completions: Sequence[Completion]
) -> JsonObject:
    """The fields of :class:`Metrics` on how *engine* made *completions*."""
    names = {field.name for field in fields(DecodingSettings)}
    used = {name: value for name, value in asdict(options).items() if name in names}
    used["top_k"] = options.top_k or None
    description: JsonObject = {
        "decoding": DecodingSettings(greedy=options.temperature == 0, **used),
        "engine": engine.name,
        "precision": engine.precision,
        "path": engine.storage,
    }
    if engine.endpoint is not None:
        read = sum(completion.details.get("prompt_tokens", 0) for completion in completions)
        written = sum(completion.tokens or 0 for completion in completions)
        tokens = {"prompt_tokens": read, "completion_tokens": written}
        description["endpoint"] = engine.endpoint | tokens
    return description
