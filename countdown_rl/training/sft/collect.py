"""Selection of demonstrations among the graded completions of evaluations."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from countdown_rl.core import artifacts
from countdown_rl.core.errors import InputError
from countdown_rl.core.formatting import plural
from countdown_rl.evaluation import results
from countdown_rl.evaluation.sample import Sample
from countdown_rl.tasks import jsonl
from countdown_rl.tasks.splits import held_out
from countdown_rl.training.options import CollectOptions

#: ``datasets`` and ``trl`` load the file of this name in a directory as its split "train", and no other.
FILE = "train.jsonl"


def collect(evaluations: Sequence[Path], options: CollectOptions, out: Path) -> dict[str, Any]:
    """Write a ``demonstrations`` artifact of the completions in *evaluations*, and return its facts.

    Its rows are correct completions, as ``sft`` reads them. Each completion of a puzzle is used once, and none of a
    puzzle in a test split. Raises InputError if none is left.
    """
    artifacts.check_writable(out, "demonstrations")
    evaluated = [results.read(path) for path in evaluations]
    samples = [sample for result in evaluated for sample in result.samples]
    correct = sum(sample.grade.correct for sample in samples)
    test = {identity for result in evaluated for identity in _test_puzzles(result)}
    by_prompt: dict[str, dict[str, Sample]] = {}
    for sample in samples:
        if sample.grade.correct and sample.row.identity not in test:
            known = by_prompt.setdefault(json.dumps(sample.row.messages()), {})
            known.setdefault(sample.completion, sample)
    if not by_prompt:
        raise InputError(
            f"no training row has a correct completion ({correct:,} of {plural(len(samples), 'completion')} are correct, "
            f"{plural(len(test), 'row')} of a test split left out); evaluate more --samples of each, or "
            "easier ones."
        )
    inputs = {
        f"eval-{n}" if n else "eval": result.manifest.as_input()
        for n, result in enumerate(evaluated)
    }
    rows: list[Sample] = []
    for known in by_prompt.values():
        rows += list(known.values())[: options.per_puzzle or None]
    with artifacts.writing(out, "demonstrations", options=asdict(options), inputs=inputs) as writer:
        writer.facts |= {
            "read": len(samples),
            "correct": correct,
            "kept": len(rows),
            "puzzles": len(by_prompt),
        }
        tokens = sum(map(_length, rows))
        writer.facts |= {"test_puzzles": len(test), "mean_tokens": tokens / len(rows)}
        written = [sample.row.kept | {"completion": sample.completion} for sample in rows]
        jsonl.write_rows(writer.path / FILE, written)
    return writer.facts


def _length(sample: Sample) -> int:
    """Tokens, or characters in a file of completions without tokens."""
    return len(sample.completion) if sample.tokens is None else sample.tokens


def _test_puzzles(result: results.Result) -> set[str]:
    """The identities of the puzzles of a test split: by their rows, or all if the file is that of data in the chain."""
    data = result.metrics.data
    files = [link.files.get("test.jsonl") for link in result.manifest.lineage]
    tests = [file["sha256"] for file in files if file]
    all_test = held_out(Path(data.get("file", "")).stem) == "test" or data["digest"] in tests
    return {
        sample.row.identity for sample in result.samples if all_test or sample.row.split == "test"
    }
