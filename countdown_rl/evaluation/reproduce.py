"""Check of a recorded evaluation: by its own samples, and by a second evaluation with the recorded settings."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path

from countdown_rl import artifacts
from countdown_rl.data import jsonl
from countdown_rl.errors import ArtifactError, UsageError
from countdown_rl.evaluation import results
from countdown_rl.evaluation.config import EvalOptions
from countdown_rl.evaluation.evaluate import OnBatch, evaluate, graded
from countdown_rl.evaluation.metrics import Sample, measure
from countdown_rl.evaluation.results import Result
from countdown_rl.inference.generate import STOP, Completion
from countdown_rl.models import chat_template
from countdown_rl.models import load as models
from countdown_rl.models import reference as references
from countdown_rl.tasks.task import Row

#: The rounding of another machine turns a greedy choice between tokens whose logits differ by less than this.
ROUNDING = 1.0


@dataclass(frozen=True)
class Reproduction:
    """A second evaluation beside the recorded one.

    Attributes:
        n: puzzles that were evaluated again; ``completions`` is the number of their completions.
        differing: places of the samples with other texts.
        accuracy, interval: recorded for these puzzles; ``accuracy_here`` is that of the second evaluation.
        engine: that of the second evaluation.
        faults: differences that rounding does not explain, as sentences.
    """

    n: int
    completions: int
    differing: list[int]
    accuracy: float
    interval: list[float]
    accuracy_here: float
    engine: str
    faults: list[str] = field(default_factory=list)


def faults(recorded: Result, rows: Sequence[Row]) -> Iterator[str]:
    """Yield what *recorded* has that does not follow from its completions and *rows*: samples and figures."""
    n = recorded.metrics["n"]
    if n > len(rows):
        yield f"{n} puzzles are recorded, and there are {len(rows)}"
        return
    per_row = len(recorded.samples) // n
    samples = [
        graded(
            rows[index // per_row],
            index % per_row,
            per_row,
            Completion(sample["completion"], sample.get("tokens", 0), not sample.get("truncated")),
        )
        for index, sample in enumerate(recorded.samples)
    ]
    wrong = [index for index, pair in enumerate(zip(samples, recorded.samples, strict=True)) if pair[0] != pair[1]]
    if wrong:
        first = samples[wrong[0]], recorded.samples[wrong[0]]
        keys = [key for key in {**first[0], **first[1]} if first[0].get(key) != first[1].get(key)]
        count = f"{len(wrong):,} of {len(samples):,} samples"
        yield f"{count} are not what their puzzles and texts give (line {wrong[0] + 1}: {', '.join(keys)})"
    figures = measure(samples, rows[:n])
    if different := [key for key, figure in figures.items() if recorded.metrics.get(key) != figure]:
        yield f"{results.DETAILS} has other figures than its samples ({', '.join(different)})"
    elif artifacts.read_json(recorded.path / results.METRICS) != results.flat(figures):
        yield f"{results.METRICS} has other figures than {results.DETAILS}"


def repeat(
    recorded: Result, model: str, data: Path, out: Path, *, limit: int | None = None, on_batch: OnBatch | None = None
) -> Reproduction:
    """Evaluate *model* on the puzzles at *data* as in *recorded*, writing to *out*, and compare the samples.

    Args:
        limit: the number of puzzles, from the first one; None is all that were recorded.

    Raises:
        CountdownError: as :func:`countdown_rl.evaluation.evaluate.evaluate`.
    """
    n = recorded.metrics["n"] if limit is None else min(limit, recorded.metrics["n"])
    try:
        options = replace(EvalOptions(**recorded.manifest.options), limit=n, engine="auto")
        if recorded.metrics.get("engine") == "transformers":
            options = replace(options, engine="transformers", precision=recorded.metrics["precision"])
    except (TypeError, UsageError) as error:
        raise ArtifactError(f"{recorded.path} was made with options that this version does not have: {error}") from None
    again = evaluate(options, model=model, data=data, out=out, on_batch=on_batch)
    samples = recorded.samples[: len(again.samples)]
    pairs = list(enumerate(zip(samples, again.samples, strict=True)))
    differing = [index for index, (old, new) in pairs if old["completion"] != new["completion"]]
    lengths = [index + 1 for index, (old, new) in pairs if old["completion"] == new["completion"] and old != new]
    rows = jsonl.read_rows(data)[:n]
    share = measure(samples, rows)
    reproduction = Reproduction(
        n, len(samples), differing, share["accuracy"], share["interval"], again.metrics["accuracy"],
        again.metrics["engine"],
    )  # fmt: skip
    low, high = reproduction.interval
    if recorded.metrics["decoding"] != again.metrics["decoding"]:
        reproduction.faults.append(f"{results.DETAILS} has other decoding settings than the manifest")
    if lengths:
        reproduction.faults.append(f"line {lengths[0]} of the samples has another length or ending than its text has")
    if not low <= reproduction.accuracy_here <= high:
        reproduction.faults.append(
            f"the accuracy is {reproduction.accuracy_here:.1%} here, outside of {low:.1%} to {high:.1%}"
        )
    elif differing and options.temperature == 0:
        unlikely = _unlikely(model, options, {index: samples[index] for index in differing}, rows)
        reproduction.faults.extend(unlikely)
    return reproduction


def _unlikely(model: str, options: EvalOptions, samples: dict[int, Sample], rows: Sequence[Row]) -> Iterator[str]:
    """Yield a sentence on the first of the greedy *samples*, if any, that rounding does not explain."""
    loaded = models.load(references.resolve(model), precision=options.precision, device=options.device)
    for index, sample in samples.items():
        gap = _gap(loaded, sample, rows[index // options.samples], options.max_new_tokens)
        if gap > ROUNDING:
            why = (
                "is not of its length" if gap == inf else f"has a token {gap:.1f} below the most likely one, in logits"
            )
            yield f"the text in line {index + 1} of the samples is none that these weights write: it {why}"
            return


def _gap(loaded: models.Loaded, sample: Sample, row: Row, max_new_tokens: int) -> float:
    """Return by how much the logit of any token of a completion is below the highest one at its place; ``inf`` if the
    completion has not the recorded number of tokens."""
    import torch

    from countdown_rl.inference.stop import Stop

    def encode(text: str) -> list[int]:
        ids: list[int] = loaded.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    prompt, ids = encode(chat_template.render(loaded.tokenizer, row.messages())), encode(sample["completion"])
    end_token = not sample["truncated"] and STOP not in sample["completion"]
    if len(ids) + end_token != (max_new_tokens if sample["truncated"] else sample["tokens"]):
        return inf
    with torch.inference_mode():
        input_ids = torch.tensor([prompt + ids], device=loaded.device)
        logits = loaded.model(input_ids=input_ids).logits[0, len(prompt) - 1 :].float().cpu()  # (T + 1, V)
    chosen = logits[range(len(ids)), ids]
    if end_token:
        ends = sorted(Stop(loaded.tokenizer, loaded.model, STOP).ids)
        chosen = torch.cat([chosen, logits[-1:, ends].amax(-1)])
    return float((logits[: len(chosen)].amax(-1) - chosen).max())
