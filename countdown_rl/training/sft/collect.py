"""Selection of demonstrations among the graded completions of evaluations."""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path

from countdown_rl.core import artifacts
from countdown_rl.core.errors import InputError
from countdown_rl.core.formatting import plural
from countdown_rl.core.types import JsonObject
from countdown_rl.evaluation import results
from countdown_rl.evaluation.sample import Sample
from countdown_rl.tasks import jsonl
from countdown_rl.tasks.splits import held_out
from countdown_rl.training.options import CollectOptions

#: ``datasets`` and ``trl`` load this file of a directory as its split "train", and no other.
FILE = "train.jsonl"


def collect(evaluations: Sequence[Path], options: CollectOptions, out: Path) -> JsonObject:
    """Write a ``demonstrations`` artifact of correct completions, as ``sft`` reads them.

    Each completion of a puzzle is used once, and none of a puzzle in a test split.

    Args:
        evaluations: directories of ``eval`` artifacts.
        options: how many completions of a puzzle are used.
        out: directory to write.

    Returns:
        The facts of the artifact.

    Raises:
        InputError: no completion is left.
    """
    artifacts.check_writable(out, "demonstrations")
    evaluated = [results.read(path) for path in evaluations]
    samples = list(chain.from_iterable(result.samples for result in evaluated))
    correct = [sample for sample in samples if sample.grade.correct]
    test = set().union(*map(_test_puzzles, evaluated))
    by_prompt: dict[str, dict[str, Sample]] = defaultdict(dict)
    for sample in correct:
        if sample.row.identity not in test:
            completions = by_prompt[json.dumps(sample.row.messages())]
            completions.setdefault(sample.completion, sample)
    if not by_prompt:
        raise InputError(
            f"no training row has a correct completion ({len(correct):,} of "
            f"{plural(len(samples), 'completion')} are correct, {plural(len(test), 'row')} of a "
            "test split left out); evaluate more --samples of each, or easier ones."
        )
    inputs = {
        f"eval-{index}" if index else "eval": result.manifest.as_input()
        for index, result in enumerate(evaluated)
    }
    selected: list[Sample] = []
    for completions in by_prompt.values():
        selected += list(completions.values())[: options.per_puzzle or None]
    with artifacts.writing(out, "demonstrations", options=asdict(options), inputs=inputs) as writer:
        writer.facts |= {
            "read": len(samples),
            "correct": len(correct),
            "kept": len(selected),
            "puzzles": len(by_prompt),
            "test_puzzles": len(test),
            "mean_tokens": sum(map(_length, selected)) / len(selected),
        }
        rows = [sample.row.kept | {"completion": sample.completion} for sample in selected]
        jsonl.write_rows(writer.path / FILE, rows)
    return writer.facts


def _length(sample: Sample) -> int:
    """Tokens, or characters in a file of completions without tokens."""
    return len(sample.completion) if sample.tokens is None else sample.tokens


def _test_puzzles(result: results.Result) -> set[str]:
    """The identities of the puzzles of a test split, by their rows or by the file.

    All are, if the file has the name of a test split or is that of data in the chain.
    """
    data = result.metrics.data
    files = [link.files.get("test.jsonl") for link in result.manifest.lineage]
    tests = [file["sha256"] for file in files if file]
    all_test = held_out(Path(data.get("file", "")).stem) == "test" or data["digest"] in tests
    rows = [sample.row for sample in result.samples]
    return {row.identity for row in rows if all_test or row.split == "test"}
