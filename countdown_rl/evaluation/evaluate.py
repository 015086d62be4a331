"""Evaluation: completions of rows, each graded, and their figures, as an ``eval`` artifact.

A model, a server or a baseline completes the rows; :func:`judge` grades completions of any origin.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from countdown_rl.core import artifacts
from countdown_rl.core.errors import InputError, UsageError
from countdown_rl.evaluation import baselines, completions, results
from countdown_rl.evaluation.complete import OnBatch, complete, load_engine
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

OnText = Callable[[str], None]


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
    on_batch: OnBatch | None = None,
    on_warning: OnText = lambda _: None,
    on_note: OnText = lambda _: None,
) -> Result:
    """Evaluate *model* on the puzzles at *data* and write an ``eval`` artifact at *out*.

    Args:
        model: a model reference, ``random`` or ``solver`` for a baseline, or a server's name for it.
        data: a file of rows, or a data artifact, whose test split is used.
        overwrite: replace a finished evaluation at *out*. If False, the same one is returned, and another is an error.
        on_batch: called after every batch and within slow ones.
    """
    if options.samples > 1 and options.temperature == 0:
        raise UsageError("several completions per puzzle need a --temperature above 0; greedy ones are the same.")
    out, file = Path(out), jsonl.test_file(Path(data))
    artifacts.check_writable(out, "eval")
    rows: Sequence[Row] = jsonl.read_rows(file, on_note)
    if options.limit is not None and options.limit > len(rows):
        raise InputError(f"{file} has {len(rows)} rows, fewer than --limit {options.limit}.")
    rows = rows[: options.limit]
    if repeats := len(rows) - len({row.id for row in rows}):
        on_warning(
            f"{repeats:,} of the {len(rows):,} rows in {file} are repeats, which the intervals count as independent; "
            "remove them, and give --samples for several completions of a row."
        )
    baseline, server, engine = baselines.find(model, rows), None, None
    if baseline:
        entry: dict[str, Any] = {"source": model, "kind": baseline.kind}
    elif options.engine == "openai":
        server = OpenAI(model, options, concurrency=options.concurrency)
        entry = server.as_input()
    else:
        ref = reference.find_model(model, revision=revision, trust_remote_code=trust_remote_code, base_model=base_model)
        entry = ref.as_input()
    inputs = {"data": artifacts.file_input(file), "model": entry}
    unfinished = out.with_name(f".{out.name}.progress.jsonl")
    if _is_finished(out, options.recorded, inputs, overwrite, on_note):
        unfinished.unlink(missing_ok=True)  # if the run was killed between its last two steps
        return results.read(out)
    if baseline:
        texts = baselines.complete(baseline, rows, options.seed, options.samples)
    else:
        engine = server or load_engine(ref, options, on_warning)
        rows, texts = complete(engine, rows, options, inputs, unfinished, on_batch=on_batch)
    result = judge(rows, texts, inputs, options.pass_at_values, **_description(engine, options, texts))
    libraries = engine.libraries if engine else ()
    result = _save(result, out, options.recorded, inputs, options.pass_at_values, libraries)
    unfinished.unlink(missing_ok=True)
    return result


def evaluate_completions(
    file: Path,
    *,
    data: Path | None,
    out: Path,
    pass_at: Sequence[int] = (),
    overwrite: bool = True,
    on_note: OnText = lambda _: None,
) -> Result:
    """Evaluate the completions in *file*, made elsewhere, and write an ``eval`` artifact at *out*.

    Args:
        data: their rows, as for :func:`evaluate`; None if *file* has them.
        pass_at: values k of pass@k.
    """
    artifacts.check_writable(out, "eval")
    source = jsonl.test_file(data) if data else file
    inputs = {
        "data": artifacts.file_input(source),
        "completions": artifacts.file_input(file),
        "model": {"source": file.name, "kind": "completions"},
    }
    options = {"pass_at": list(pass_at)} if pass_at else {}
    if _is_finished(out, options, inputs, overwrite, on_note):
        return results.read(out)
    known = jsonl.read_rows(source) if data else None
    rows, texts = completions.read(file, known)
    if known and len(rows) < len(known):
        on_note(f"{file} has completions of {len(rows):,} of the {len(known):,} rows in {source}.")
    per_row = len(texts) // len(rows)
    if max(pass_at, default=1) > per_row:
        raise UsageError(f"pass@{max(pass_at)} needs that many completions of each row, and {file} has {per_row}.")
    result = judge(rows, texts, inputs, pass_at, decoding=DecodingSettings(samples=per_row))
    return _save(result, out, options, inputs, pass_at)


def judge(
    rows: Sequence[Row],
    texts: Sequence[Completion],
    inputs: Mapping[str, Any],
    pass_at: Sequence[int] = (),
    **description: Any,
) -> Result:
    """Grade *texts*, equally many completions of each of *rows*, those of a row side by side, and measure them.

    Args:
        inputs: entries of a manifest: ``data``, the file of the rows, and ``model``.
        description: the other fields of :class:`Metrics`, at least ``decoding``.
    """
    per_row = len(texts) // len(rows)
    samples = [
        Sample.of(rows[index // per_row], completion, index % per_row if per_row > 1 else None)
        for index, completion in enumerate(texts)
    ]
    model = EvaluatedModel(**{key: inputs["model"].get(key) for key in ("source", "kind", "digest")})
    figures = vars(measure(samples, rows, pass_at))
    return Result(Metrics(**figures, data=inputs["data"], model=model, **description), samples)


def _is_finished(
    out: Path, options: Mapping[str, Any], inputs: Mapping[str, Any], overwrite: bool, on_note: OnText
) -> bool:
    if not artifacts.finished(out, "eval", artifacts.identity(options, inputs), overwrite=overwrite):
        return False
    on_note(f"{out} is up to date (use --overwrite to rebuild).")
    return True


def _save(
    result: Result,
    out: Path,
    options: Mapping[str, Any],
    inputs: Mapping[str, Any],
    pass_at: Sequence[int],
    libraries: Sequence[str] = (),
) -> Result:
    with artifacts.writing(out, "eval", options=options, inputs=inputs, libraries=libraries) as writer:
        results.write(writer.path, result.metrics, result.samples, pass_at)
    return replace(result, manifest=artifacts.read(out, "eval", verify=False), path=out)


def _description(
    engine: Engine | OpenAI | None, options: EvalOptions, completions: Sequence[Completion]
) -> dict[str, Any]:
    """The fields of :class:`Metrics` on how *engine*, or a baseline without one, made *completions*."""
    if engine is None:
        return {"decoding": DecodingSettings(samples=options.samples, seed=options.seed)}
    names = {field.name for field in fields(DecodingSettings)}
    used = {name: value for name, value in options.recorded.items() if name in names}
    about: dict[str, Any] = {"decoding": DecodingSettings(greedy=options.temperature == 0, **used)}
    about |= {"engine": engine.name, "precision": engine.precision, "path": engine.storage}
    if isinstance(engine, OpenAI):
        details = [completion.details for completion in completions]
        about["endpoint"] = engine.endpoint | {
            "refused": sum(part.get("reason") == "refused" for part in details),
            "prompt_tokens": sum(part["prompt_tokens"] for part in details),
            "completion_tokens": sum(completion.tokens or 0 for completion in completions),
        }
        if any("cost" in part for part in details):
            about["endpoint"]["cost"] = round(sum(part.get("cost", 0) for part in details), 6)
    return about
