"""What completions say about a model: every one graded, counted, and kept.

A run that is killed goes on from the batches it had finished, and ends with the same bytes.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from countdown_rl import artifacts, dataset, generation, models, tasks
from countdown_rl.errors import InputError
from countdown_rl.options import EvalOptions
from countdown_rl.statistics import wilson

METRICS, SAMPLES = "metrics.json", "samples.jsonl"
LIBRARIES = ("peft", "torch", "transformers")
#: Options that change how fast a result comes, and not what it is.
_SPEED = ("threads", "device")

Sample = dict[str, Any]


@dataclass(frozen=True)
class Result:
    """A finished evaluation: its metrics, as in ``metrics.json``, and one sample a completion, in row order."""

    metrics: dict[str, Any]
    samples: list[Sample]


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
        data: a JSONL file, or a data artifact, whose test split is used.
        on_batch: called with (done, all, solved so far).

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
    ref = models.resolve(model, revision=revision)
    inputs = {"model": ref.as_input(), "data": artifacts.file_input(data)}
    settings = {key: value for key, value in asdict(options).items() if key not in _SPEED}

    models.quiet()
    import torch

    torch.set_num_threads(options.threads or len(os.sched_getaffinity(0)))
    loaded = models.load(ref, precision=options.precision, device=options.device, trust_remote_code=trust_remote_code)
    identity = {"options": settings, "inputs": inputs, "versions": artifacts.versions(LIBRARIES), "path": loaded.path}
    progress = _Progress(Path(out), identity)
    samples = _samples(loaded, rows, options, progress, on_batch)
    metrics = measure(samples, rows) | {
        "decoding": {
            "greedy": options.temperature == 0,
            "temperature": options.temperature,
            "top_p": options.top_p,
            "seed": options.seed,
            "max_new_tokens": options.max_new_tokens,
        },
        "data": inputs["data"],
        "model": {key: inputs["model"][key] for key in ("source", "kind", "digest")},
        "precision": loaded.precision,
        "path": loaded.path,
    }
    with artifacts.writing(out, "eval", options=settings, inputs=inputs, libraries=LIBRARIES) as draft:
        (draft.path / METRICS).write_text(json.dumps(metrics, indent=2) + "\n")
        dataset.write_rows(draft.path / SAMPLES, samples)
    progress.clear()
    return Result(metrics, samples)


def read(path: Path) -> Result:
    """The evaluation at *path*.

    Raises:
        ArtifactError: there is none, or it is damaged.
    """
    path = Path(path)
    artifacts.read(path, "eval")
    lines = (path / SAMPLES).read_text().splitlines()
    return Result(json.loads((path / METRICS).read_text()), [json.loads(line) for line in lines])


def measure(samples: Sequence[Sample], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Shares with 95% Wilson intervals: over all, by count of numbers, by the operators that are needed."""
    n = len(samples)

    def group(key: Callable[[Sample, Mapping[str, Any]], Any]) -> dict[str, Any]:
        members: dict[str, list[Sample]] = {}
        for sample, row in zip(samples, rows, strict=True):
            name = key(sample, row)
            if name is not None:
                members.setdefault(str(name), []).append(sample)
        return {name: _share(members[name]) for name in sorted(members)}

    reasons = Counter(sample["reason"] for sample in samples if sample["reason"])
    return {
        **_share(samples),
        "by_size": group(lambda _, row: len(row["nums"]) if "nums" in row else None),
        "by_needs": group(lambda _, row: row.get("needs")),
        "format": _mean(samples, "format"),
        "strict_format": _mean(samples, "strict_format"),
        "truncated": _mean(samples, "truncated"),
        "mean_tokens": round(sum(sample["tokens"] for sample in samples) / n, 2),
        "reasons": dict(sorted(reasons.items(), key=lambda item: (-item[1], item[0]))),
        "task": tasks.of_row(rows[0]).name,
        "rules": sorted({row.get("rule") or "exactly-once" for row in rows if "nums" in row}),
    }


def _share(samples: Sequence[Sample]) -> dict[str, Any]:
    correct = sum(sample["correct"] for sample in samples)
    low, high = wilson(correct, len(samples))
    return {
        "accuracy": round(correct / len(samples), 6),
        "n": len(samples),
        "correct": correct,
        "interval": [round(low, 6), round(high, 6)],
    }


def _mean(samples: Sequence[Sample], key: str) -> float:
    return round(sum(sample[key] for sample in samples) / len(samples), 6)


def _samples(
    loaded: models.Loaded,
    rows: Sequence[Mapping[str, Any]],
    options: EvalOptions,
    progress: "_Progress",
    on_batch: Callable[[int, int, int], None] | None,
) -> list[Sample]:
    prompts = [models.render(loaded.tokenizer, tasks.of_row(row).messages(row)) for row in rows]
    ids = loaded.tokenizer(prompts, add_special_tokens=False)["input_ids"]
    longest = max(map(len, ids)) + options.max_new_tokens
    size = options.batch_size or generation.fitting(loaded, longest)
    generator = generation.Generator(
        loaded,
        generation.Decoding(options.max_new_tokens, options.temperature, options.top_p, options.seed),
    )
    samples: dict[int, Sample] = {}
    for number, batch in enumerate(generation.batches([len(one) for one in ids], size)):
        done = progress.batch(number)
        if done is None:
            completions = generator.complete([ids[row] for row in batch], number)
            done = [_sample(rows[row], one) for row, one in zip(batch, completions, strict=True)]
            progress.add(number, done)
        samples |= dict(zip(batch, done, strict=True))
        if on_batch:
            on_batch(len(samples), len(rows), sum(sample["correct"] for sample in samples.values()))
    return [samples[row] for row in range(len(rows))]


def _sample(row: Mapping[str, Any], completion: generation.Completion) -> Sample:
    grade = tasks.of_row(row).grade(completion.text, row)
    shown = ("id", "nums", "target", "needs", "question", "gold")
    return (
        {key: row[key] for key in shown if key in row}
        | {"completion": completion.text}
        | asdict(grade)
        | {"tokens": completion.tokens, "truncated": not completion.ended}
    )


class _Progress:
    """The finished batches of an evaluation that is not finished, beside where its artifact will be."""

    def __init__(self, out: Path, identity: Mapping[str, Any]) -> None:
        self._path = out.with_name(f".{out.name}.progress.jsonl")
        self._head = json.dumps(identity, sort_keys=True)
        self._batches = self._read()

    def batch(self, number: int) -> list[Sample] | None:
        return self._batches.get(number)

    def add(self, number: int, samples: Sequence[Sample]) -> None:
        with self._path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps([number, samples], ensure_ascii=False) + "\n")

    def clear(self) -> None:
        self._path.unlink(missing_ok=True)

    def _read(self) -> dict[int, list[Sample]]:
        whole: dict[int, list[Sample]] = {}
        kept = []
        if self._path.is_file():
            lines = self._path.read_text(encoding="utf-8").split("\n")
            if lines[0] == self._head:
                for line in lines[1:-1]:  # the last one is empty, or was cut off in the middle
                    number, samples = json.loads(line)
                    whole[number] = samples
                    kept.append(line)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text("\n".join([self._head, *kept, ""]), encoding="utf-8")
        return whole
