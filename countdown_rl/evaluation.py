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

from countdown_rl import artifacts, bounds, dataset, generation, models, tasks
from countdown_rl.errors import InputError, ModelError, UsageError
from countdown_rl.measures import Sample, measure
from countdown_rl.options import EvalOptions
from countdown_rl.progress import Progress

METRICS, SAMPLES = "metrics.json", "samples.jsonl"
LIBRARIES = ("peft", "torch", "transformers")
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
    rows = dataset.read_rows(data)
    if options.n is not None and options.n > len(rows):
        raise InputError(f"{data} has {len(rows)} rows, fewer than --n {options.n}.")
    rows = rows[: options.n]
    settings = {key: value for key, value in asdict(options).items() if key not in _SPEED}
    if model in bounds.KINDS:
        if revision is not None:
            raise UsageError(f"--revision is for models on the Hub, and {model} is not one; leave it out.")
        inputs = {"model": {"source": model, "kind": bounds.KINDS[model]}, "data": artifacts.file_input(data)}
        return _bound(model, rows, options, settings, inputs, out)
    ref = models.resolve(model, revision=revision)
    inputs = {"model": ref.as_input(), "data": artifacts.file_input(data)}

    models.quiet()
    import torch

    if options.threads or hasattr(os, "sched_getaffinity"):
        torch.set_num_threads(options.threads or len(os.sched_getaffinity(0)))
    loaded = models.load(ref, precision=options.precision, device=options.device, trust_remote_code=trust_remote_code)
    ids = _prompts(loaded, rows, options)
    identity = {
        "options": settings,
        "inputs": inputs,
        "versions": artifacts.versions(LIBRARIES),
        "held": [loaded.path, loaded.precision, loaded.device],
        "prompts": hashlib.sha256(json.dumps(ids).encode()).hexdigest(),
    }
    progress = Progress(Path(out).with_name(f".{Path(out).name}.progress.jsonl"), identity)
    samples = _samples(loaded, rows, ids, options, progress, on_batch)
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
        "precision": loaded.precision,
        "path": loaded.path,
    }
    _write(out, settings, inputs, LIBRARIES, metrics, samples)
    progress.clear()
    return Result(metrics, samples, loaded.note)


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
            generation.Completion(bounds.complete(name, row, f"{options.seed} {at} {turn}"), 0, True),
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
) -> None:
    with artifacts.writing(out, "eval", options=settings, inputs=inputs, libraries=libraries) as draft:
        (draft.path / METRICS).write_text(json.dumps(metrics, indent=2) + "\n")
        dataset.write_rows(draft.path / SAMPLES, samples)


def _prompts(loaded: models.Loaded, rows: Sequence[Mapping[str, Any]], options: EvalOptions) -> list[list[int]]:
    """The prompt of every row as token ids."""
    texts = [models.render(loaded.tokenizer, tasks.of_row(row).messages(row)) for row in rows]
    ids: list[list[int]] = loaded.tokenizer(texts, add_special_tokens=False)["input_ids"]
    longest, room = max(map(len, ids)), generation.room(loaded)
    if room and longest + options.max_new_tokens > room:
        raise ModelError(
            f"the model reads {room} tokens, but the longest prompt ({longest}) and --max-new-tokens "
            f"({options.max_new_tokens}) need {longest + options.max_new_tokens}; give fewer."
        )
    return ids


def _samples(
    loaded: models.Loaded,
    rows: Sequence[Mapping[str, Any]],
    ids: Sequence[list[int]],
    options: EvalOptions,
    progress: Progress,
    on_batch: Callable[[int, int, int], None] | None,
) -> list[Sample]:
    # Completion c is one of puzzle c // samples; those of one puzzle share a batch, where its prompt is read once.
    each = options.samples
    lengths = [len(one) for one in ids for _ in range(each)]
    size = options.batch_size or generation.fitting(loaded, max(lengths) + options.max_new_tokens)
    batches = list(enumerate(generation.batches(lengths, size)))
    samples: dict[int, Sample] = {}

    def take(batch: Sequence[int], completions: Sequence[generation.Completion]) -> None:
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
    if left:
        decoding = generation.Decoding(options.max_new_tokens, options.temperature, options.top_p, options.seed)
        generator = generation.Generator(loaded, decoding)
    for number, batch in left:
        completions = generator.complete([ids[at // each] for at in batch], number)
        progress.add(batch, completions)
        take(batch, completions)
        tell()
    return [samples[at] for at in range(len(lengths))]


def _sample(row: Mapping[str, Any], turn: dict[str, int], completion: generation.Completion) -> Sample:
    grade = tasks.of_row(row).grade(completion.text, row)
    return (
        {key: row[key] for key in tasks.SHOWN if key in row}
        | turn
        | {"completion": completion.text}
        | asdict(grade)
        | {"tokens": completion.tokens, "truncated": not completion.ended}
    )
