"""Warnings about evaluations: each where it applies, and nowhere else."""

from dataclasses import replace

import pytest

from countdown_rl.core.manifest import Manifest
from countdown_rl.evaluation import caveats as module
from countdown_rl.evaluation.caveats import caveats, of_evaluation
from countdown_rl.evaluation.results import Result
from countdown_rl.evaluation.sample import Accuracy, Overlap
from countdown_rl.evaluation.statistics import wilson
from countdown_rl.tasks.registry import parse_row
from tests.support import evaluations

DATA = Manifest("data", {}, files={"test.jsonl": {"sha256": "d", "size": 9}})
ROWS = (parse_row({"nums": [number], "target": number}) for number in range(1, 100))
ROW = next(row for row in ROWS if row.split == "test")


def result(correct, n, *, truncated=0, kind="adapter", row=ROW, **fields):
    """An evaluation in which a model solves *correct* of *n* puzzles, *truncated* are cut off."""
    samples = []
    for index in range(n):
        sample = evaluations.sample(index < correct, row=row, truncated=index < truncated)
        samples.append(sample)
    about = {"source": "m", "kind": kind, "digest": f"{kind} {correct}"}
    metrics = replace(evaluations.metrics(samples, model=about), **fields)
    trained = kind == "adapter"
    inputs = {"data": DATA.as_input()} if trained else {}
    model = Manifest.of(kind, {}, inputs, facts={"method": "grpo"} if trained else {}).as_input()
    return Result(metrics, samples, manifest=Manifest.of("eval", {}, {"model": model}))


@pytest.mark.parametrize("n", [5, 20, 50, 80])
@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.8, 1])
def test_the_number_of_puzzles_that_is_named_makes_the_interval_narrow(n, share):
    correct = round(n * share)
    low, high = wilson(correct, n)
    sentences = caveats({"m": result(correct, n)})
    assert any("points wide" in sentence for sentence in sentences) == (high - low > module.WIDEST)
    for sentence in sentences:
        enough = int(sentence.split("; ")[1].split()[0].replace(",", ""))
        low, high = wilson(correct / n * enough, enough)
        assert high - low <= module.WIDEST
        assert enough > n


def test_nothing_is_said_of_enough_held_out_puzzles_and_of_baselines():
    assert caveats({"m": result(50, 200, truncated=10)}) == []
    floor = result(1, 3)
    model = replace(floor.metrics.model, kind="floor")
    floor = replace(floor, metrics=replace(floor.metrics, model=model))
    assert caveats({"random": floor}) == []


def test_truncated_completions_are_warned_of():
    (sentence,) = caveats({"m": result(50, 200, truncated=11)})
    assert "5.5% of the completions are truncated at 256 tokens; raise --max-new-tokens" in sentence
    several = {name: result(50, 200, truncated=n) for name, n in (("a", 11), ("b", 22), ("c", 0))}
    (sentence,) = [sentence for sentence in caveats(several) if "truncated" in sentence]
    assert sentence.startswith("a 5.5%, b 11.0% of the completions")
    hint, *others = of_evaluation(result(0, 200, truncated=150, format=0.0))
    assert "75% are truncated" in hint
    assert not others


def test_puzzles_of_training_are_counted_with_the_accuracy_on_the_others():
    others = Accuracy(accuracy=0.25, n=150, correct=40, interval=(0.2, 0.3))
    (sentence,) = caveats({"m": result(50, 200, overlap=Overlap(trained=50, others=others))})
    assert sentence.startswith("50 of 200 puzzles were trained on; on the other 150: 25.0% (")
    (sentence,) = caveats({"m": result(50, 200, overlap=Overlap(trained=200))})
    assert "test split" in sentence


def test_puzzles_without_a_solution_are_counted():
    (sentence,) = caveats({"m": result(50, 200, row={"nums": [1, 1], "target": 9})})
    assert sentence.startswith("200 of 200 puzzles have no solution")


def test_a_single_training_run_is_warned_of_and_several_are_not():
    start, run = result(50, 200, kind="hub"), result(90, 200)
    (sentence,) = caveats({"start": start, "GRPO": run})
    assert sentence.startswith("GRPO: single seed")
    assert caveats({"start": start, "GRPO": replace(run, runs=[run, run])}) == []
    assert caveats({"start": run, "again": run, "other": start}) == []
