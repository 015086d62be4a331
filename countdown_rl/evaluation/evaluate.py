"""Evaluation: completions of rows, each graded, and their figures, as an ``eval`` artifact.

A model, a server or a baseline completes the rows; :func:`judge` grades completions of any origin.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from countdown_rl.core import artifacts
from countdown_rl.core.errors import InputError, UsageError
from countdown_rl.evaluation import baselines, results
from countdown_rl.evaluation.complete import OnBatch, complete, load_engine
from countdown_rl.evaluation.completions import read as read_completions
from countdown_rl.evaluation.config import EvalOptions
from countdown_rl.evaluation.metrics import measure
from countdown_rl.evaluation.results import Result
from countdown_rl.evaluation.sample import DecodingSettings, EvaluatedModel, Metrics, Sample
from countdown_rl.inference.engines import Engine
from countdown_rl.inference.generate import Completion
from countdown_rl.inference.openai import OpenAI
from countdown_rl.models import reference
from countdown_rl.tasks import jsonl
from countdown_rl.tasks.task import Row


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
        overwrite: replace the finished evaluation at *out*; else it is returned if it is this one, and an error if not.
        process: this one's rank, and the number of those that a launcher started; each completes its share of the
            batches, and rank 0 writes.
        on_batch: called once with the batches of an interrupted run, then after every batch, of this process, and
            within slow ones.
        on_finished: called where this evaluation is at *out* already.
        on_warning: called with a warning about this machine, the model or the data.
        on_note: called with remarks on *data*.
    """
    if options.samples > 1 and options.temperature == 0:
        raise UsageError("several completions per puzzle need a --temperature above 0; greedy ones are the same.")
    out, file, (rank, world) = Path(out), jsonl.test_file(Path(data)), process
    artifacts.check_writable(out, "eval")
    rows = _read_rows(file, options.limit, on_note, on_warning)
    baseline, served = baselines.find(model, rows), options.engine == "openai"
    if (baseline or served) and (revision is not None or base_model is not None or world > 1):
        raise UsageError("--revision, --base-model and a launcher are for models on this machine; leave them out.")
    if baseline:
        entry: dict[str, Any] = {"source": model, "kind": baseline.kind}
    elif served:
        server = OpenAI(model, options, concurrency=options.concurrency)
        entry = server.as_input()
    else:
        ref = reference.find_model(model, revision=revision, trust_remote_code=trust_remote_code, base_model=base_model)
        entry = ref.as_input()
    inputs = {"data": artifacts.file_input(file), "model": entry}
    suffixes = [f"-{number}-of-{world}" for number in range(world)] if world > 1 else [""]
    unfinished = [out.with_name(f".{out.name}{suffix}.progress.jsonl") for suffix in suffixes]
    if artifacts.finished(out, "eval", artifacts.identity(options.recorded, inputs), overwrite=overwrite):
        unfinished[rank].unlink(missing_ok=True)  # the run was killed between its last two steps
        on_finished()
        return results.read(out)

    engine = None
    if baseline:
        completions = baselines.complete(baseline, rows, options.seed, options.samples)
    else:
        engine = server if served else load_engine(ref, options, world, on_warning)
        rows, completions = complete(
            engine, rows, options, inputs, unfinished[rank], process=process, on_batch=on_batch
        )
    result = judge(rows, completions, inputs, options.pass_at_values, **_about(engine, options, completions))
    if rank == 0:
        libraries = engine.libraries if engine else ()
        with artifacts.writing(out, "eval", options=options.recorded, inputs=inputs, libraries=libraries) as draft:
            results.write(draft.path, result.metrics, result.samples, options.pass_at_values)
        result = replace(result, manifest=artifacts.read(out, "eval", verify=False), path=out)
        for path in unfinished:
            path.unlink(missing_ok=True)
    return result


def evaluate_completions(
    file: Path,
    *,
    data: Path | None,
    out: Path,
    pass_at: Sequence[int] = (),
    overwrite: bool = True,
    on_finished: Callable[[], None] = lambda: None,
    on_note: Callable[[str], None] = lambda _: None,
) -> Result:
    """Evaluate the completions in *file*, made elsewhere, and write an ``eval`` artifact at *out*.

    Args:
        data: the rows that they are of, as for :func:`evaluate`; None if only *file* tells.
        pass_at: values k of pass@k.
        on_note: called with the number of rows of *data* without completions.
    """
    artifacts.check_writable(out, "eval")
    source = jsonl.test_file(data) if data else file
    inputs = {
        "data": artifacts.file_input(source),
        "completions": artifacts.file_input(file),
        "model": {"source": file.name, "kind": "completions"},
    }
    options = {"pass_at": list(pass_at)} if pass_at else {}
    if artifacts.finished(out, "eval", artifacts.identity(options, inputs), overwrite=overwrite):
        on_finished()
        return results.read(out)
    known = jsonl.read_rows(source) if data else None
    rows, made = read_completions(file, known)
    if known and len(rows) < len(known):
        on_note(f"{file} has completions of {len(rows):,} of the {len(known):,} rows in {source}.")
    per_row = len(made) // len(rows)
    if max(pass_at, default=1) > per_row:
        raise UsageError(f"pass@{max(pass_at)} needs as many completions of each row, and {file} has {per_row}.")
    result = judge(rows, made, inputs, pass_at, decoding=DecodingSettings(samples=per_row))
    with artifacts.writing(out, "eval", options=options, inputs=inputs) as writer:
        results.write(writer.path, result.metrics, result.samples, pass_at)
    return replace(result, manifest=artifacts.read(out, "eval", verify=False), path=out)


def judge(
    rows: Sequence[Row],
    completions: Sequence[Completion],
    inputs: Mapping[str, Any],
    pass_at: Sequence[int] = (),
    **about: Any,
) -> Result:
    """Grade *completions*, as many for each of *rows*, those of a row side by side, and measure them.

    Args:
        inputs: entries of a manifest: ``data``, the file of the rows, and ``model``.
        about: the other fields of :class:`Metrics`, at least ``decoding``.
    """
    per_row = len(completions) // len(rows)
    samples = [
        Sample.of(rows[index // per_row], completion, index % per_row if per_row > 1 else None)
        for index, completion in enumerate(completions)
    ]
    model = EvaluatedModel(**{key: inputs["model"].get(key) for key in ("source", "kind", "digest")})
    figures = vars(measure(samples, rows, pass_at))
    return Result(Metrics(**figures, data=inputs["data"], model=model, **about), samples)


def _about(engine: Engine | OpenAI | None, options: EvalOptions, completions: Sequence[Completion]) -> dict[str, Any]:
    """The fields of :class:`Metrics` on how *engine*, or else a baseline, made *completions*."""
    if engine is None:  # of the decoding options only these two apply
        return {"decoding": DecodingSettings(samples=options.samples, seed=options.seed)}
    names = {field.name for field in fields(DecodingSettings)}
    used = {name: value for name, value in options.recorded.items() if name in names}
    about: dict[str, Any] = {"decoding": DecodingSettings(greedy=options.temperature == 0, **used)}
    about |= {"engine": engine.name, "precision": engine.precision, "path": engine.storage}
    if isinstance(engine, OpenAI):
        details = [completion.details for completion in completions]
        costs = [part["cost"] for part in details if "cost" in part]
        about["endpoint"] = engine.endpoint | {
            "refused": sum(part.get("reason") == "refused" for part in details),
            "prompt_tokens": sum(part["prompt_tokens"] for part in details),
            "completion_tokens": sum(completion.tokens or 0 for completion in completions),
            **({"cost": round(sum(costs), 6)} if costs else {}),
        }
    return about


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
