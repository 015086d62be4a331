"""Evaluation: completions of rows, each graded, and their figures, as an ``eval`` artifact.

A model, a server or a baseline completes the rows; :func:`judge` grades the completions of anything.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from countdown_rl.core import artifacts
from countdown_rl.core.errors import InputError, UsageError
from countdown_rl.evaluation import baselines, results
from countdown_rl.evaluation.complete import OnBatch, Progress, complete, disconnect, load_engine, prompts_of
from countdown_rl.evaluation.config import EvalOptions
from countdown_rl.evaluation.metrics import measure
from countdown_rl.evaluation.results import Result
from countdown_rl.evaluation.sample import DecodingSettings, EvaluatedModel, Metrics, Sample
from countdown_rl.inference.generate import Completion
from countdown_rl.inference.openai import OpenAI
from countdown_rl.models import reference
from countdown_rl.tasks import jsonl
from countdown_rl.tasks.task import Row

#: Options that change how fast a result comes, and not its bytes; a server's URL is recorded with its model.
_SPEED = ("threads", "device", "tensor_parallel", "base_url", "concurrency", "timeout")

#: Options that are recorded where they are given, so that an evaluation without them keeps its bytes.
_OPTIONAL = ("top_k", "min_p", "pass_at")


def evaluate(
    options: EvalOptions,
    *,
    model: str,
    data: Path,
    out: Path,
    overwrite: bool = True,
    revision: str | None = None,
    base_model: str | None = None,
    trust_remote_code: bool = False,
    process: tuple[int, int] = (0, 1),
    on_batch: OnBatch | None = None,
    on_finished: Callable[[], None] = lambda: None,
    on_warning: Callable[[str], None] = lambda _: None,
    on_note: Callable[[str], None] = lambda _: None,
) -> Result:
    """Evaluate *model* on the puzzles at *data* and write an ``eval`` artifact at *out*.

    Args:
        model: a model reference, ``random`` or ``solver`` for a baseline, or a server's name for it.
        data: a file of rows, or a data artifact, of which the test split is used.
        overwrite: replace the finished evaluation at *out*; else it is returned where it is this one, and an error
            where it is not.
        process: this one's rank, and the number of those that a launcher started; each completes its share of the
            batches, and rank 0 writes.
        on_batch: called once with the batches of an interrupted run, then after every batch, of this process, and
            within slow ones.
        on_finished: called where this evaluation is at *out* already.
        on_warning: called with a warning about this machine, the model or the data.
        on_note: called with remarks on *data*.
    """
    out, file, (rank, world) = Path(out), jsonl.test_file(Path(data)), process
    artifacts.check_writable(out, "eval")
    rows = _read_rows(file, options.limit, on_note, on_warning)
    baseline = baselines.find(model, rows)
    if (baseline or options.engine == "openai") and (revision is not None or base_model is not None or world > 1):
        raise UsageError("--revision, --base-model and a launcher are for models on this machine; leave them out.")
    if baseline:
        entry: dict[str, Any] = {"source": model, "kind": baseline.kind}
    elif options.engine == "openai":
        server = OpenAI(model, options, concurrency=options.concurrency)
        entry = server.as_input()
    else:
        ref = reference.resolve(model, revision=revision, trust_remote_code=trust_remote_code, base_model=base_model)
        entry = ref.as_input()
    settings, inputs = _settings(options), {"data": artifacts.file_input(file), "model": entry}
    suffix = f"-{rank}-of-{world}" if world > 1 else ""
    unfinished = out.with_name(f".{out.name}{suffix}.progress.jsonl")
    if artifacts.finished(out, "eval", artifacts.identity(settings, inputs), overwrite=overwrite):
        unfinished.unlink(missing_ok=True)  # the run was killed between its last two steps
        on_finished()
        return results.read(out)
    if baseline:  # of the decoding options only these two apply
        decoding = DecodingSettings(samples=options.samples, seed=options.seed)
        completions = baselines.complete(baseline, rows, options.seed, options.samples)
        return _save(out, options, inputs, judge(rows, completions, options, inputs, decoding=decoding))

    engine = server if options.engine == "openai" else load_engine(ref, options, world, on_warning)
    rows, prompts = prompts_of(engine, rows, options.max_new_tokens)
    identity = artifacts.identity(
        settings,
        inputs,
        versions=artifacts.versions(engine.libraries),
        engine=[engine.name, engine.storage, engine.precision, engine.device],
        prompts=hashlib.sha256(json.dumps(prompts).encode()).hexdigest(),
    )
    progress = Progress(unfinished, identity)
    completions = complete(engine, rows, prompts, options, progress, process=process, on_batch=on_batch)
    about: dict[str, Any] = {"engine": engine.name, "precision": engine.precision, "path": engine.storage}
    if isinstance(engine, OpenAI):
        about["endpoint"] = engine.endpoint | _usage(completions)
    decoding = DecodingSettings(
        greedy=options.temperature == 0,
        **{field.name: settings[field.name] for field in fields(DecodingSettings) if field.name in settings},
    )
    result = judge(rows, completions, options, inputs, decoding=decoding, **about)
    if rank == 0:
        result = _save(out, options, inputs, result, engine.libraries)
    if world > 1:
        disconnect()
    unfinished.unlink(missing_ok=True)
    return result


def judge(
    rows: Sequence[Row],
    completions: Sequence[Completion],
    options: EvalOptions,
    inputs: Mapping[str, Any],
    *,
    decoding: DecodingSettings,
    **about: Any,
) -> Result:
    """Grade *completions*, as many for each of *rows*, those of a row side by side, and measure them.

    Args:
        inputs: entries of a manifest: ``data``, the file of the rows, and ``model``.
        about: other fields of :class:`Metrics`.
    """
    per_row, model = len(completions) // len(rows), inputs["model"]
    samples = [
        Sample.of(rows[index // per_row], completion, index % per_row if per_row > 1 else None)
        for index, completion in enumerate(completions)
    ]
    figures = measure(samples, rows, options.pass_at_values)
    named = EvaluatedModel(source=model["source"], kind=model["kind"], digest=model.get("digest"))
    return Result(Metrics(**vars(figures), decoding=decoding, data=inputs["data"], model=named, **about), samples)


def _save(
    out: Path, options: EvalOptions, inputs: Mapping[str, Any], result: Result, libraries: Sequence[str] = ()
) -> Result:
    """Write *result* to *out*, and return it with its manifest."""
    with artifacts.writing(out, "eval", options=_settings(options), inputs=inputs, libraries=libraries) as draft:
        results.write(draft.path, result.metrics, result.samples, options.pass_at_values)
    return replace(result, manifest=artifacts.read(out, "eval", verify=False), path=out)


def _read_rows(
    file: Path, limit: int | None, on_note: Callable[[str], None], on_warning: Callable[[str], None]
) -> Sequence[Row]:
    rows = jsonl.read_rows(file, on_note)
    if limit is not None and limit > len(rows):
        raise InputError(f"{file} has {len(rows)} rows, fewer than --limit {limit}.")
    rows = rows[:limit]
    if repeats := len(rows) - len({row.id for row in rows}):
        on_warning(
            f"{repeats:,} of the {len(rows):,} rows in {file} repeat others, and intervals take them for independent; "
            "remove them, and give --samples for several completions of a row."
        )
    return rows


def _settings(options: EvalOptions) -> dict[str, Any]:
    """The *options* that decide the result, as they are recorded."""
    omitted = {*_SPEED, *(name for name in _OPTIONAL if not getattr(options, name))}
    return {key: value for key, value in asdict(options).items() if key not in omitted}


def _usage(completions: Sequence[Completion]) -> dict[str, Any]:
    """Refusals, tokens and the cost of a server that made *completions*."""
    details = [completion.details for completion in completions]
    costs = [part["cost"] for part in details if "cost" in part]
    return {
        "refused": sum(part.get("reason") == "refused" for part in details),
        "prompt_tokens": sum(part["prompt_tokens"] for part in details),
        "completion_tokens": sum(completion.tokens for completion in completions),
        **({"cost": round(sum(costs), 6)} if costs else {}),
    }
