"""Result files: few flat figures for DVC, every figure beside them, and a reader that loads no engine."""

import json
from pathlib import Path

import pytest

from countdown_rl.evaluation import results
from countdown_rl.evaluation.sample import Sample
from countdown_rl.inference.engine import Completion
from countdown_rl.tasks.registry import parse_row
from tests.support import evaluations
from tests.support.command import python
from tests.support.runs import files

#: Evaluations of 4 puzzles, written when samples and metrics were dictionaries.
BEFORE = Path(__file__).with_name("data")
SAMPLES = []
for n in range(6):
    row = {"nums": [1] * (3 + n % 2), "target": 9}
    row |= {"needs": ("add-sub", "mul-div")[n // 2 % 2], "solutions": n}
    form = {"format": n < 5, "strict_format": n < 5, "truncated": n == 5, "tokens": 10 + n}
    SAMPLES.append(evaluations.sample(n < 4, row=row, **form))


def test_metrics_are_flat_few_and_rounded():
    flat = results.flat(evaluations.metrics(SAMPLES))
    accuracies = {"numbers_3": 0.667, "numbers_4": 0.667}
    ends = {"n": 6, "accuracy": 0.667, "low": 0.3, "high": 0.903}
    assert flat == ends | accuracies | {"format": 0.833, "trunc": 0.167, "tokens": 12.5}


def test_reading_and_comparing_load_no_engine():
    python(
        "import sys; from countdown_rl.evaluation import compare, results;"
        "sys.exit(any(name in sys.modules for name in ('torch', 'countdown_rl.inference', 'countdown_rl.models')))"
    )


@pytest.mark.parametrize("name", ["sampled", "random"])
def test_an_evaluation_that_was_read_is_written_with_the_same_bytes(tmp_path, name):
    result = results.read(BEFORE / name)
    results.write(tmp_path, result.metrics, result.samples)
    before, after = files(BEFORE / name), files(tmp_path)
    assert after[results.SAMPLES] == before[results.SAMPLES]
    details = json.loads(before[results.DETAILS])
    assert after[results.DETAILS].decode() == json.dumps(details, indent=2) + "\n"
    gone = ("needs_", "pass@")
    flat = json.loads(before[results.METRICS])
    kept = {metric: flat[metric] for metric in flat if not metric.startswith(gone)}
    assert json.loads(after[results.METRICS]) == kept


def test_what_only_a_server_knows_is_kept_and_a_refusal_is_the_reason():
    row = parse_row({"nums": [1, 2], "target": 3})
    sample = Sample.of(row, Completion("no", 2, True, {"prompt_tokens": 9, "reason": "refused"}))
    assert (sample.grade.reason, sample.details) == ("refused", {"prompt_tokens": 9})
    assert Sample.from_json(sample.to_json()).to_json() == sample.to_json()
