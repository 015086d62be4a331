"""Evaluation: a completion for every puzzle, each graded, and the figures that they give.

An interrupted run resumes after its last finished batch and ends with the same bytes.
"""

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from countdown_rl.core import artifacts, processes
from countdown_rl.core.errors import InputError, UsageError
from countdown_rl.evaluation import baselines, results
from countdown_rl.evaluation.config import EvalOptions
from countdown_rl.evaluation.metrics import measure
from countdown_rl.evaluation.results import Result
from countdown_rl.evaluation.resume import Progress
from countdown_rl.evaluation.sample import DecodingSettings, EvaluatedModel, Metrics, Sample
from countdown_rl.inference import engines, generate
from countdown_rl.inference.engines import Engine
from countdown_rl.inference.generate import Completion, Decoding
from countdown_rl.inference.openai import OpenAI
from countdown_rl.models import chat_template, load, reference, shape
from countdown_rl.models.reference import ModelRef
from countdown_rl.tasks import jsonl
from countdown_rl.tasks.task import Baseline, Row

#: Options that change how fast a result comes, and not its bytes; a server's URL is recorded with its model.
_SPEED = ("threads", "device", "tensor_parallel", "base_url", "concurrency", "timeout")

#: Options that are recorded where they are given, so that an evaluation without them keeps its bytes.
_OPTIONAL = ("top_k", "min_p", "pass_at")

#: Seconds of a batch after which its tokens are counted.
SLOW = 5

#: Called with the numbers of finished and of all completions, and in a slow batch with its progress in words. The share
#: solved so far would mislead: batches of long prompts, which are harder puzzles, come first.
OnBatch = Callable[..., None]


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
        on_warning: called with a warning about this machine or the model.
        on_note: called with remarks on *data*.
    """
    artifacts.check_writable(out, "eval")
    file = jsonl.test_file(Path(data))
    rows = jsonl.read_rows(file, on_note)
    if options.limit is not None and options.limit > len(rows):
        raise InputError(f"{file} has {len(rows)} rows, fewer than --limit {options.limit}.")
    rows = rows[: options.limit]
    if repeats := len(rows) - len({row.id for row in rows}):
        on_warning(
            f"{repeats:,} of the {len(rows):,} rows in {file} repeat others, and intervals take them for independent; "
            "remove them, and give --samples for several completions of a row."
        )
    inputs: dict[str, Any] = {"data": artifacts.file_input(file)}
    rank, world = process
    served = options.engine == "openai"
    baseline = baselines.find(model, rows)
    if (baseline or served) and (revision is not None or base_model is not None or world > 1):
        option = f"--model {model}" if baseline else "--engine openai"
        raise UsageError(f"{option} takes no --revision, no --base-model and no launcher; leave them out.")
    source: ModelRef | OpenAI
    if baseline:
        inputs["model"] = {"source": model, "kind": baseline.kind}
    else:
        if served:
            source = OpenAI(model, options, concurrency=options.concurrency)
        else:
            source = reference.resolve(
                model, revision=revision, trust_remote_code=trust_remote_code, base_model=base_model
            )
        inputs["model"] = source.as_input()
    suffix = f"-{rank}-of-{world}" if world > 1 else ""
    unfinished = Path(out).with_name(f".{Path(out).name}{suffix}.progress.jsonl")
    if artifacts.finished(out, "eval", artifacts.identity(_settings(options), inputs), overwrite=overwrite):
        unfinished.unlink(missing_ok=True)  # the run was killed between its last two steps
        on_finished()
        return results.read(out)
    if baseline:
        return _evaluate_baseline(baseline, rows, options, inputs, out)

    engine: Engine | OpenAI
    if isinstance(source, OpenAI):
        engine = source
        rows = [engine.row(row) for row in rows]
        prompts: Sequence[Any] = [engine.prompt(row) for row in rows]
    else:
        engine = _engine(source, options, world, on_warning)
        if note := chat_template.note(engine.tokenizer):
            on_warning(note)
        prompts = _prompts(engine, rows, options.max_new_tokens)
    progress = Progress(unfinished, _identity(engine, prompts, options, inputs))
    samples = complete_and_grade(engine, rows, prompts, options, on_batch, progress=progress, process=process)
    settings = _settings(options)
    decoding = {field.name: settings[field.name] for field in fields(DecodingSettings) if field.name in settings}
    about: dict[str, Any] = {"engine": engine.name, "precision": engine.precision, "path": engine.storage}
    if isinstance(engine, OpenAI):
        about["endpoint"] = engine.endpoint | _requests(samples)
    sampling = DecodingSettings(greedy=options.temperature == 0, **decoding)
    result = Result(_metrics(samples, rows, options, inputs, sampling, **about), samples)
    if rank == 0:
        result = _written(out, options, inputs, result, libraries=engine.libraries)
    if world > 1:
        _disconnect()
    progress.clear()
    return result


def _engine(ref: ModelRef, options: EvalOptions, world: int, on_warning: Callable[[str], None]) -> Engine:
    """Load the model *ref* on this machine."""
    if options.device == "auto" and (warning := load.unused_gpu()):
        on_warning(warning)
    import torch

    torch.set_num_threads(options.threads or processes.cpu_threads())
    choice = "transformers" if world > 1 and options.engine == "auto" else options.engine
    name = engines.resolve(choice, ref, precision=options.precision, device=options.device)
    if world > 1:
        _connect(name, options.device)
    machine = {key: getattr(options, key) for key in ("precision", "device", "tensor_parallel")}
    return engines.load_engine(name, ref, Decoding.of(options), **machine)


def _evaluate_baseline(
    baseline: Baseline, rows: Sequence[Row], options: EvalOptions, inputs: Mapping[str, Any], out: Path
) -> Result:
    """Evaluate a baseline. Of the decoding options only ``samples`` and ``seed`` apply."""
    several = options.samples > 1
    samples = [
        Sample.of(row, baselines.complete(baseline, row, f"{options.seed} {index} {turn}"), turn if several else None)
        for index, row in enumerate(rows)
        for turn in range(options.samples)
    ]
    decoding = DecodingSettings(samples=options.samples, seed=options.seed)
    return _written(out, options, inputs, Result(_metrics(samples, rows, options, inputs, decoding), samples))


def _connect(engine: str, device: str) -> None:
    """Connect the processes of a launcher."""
    if engine == "vllm":
        raise UsageError("vLLM shares a model among GPUs by --tensor-parallel; leave the launcher out.")
    from accelerate import PartialState

    one_day = timedelta(days=1)  # a process may finish long before another
    PartialState(cpu=load.device_name(device) == "cpu", timeout=one_day)


def _gathered(samples: Mapping[int, Sample]) -> dict[int, Sample]:
    """The *samples* of all processes."""
    from accelerate.utils import gather_object

    return {index: sample for part in gather_object([samples]) for index, sample in part.items()}


def _disconnect() -> None:
    """Wait for the other processes, then leave."""
    from accelerate import PartialState

    PartialState().wait_for_everyone()
    PartialState().destroy_process_group()


def _metrics(
    samples: Sequence[Sample],
    rows: Sequence[Row],
    options: EvalOptions,
    inputs: Mapping[str, Any],
    decoding: DecodingSettings,
    **about: Any,
) -> Metrics:
    figures, model = measure(samples, rows, options.pass_at_values), inputs["model"]
    named = EvaluatedModel(source=model["source"], kind=model["kind"], digest=model.get("digest"))
    return Metrics(**vars(figures), decoding=decoding, data=inputs["data"], model=named, **about)


def _requests(samples: Sequence[Sample]) -> dict[str, Any]:
    """Refusals, tokens and the cost of a server that made *samples*."""
    costs = [sample.details["cost"] for sample in samples if "cost" in sample.details]
    return {
        "refused": sum(sample.grade.reason == "refused" for sample in samples),
        "prompt_tokens": sum(sample.details["prompt_tokens"] for sample in samples),
        "completion_tokens": sum(sample.tokens for sample in samples),
        **({"cost": round(sum(costs), 6)} if costs else {}),
    }


def _settings(options: EvalOptions) -> dict[str, Any]:
    left_out = {*_SPEED, *(name for name in _OPTIONAL if not getattr(options, name))}
    return {key: value for key, value in asdict(options).items() if key not in left_out}


def _identity(
    engine: Engine | OpenAI, prompts: Sequence[Any], options: EvalOptions, inputs: Mapping[str, Any]
) -> dict[str, Any]:
    """Everything that decides the completions; a run resumes the batches of this identity only."""
    return artifacts.identity(
        _settings(options),
        inputs,
        versions=artifacts.versions(engine.libraries),
        engine=[engine.name, engine.storage, engine.precision, engine.device],
        prompts=hashlib.sha256(json.dumps(prompts).encode()).hexdigest(),
    )


def _written(
    out: Path, options: EvalOptions, inputs: Mapping[str, Any], result: Result, *, libraries: Sequence[str] = ()
) -> Result:
    """Write *result* to *out*, and return it with its manifest."""
    with artifacts.writing(out, "eval", options=_settings(options), inputs=inputs, libraries=libraries) as draft:
        results.write(draft.path, result.metrics, result.samples, options.pass_at_values)
    return replace(result, manifest=artifacts.read(out, "eval", verify=False), path=out)


def _prompts(engine: Engine, rows: Sequence[Row], max_new_tokens: int) -> list[list[int]]:
    """The token ids of every row's prompt; prepares the engine for their length."""
    prompts = chat_template.encode(engine.tokenizer, (row.messages() for row in rows))
    longest = max(map(len, prompts))
    context_length = engine.prepare(longest + max_new_tokens)
    shape.check_context(context_length, longest, max_new_tokens, "--max-new-tokens")
    return prompts


def complete_and_grade(
    engine: Engine | OpenAI,
    rows: Sequence[Row],
    prompts: Sequence[Any],
    options: EvalOptions,
    on_batch: OnBatch | None,
    *,
    progress: Progress | None = None,
    process: tuple[int, int] = (0, 1),
) -> list[Sample]:
    """Complete every prompt ``options.samples`` times, in batches of similar length, and grade the completions.

    The batches and their random numbers are the same for any number of processes.
    """
    # Completion i is of row i // samples; those of one row share a batch, where its prompt is read once.
    per_row = options.samples
    lengths = [len(prompt) for prompt in prompts for _ in range(per_row)]
    samples: dict[int, Sample] = {}
    reported = 0.0

    def batch_size(length: int) -> int:
        return options.batch_size or engine.max_rows(length, options.max_new_tokens)

    def add(batch: Sequence[int], completions: Sequence[Completion]) -> None:
        for index, completion in zip(batch, completions, strict=True):
            row, prompt = rows[index // per_row], prompts[index // per_row]
            if engine.tokenizer is not None:
                completion = completion.after(row, engine.tokenizer.decode(prompt, skip_special_tokens=False))
            samples[index] = Sample.of(row, completion, index % per_row if per_row > 1 else None)

    rank, world = process
    share = [batch for batch in enumerate(generate.batches(lengths, batch_size)) if batch[0] % world == rank]
    total = sum(len(batch) for _, batch in share)

    def report(*within: str) -> None:
        nonlocal reported
        reported = time.monotonic()
        if on_batch:
            on_batch(len(samples), total, *within)

    def on_step(tokens: Sequence[int]) -> None:
        if time.monotonic() - reported >= SLOW:
            report(f"token {len(tokens):,} of up to {options.max_new_tokens:,} in this batch")

    remaining = []
    for number, batch in share:
        if progress and (completions := progress.batch(batch)) is not None:
            add(batch, completions)
        else:
            remaining.append((number, batch))
    report()
    batches = [(number, [prompts[index // per_row] for index in batch]) for number, batch in remaining]
    if isinstance(engine, generate.Generator):
        engine.on_step = on_step
    if isinstance(engine, OpenAI):  # several at once, in the order in which they end
        completed = engine.complete_all(batches, report)
    else:
        completed = ((i, engines.complete(engine, inputs, number)) for i, (number, inputs) in enumerate(batches))
    for position, completions in completed:
        batch = remaining[position][1]
        if progress:
            progress.add(batch, completions)
        add(batch, completions)
        report()
    if world > 1:
        samples = _gathered(samples)
    return [samples[index] for index in range(len(lengths))]
