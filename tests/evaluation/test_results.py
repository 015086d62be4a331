"""Result files: few flat figures for DVC, every figure beside them, and a reader that loads no engine."""

import json
import subprocess
import sys

from countdown_rl.core import artifacts
from countdown_rl.evaluation import results
from countdown_rl.evaluation.metrics import measure
from countdown_rl.tasks.registry import parse_row
from tests.support import evaluations

ROWS = [
    parse_row({"nums": [1] * (3 + n % 2), "target": 9, "needs": ("add-sub", "mul-div")[n // 2 % 2], "solutions": n})
    for n in range(6)
]
SAMPLES = [
    evaluations.sample(n < 4, row=ROWS[n], format=n < 5, strict_format=n < 5, truncated=n == 5, tokens=10 + n)
    for n in range(6)
]


def test_metrics_are_flat_few_and_rounded():
    flat = results.flat(measure(SAMPLES, ROWS))
    assert flat == {
        "n": 6,
        "accuracy": 0.667,
        "low": 0.3,
        "high": 0.903,
        "numbers_3": 0.667,
        "numbers_4": 0.667,
        "needs_add-sub": 0.5,
        "needs_mul-div": 1.0,
        "format": 0.833,
        "trunc": 0.167,
        "tokens": 12.5,
    }


def test_metrics_of_six_evaluations_fit_160_columns():
    flat = results.flat(measure(SAMPLES * 200, ROWS * 200))
    # `dvc metrics show` prints a column per figure after the paths, two spaces apart, with headers padded by two.
    width = len("artifacts/eval/quantized/metrics.json")
    assert width + sum(2 + max(len(name) + 2, len(str(value))) for name, value in flat.items()) <= 160


def test_a_written_result_is_read_back(tmp_path):
    metrics = evaluations.metrics(SAMPLES, ROWS)
    with artifacts.writing(tmp_path / "eval", "eval", options={}) as draft:
        results.write(draft.path, metrics, SAMPLES)
    read = results.read(tmp_path / "eval")
    assert read.metrics == metrics
    assert [sample.to_json() for sample in read.samples] == [sample.to_json() for sample in SAMPLES]
    assert json.loads((tmp_path / "eval" / "metrics.json").read_text()) == results.flat(metrics)


def test_reading_and_comparing_load_no_engine():
    code = (
        "import sys; from countdown_rl.evaluation import compare, results;"
        "sys.exit(any(name in sys.modules for name in ('torch', 'countdown_rl.inference', 'countdown_rl.models')))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
