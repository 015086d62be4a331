"""What imitation can reach, exact, against simulated searches."""

import random

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks import checking, controls
from countdown_rl import generate
from countdown_rl.cli.main import app
from countdown_rl.models import reference
from countdown_rl.tasks import jsonl
from stages.recipes.tiny import traces

PLAN = traces.plan_of(reference.find_model("countdown-tiny").manifest.facts)
ROWS = list(generate(40, sizes=(4,), seed=3))


def count(texts):
    """Tokens of *texts*, of one character each."""
    return [len(text) for text in texts]


@pytest.mark.parametrize(
    ("searches", "chances", "written"),
    [
        (controls.searches, controls.uniform, {}),
        (checking.searches, lambda puzzle: checking.chances(puzzle, 0.5), {"checks": 0.5}),
        (checking.searches, lambda puzzle: checking.chances(puzzle, 0.2), {"checks": 0.2}),
    ],
)
def test_an_exact_expectation_is_the_share_of_simulated_searches(
    searches, chances, written, monkeypatch
):
    monkeypatch.setattr(controls, "LIMIT", 700)
    rng, solved, draws = random.Random(1), [], 100
    for row in ROWS:
        for _ in range(draws):
            trace = traces.trace(row, PLAN, rng, max_lines=40, **written)
            solved.append(trace.ended and len(trace.text) <= controls.LIMIT)
    puzzles = searches(ROWS, PLAN, count)
    exact, after = controls.rejection_sampling(
        puzzles, puzzles, chances(puzzles[0]), (0, 1)
    ).values()
    assert 0.1 < exact < 0.9
    assert abs(exact - np.mean(solved)) < 4 * (exact * (1 - exact) / len(solved)) ** 0.5
    assert after > exact
    weights = chances(puzzles[0])
    assert controls.fixed(puzzles, weights) == pytest.approx(exact)


def test_a_line_that_repeats_the_line_before_is_a_check(tmp_path):
    lines = "1. 9 - 5 = 4, 4 - 2 = 2 no\n"
    completion = (
        f"<think>\n9 5 2\n{lines}{lines}{lines.replace('1.', '2.')}</think>\n<answer>9</answer>"
    )
    jsonl.write_rows(
        tmp_path / "own.jsonl", [{"nums": [9, 5, 2], "target": 90, "completion": completion}]
    )
    words = ["eval", "--completions", str(tmp_path / "own.jsonl"), "--out", str(tmp_path / "eval")]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert checking.checked(tmp_path / "eval") == {
        "3 numbers": {"all lines": 0.5, "from line 2": 0.5}
    }
