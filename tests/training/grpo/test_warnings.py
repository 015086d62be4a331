"""Warnings about a run that goes wrong, and none about a healthy one."""

import math
import random
from dataclasses import replace

import pytest

from benchmarks import tables
from countdown_rl.evaluation import training_log
from countdown_rl.evaluation.sample import Sample
from countdown_rl.inference.engine import Completion
from countdown_rl.tasks.registry import parse_row
from countdown_rl.training.grpo import warnings as diagnostics
from tests.support.runs import steps

PUZZLE = parse_row({"nums": [1, 2, 3], "target": 7})
SAMPLES = [
    Sample.of(PUZZLE, Completion(f"<answer>{text}</answer>", 5, True))
    for text in ("1 + 2 + 3", "2 + 3", "7")
]


def row(step, **changes):
    usual = {"correct": 0.4, "format": 1.0, "truncated": 0.1, "frac_reward_zero_std": 0.3}
    usual |= {"entropy": 0.4, "importance_sampling_ratio": None}
    (measured,) = steps(1, **usual | changes)
    return replace(measured, step=step, correct=changes.get("correct", 0.4))


def warnings(rows):
    return diagnostics.warnings(rows, SAMPLES)


def run(count, **changes):
    return [row(step, **changes) for step in range(1, count + 1)]


@pytest.mark.parametrize(
    "rows",
    [
        run(2, frac_reward_zero_std=1.0) + run(20),  # a mixed group in the first steps is a start
        run(3, format=0.0),  # answers are right without it
        run(20, entropy=None),
        run(2, importance_sampling_ratio=0.1),
        run(3, importance_sampling_ratio=0.51),
        run(3, importance_sampling_ratio=1.99),
        [*run(9, correct=0.0), row(10, correct=0.01)],
    ],
)
def test_a_healthy_run_has_no_warnings(rows):
    assert warnings(rows) == {}


def test_warnings_need_enough_steps():
    bad = {"entropy": 0.0, "correct": 0.0, "truncated": 1.0}
    assert warnings(run(9, **bad)) == {}
    assert set(warnings(run(10, **bad))) == {"entropy", "zero", "length"}


#: Kinds of puzzle: the share correct, and its gain per 100 steps.
KINDS = ((0.95, 0.03), (0.95, 0.03), (0.6, 0.3), (0.4, 0.2), (0.4, 0.2))


def logged(seed, count, rewarded_format=False, onset=math.inf):
    """A log of 16 puzzles of 8 completions a step; from *onset* on correct answers are lost within three steps."""
    rng = random.Random(seed)
    shift = rng.uniform(-0.05, 0.05)  # a stronger or weaker model
    rows = []
    for step in range(1, count + 1):
        kept = min(1.0, max(0.0, 1 - (step - onset) / 3))
        solved = []
        for start, gain in rng.choices(KINDS, k=16):
            mean = min(0.98, max(0.02, start + shift + gain * step / 100))
            # Most puzzles are solved always or never.
            share = kept * rng.betavariate(0.7 * mean, 0.7 * (1 - mean))
            solved.append(sum(rng.random() < share for _ in range(8)) / 8)
        correct = sum(solved) / len(solved)
        reward = 0.9 + rng.gauss(0, 0.03) if rewarded_format else correct
        rows.append(row(step, correct=correct, reward=reward))
    return rows


@pytest.mark.parametrize(
    ("rewarded_format", "name"), [(False, "collapse"), (True, "collapse of correctness")]
)
@pytest.mark.parametrize("seed", range(20))
def test_a_collapse_is_named_within_ten_steps(seed, rewarded_format, name):
    onset = 20 + 7 * seed % 60
    rows = logged(seed, onset + 10, rewarded_format, onset)
    named = [set(warnings(rows[:step])) for step in range(onset, onset + 11)]
    assert set.union(*named[:2]) == set()
    assert next(names for names in named if names) == {name}


@pytest.mark.parametrize("seed", range(20))
def test_a_healthy_run_raises_no_alarm(seed):
    rows = logged(100 + seed, 150)
    assert {name for step in range(1, 151) for name in warnings(rows[:step])} == set()


def test_the_run_of_the_pipeline_raises_no_alarm(tmp_path):
    (tmp_path / "log.csv").write_text(tables.committed("artifacts/train/log.csv"))
    rows = training_log.read(tmp_path / "log.csv")
    names = {name for step in range(1, len(rows) + 1) for name in warnings(rows[:step])}
    assert not [name for name in names if name.startswith(diagnostics.COLLAPSE)]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"correct": 0.0}, "countdown-rl sft"),
        ({"correct": 0.0, "format": 0.0}, "--style model_opens"),
        ({"correct": 1.0}, "harder data"),
        ({"correct": 0.5}, "--temperature"),
        ({"correct": 0.0, "format": 0.0, "truncated": 0.9}, "--max-completion-length"),
    ],
)
def test_a_run_that_cannot_learn_is_named_after_three_steps_with_its_cause(changes, word):
    first = run(3, **{"frac_reward_zero_std": 1.0} | changes)
    assert warnings(first[:2]) == {}
    assert word in warnings(first)["start"]


@pytest.mark.parametrize(("ratio", "words"), [(0.4, "top_p"), (2.1, "processed_logprobs")])
def test_a_mean_importance_ratio_far_from_1_is_a_warning(ratio, words):
    assert words in warnings(run(3, importance_sampling_ratio=ratio))["ratio"]
