"""What completions say about a model: every one graded, counted, and kept.

A run that is killed goes on from the batches it had finished, and ends with the same bytes.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from countdown_rl import artifacts
from countdown_rl.data import jsonl
from countdown_rl.errors import InputError, ModelError, UsageError
from countdown_rl.evaluation import baselines
from countdown_rl.evaluation.config import EvalOptions
from countdown_rl.evaluation.metrics import Sample, measure
from countdown_rl.evaluation.resume import Progress
from countdown_rl.inference import engines, generate
from countdown_rl.models import chat_template
from countdown_rl.models import load as models
from countdown_rl.models import reference as references
from countdown_rl.tasks import task

METRICS, SAMPLES = "metrics.json", "samples.jsonl"
#: Options that change how fast a result comes, and not what it is.
_SPEED = ("threads", "device")


@dataclass(frozen=True)
class Result:
    """A finished evaluation: its metrics, as in ``metrics.json``, and a sample a completion, in the order of the rows.

    ``note`` is what a person should know about how the model was held.
    """

    metrics: dict[str, Any]
    samples: list[Sample]
    note: str = ""


def evaluate(
    options: EvalOptions,
    *,
    model: str,
    data: Path,
    out: Path,
    revision: str | None = None,
    trust_remote_code: bool = False,
    on_batch: Callable[[int, int, int], None] | None = None,
) -> Result:
    """Put the puzzles at *data* to *model* and write an ``eval`` artifact at *out*.

    Args:
        model: a model reference, or ``random`` or ``solver`` for a floor and a ceiling.
        data: a JSONL file, or a data artifact, whose test split is used.
        on_batch: called with (done, all, solved so far): once with what an earlier run had finished, then
            after every batch.

    Raises:
        CountdownError: an input is missing, damaged or of the wrong kind, or *out* cannot be written;
            nothing was changed.
    """
    artifacts.check_writable(out, "eval")
    data = Path(data)
    if data.is_dir():
        artifacts.read(data, "data")
        data = data / "test.jsonl"
    rows = jsonl.read_rows(data)
    if options.limit is not None and options.limit > len(rows):
        raise InputError(f"{data} has {len(rows)} rows, fewer than --limit {options.limit}.")
    rows = rows[: options.limit]
    settings = {key: value for key, value in asdict(options).items() if key not in _SPEED}
    if model in baselines.KINDS:
        if revision is not None:
            raise UsageError(f"--revision is for models on the Hub, and {model} is not one; leave it out.")
        inputs = {"model": {"source": model, "kind": baselines.KINDS[model]}, "data": artifacts.file_input(data)}
        return _bound(model, rows, options, settings, inputs, out)
    ref = references.resolve(model, revision=revision)
    inputs = {"model": ref.as_input(), "data": artifacts.file_input(data)}

    models.quiet()
    import torch

    if options.threads or hasattr(os, "sched_getaffinity"):
        torch.set_num_threads(options.threads or len(os.sched_getaffinity(0)))
    name = engines.settle(options.engine, ref, precision=options.precision, device=options.device)
    decoding = generate.Decoding(options.max_new_tokens, options.temperature, options.top_p, options.seed)

    def load(name: str) -> engines.Engine:
        how = {key: getattr(options, key) for key in ("precision", "device", "threads")}
        return engines.load(name, ref, decoding, trust_remote_code=trust_remote_code, **how)

    engine = load(name)
    ids = _prompts(engine, rows, options)
    identity = {
        "options": settings,
        "inputs": inputs,
        "versions": artifacts.versions(engine.libraries),
        "held": [engine.name, engine.path, engine.precision, engine.device],
        "prompts": hashlib.sha256(json.dumps(ids).encode()).hexdigest(),
    }
    progress = Progress(Path(out).with_name(f".{Path(out).name}.progress.jsonl"), identity)
    samples = _samples(engine, rows, ids, options, progress, on_batch)
    metrics = measure(samples, rows) | {
        "decoding": {
            "greedy": options.temperature == 0,
            "temperature": options.temperature,
            "top_p": options.top_p,
            "samples": options.samples,
            "seed": options.seed,
            "max_new_tokens": options.max_new_tokens,
        },
        "data": inputs["data"],
        "model": {key: inputs["model"][key] for key in ("source", "kind", "digest")},
        "engine": engine.name,
        "precision": engine.precision,
        "path": engine.path,
    }
    facts: dict[str, Any] = {}
    if name != "transformers" and options.temperature == 0 and options.agreement:
        engine.close()
        reference, asked = load("transformers"), ids[: options.agreement]
        texts = [sample["completion"] for sample in samples[: len(asked)]]
        facts["agreement"] = engines.agreement(texts, reference, asked, rows[: len(asked)])
    _write(out, settings, inputs, engine.libraries, metrics, samples, facts)
    progress.clear()
    return Result(metrics, samples, engine.note)


def read(path: Path) -> Result:
    """The evaluation at *path*.

    Raises:
        ArtifactError: there is none, or it is damaged.
    """
    path = Path(path)
    artifacts.read(path, "eval")
    # Bytes, because a text's lines also end at characters that a model may have written.
    lines = (path / SAMPLES).read_bytes().splitlines()
    return Result(json.loads((path / METRICS).read_bytes()), [json.loads(line) for line in lines])


def _bound(
    name: str,
    rows: Sequence[Mapping[str, Any]],
    options: EvalOptions,
    settings: Mapping[str, Any],
    inputs: Mapping[str, Any],
    out: Path,
) -> Result:
    """The evaluation of a floor or a ceiling; of all that says how to decode, samples and seed count."""
    each = options.samples
    samples = [
        _sample(
            row,
            {"sample": turn} if each > 1 else {},
            generate.Completion(baselines.complete(name, row, f"{options.seed} {at} {turn}"), 0, True),
        )
        for at, row in enumerate(rows)
        for turn in range(each)
    ]
    metrics = measure(samples, rows) | {
        "decoding": {"samples": each, "seed": options.seed},
        "data": inputs["data"],
        "model": inputs["model"],
    }
    _write(out, settings, inputs, (), metrics, samples)
    return Result(metrics, samples)


def _write(
    out: Path,
    settings: Mapping[str, Any],
    inputs: Mapping[str, Any],
    libraries: Sequence[str],
    metrics: Mapping[str, Any],
    samples: Sequence[Sample],
    facts: Mapping[str, Any] | None = None,
) -> None:
    with artifacts.writing(out, "eval", options=settings, inputs=inputs, libraries=libraries) as draft:
        draft.facts.update(facts or {})
        (draft.path / METRICS).write_text(json.dumps(metrics, indent=2) + "\n")
        jsonl.write_rows(draft.path / SAMPLES, samples)


def _prompts(engine: engines.Engine, rows: Sequence[Mapping[str, Any]], options: EvalOptions) -> list[list[int]]:
    """The prompt of every row as token ids, with the engine made ready for them."""
    texts = [chat_template.render(engine.tokenizer, task.of_row(row).messages(row)) for row in rows]
    ids: list[list[int]] = engine.tokenizer(texts, add_special_tokens=False)["input_ids"]
    longest = max(map(len, ids))
    room = engine.prepare(longest + options.max_new_tokens)
    if room and longest + options.max_new_tokens > room:
        raise ModelError(
            f"the model reads {room} tokens, but the longest prompt ({longest}) and --max-new-tokens "
            f"({options.max_new_tokens}) need {longest + options.max_new_tokens}; give fewer."
        )
    return ids


def _samples(
    engine: engines.Engine,
    rows: Sequence[Mapping[str, Any]],
    ids: Sequence[list[int]],
    options: EvalOptions,
    progress: Progress,
    on_batch: Callable[[int, int, int], None] | None,
) -> list[Sample]:
    # Completion c is one of puzzle c // samples; those of one puzzle share a batch, where its prompt is read once.
    each = options.samples
    lengths = [len(one) for one in ids for _ in range(each)]

    def fits(length: int) -> int:
        return options.batch_size or engine.rows(length + options.max_new_tokens)

    batches = list(enumerate(generate.batches(lengths, fits)))
    samples: dict[int, Sample] = {}

    def take(batch: Sequence[int], completions: Sequence[generate.Completion]) -> None:
        for at, completion in zip(batch, completions, strict=True):
            turn = {"sample": at % each} if each > 1 else {}
            samples[at] = _sample(rows[at // each], turn, completion)

    def tell() -> None:
        if on_batch:
            on_batch(len(samples), len(lengths), sum(sample["correct"] for sample in samples.values()))

    for _, batch in batches:
        if (finished := progress.batch(batch)) is not None:
            take(batch, finished)
    tell()
    left = [(number, batch) for number, batch in batches if batch[0] not in samples]
    for number, batch in left:
        completions = engines.complete(engine, [ids[at // each] for at in batch], number)
        progress.add(batch, completions)
        take(batch, completions)
        tell()
    return [samples[at] for at in range(len(lengths))]


def _sample(row: Mapping[str, Any], turn: dict[str, int], completion: generate.Completion) -> Sample:
    grade = task.of_row(row).grade(completion.text, row)
    return (
        {key: row[key] for key in task.SHOWN if key in row}
        | turn
        | {"completion": completion.text}
        | asdict(grade)
        | {"tokens": completion.tokens, "truncated": not completion.ended}
    )
