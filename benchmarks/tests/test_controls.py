"""Differences of arms over seeds, and the stored bits."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks import bench, controls
from countdown_rl.cli.main import app
from countdown_rl.evaluation import compare, results
from countdown_rl.tasks import jsonl


def evaluation(place, solved):
    """An evaluation at *place* of 4 puzzles with 4 completions each, solved as in *solved*."""
    rows = []
    for number, row in enumerate(solved, 2):
        answers = [f"{number} + 1" if correct else "1" for correct in row]
        completions = [f"</think>\n<answer>{answer}</answer>" for answer in answers]
        # Four numbers of which a sum of two is allowed to be the answer.
        rows.append(
            {"nums": [number, 1, 1, 1], "target": number + 1, "rule": "at-most-once"}
            | {"completion": completions}
        )
    jsonl.write_rows(place.with_suffix(".jsonl"), rows)
    words = ["eval", "--completions", str(place.with_suffix(".jsonl")), "--out", str(place)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output


def test_paired_intervals_can_be_computed_from_the_stored_bits(tmp_path, monkeypatch):
    rng = np.random.default_rng(1)
    (tmp_path / "eval").mkdir()
    places = [tmp_path / "eval" / name for name in ("positive-42", "grpo-42")]
    for place in places:
        evaluation(place, rng.random((30, 4)) < 0.6)
    monkeypatch.setattr(bench, "RESULTS", tmp_path)
    controls.arms(tmp_path, "arms")

    expected = compare.difference(*map(results.read, places))
    pair = controls.pairs("grpo", "positive", "arms")["42"]
    whole = expected["pass_at"]["4"]
    assert pair["pass@1"] == pytest.approx(
        [expected["difference"], *expected["interval"]], abs=1e-4
    )
    assert pair["pass@4"] == pytest.approx([whole["difference"], *whole["interval"]], abs=1e-4)
    saved = json.loads((tmp_path / "arms.json").read_text())["differences"]["grpo - positive"]
    assert saved["accuracy"]["mean"] == pytest.approx(expected["difference"])
    assert saved["accuracy"]["interval"] is None


def test_a_mean_over_seeds_has_the_t_interval_of_the_common_ones():
    first = {seed: {"accuracy": value} for seed, value in zip("abc", (0.9, 0.8, 0.7), strict=True)}
    second = {seed: {"accuracy": 0.5} for seed in "abd"}
    found = controls.difference(first, second, "accuracy")
    assert found["seeds"] == ["a", "b"]
    assert found["mean"] == pytest.approx(0.35)
    assert found["interval"] == pytest.approx([0.35 - 12.706 * 0.05, 0.35 + 12.706 * 0.05])
