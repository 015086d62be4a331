"""Causes of lost points: faults in the completions of an evaluation, with the points that each of them costs."""

from collections import Counter
from typing import Any

from countdown_rl import artifacts
from countdown_rl.errors import InputError
from countdown_rl.evaluation.results import Result, is_baseline
from countdown_rl.tasks import reading
from countdown_rl.tasks.reading import Reader
from countdown_rl.tasks.registry import parse_row, task_of
from countdown_rl.tasks.task import resolve


def diagnose(result: Result) -> dict[str, Any]:
    """The :func:`causes` and :func:`shapes` of *result*, and ``solved_within`` where its task has a reader for it.

    Raises:
        InputError: it is of a baseline.
    """
    if is_baseline(result.metrics):
        raise InputError(f"{result.metrics['model']['source']} is a baseline, which has no faults; give a model.")
    reader = _reader(result)
    samples = [(sample, parse_row(sample)) for sample in result.samples]
    solved = {"solved_within": reader.solved_within(samples)} if reader else {}
    return {**causes(result), "shapes": shapes(result), **solved}


def _reader(result: Result) -> Reader | None:
    """The reader of the language that the evaluated model was trained on, where its task has one."""
    hook = task_of(result.samples[0]).reader
    facts = [link.facts for link in artifacts.chain(result.manifest.inputs["model"])]
    return resolve(hook)(facts) if hook else None


def causes(result: Result) -> dict[str, Any]:
    """The causes of the points that *result* lost, the largest first.

    Returns:
        ``lost``, the share of wrong completions; ``causes``, each with the completions that have the fault, its
        occurrences, and the ``points``: the gain in accuracy if the fault never happened, found by executing each
        wrong completion again with that fault repaired, within the same number of characters per token (an upper
        bound where ``at_most``); ``unexplained``, the share of completions that no single repair makes correct;
        ``steps``, by operator, written and wrong.
    """
    budget, reader = result.metrics["decoding"]["max_new_tokens"], _reader(result)
    occurrences, completions, won, steps = (Counter[str]() for _ in range(4))
    unexplained, free_text = 0, False
    for sample in result.samples:
        row = parse_row(sample)
        trace = reader.read(sample, row) if reader else None
        text = trace or reading.read_text(sample, row)
        free_text = free_text or trace is None
        occurrences.update(text.faults)
        steps.update(text.steps)
        faults = [fault for fault, count in text.faults.items() if count]
        completions.update(faults)
        if not sample["correct"]:
            characters = budget * len(sample["completion"]) / max(1, sample["tokens"])
            repairs = [fault for fault in faults if text.repaired(fault, characters)]
            won.update(repairs)
            unexplained += not repairs
    n = len(result.samples)
    rows = [
        {
            "cause": fault,
            "points": round(won[fault] / n, 6),
            "completions": completions[fault],
            "occurrences": occurrences[fault],
            "at_most": free_text and fault == reading.LIMIT,
        }
        for fault in completions
    ]
    return {
        "lost": round(1 - sum(sample["correct"] for sample in result.samples) / n, 6),
        "causes": sorted(rows, key=lambda row: (-row["points"], row["cause"] == reading.LIMIT, row["cause"])),
        "unexplained": round(unexplained / n, 6),
        "steps": {
            operator: {"written": count, "wrong": occurrences[reading.wrong_step(operator)]}
            for operator, count in sorted(steps.items())
        },
    }


def shapes(result: Result) -> list[dict[str, Any]]:
    """Accuracy by the form of a right answer, the largest loss of points first."""
    groups: dict[str, list[bool]] = {}
    for sample in result.samples:
        if shape := parse_row(sample).shape:
            groups.setdefault(shape, []).append(sample["correct"])
    rows = [
        {
            "shape": name,
            "n": len(right),
            "accuracy": round(sum(right) / len(right), 6),
            "points": round(right.count(False) / len(result.samples), 6),
        }
        for name, right in groups.items()
    ]
    return sorted(rows, key=lambda row: (-float(row["points"]), str(row["shape"])))
