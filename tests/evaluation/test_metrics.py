"""Metrics of several completions per puzzle: estimators against enumeration, intervals against simulation."""

from itertools import combinations

import numpy as np
import pytest

from countdown_rl.evaluation.metrics import measure, pass_at_k, vote
from countdown_rl.evaluation.sample import Sample, Share, Tokens
from countdown_rl.evaluation.statistics import mean_interval, wilson
from countdown_rl.inference.engine import Completion
from countdown_rl.tasks.registry import parse_row
from tests.support.evaluations import sample


def graded(*right):
    """*right* as samples of one row after another, ``+`` right and ``-`` wrong."""
    samples = []
    for puzzle in right:
        for turn, mark in enumerate(puzzle):
            answer = "1" if mark == "+" else "2"
            fields = {"answer": answer, "value": answer, "turn": turn}
            samples.append(sample(mark == "+", "wrong-value", **fields))
    return samples


def limits(count, n):
    return tuple(round(limit, 6) for limit in wilson(count, n))


@pytest.mark.parametrize("each", range(1, 7))
def test_pass_at_k_equals_enumeration(each):
    for right in range(each + 1):
        outcomes = [True] * right + [False] * (each - right)
        for k in range(1, each + 1):
            draws = [any(draw) for draw in combinations(outcomes, k)]
            assert pass_at_k(k, right, each) == pytest.approx(sum(draws) / len(draws))


def test_the_effective_sample_size_is_that_of_puzzles_or_of_completions_at_the_extremes():
    alike = [1.0] * 30 + [0.0] * 70
    assert mean_interval(alike, 8) == pytest.approx(wilson(30, 100))
    assert mean_interval([0.5] * 100, 8) == pytest.approx(wilson(400, 800))
    assert mean_interval([], 8) == (0, 1)
    assert mean_interval([0.0] * 100, 8) == pytest.approx(wilson(0, 100))


@pytest.mark.parametrize("case", [(0.5, 0.5, 200, 4), (2, 3, 60, 1), (0.3, 1.5, 500, 8)])
def test_the_interval_of_pass_at_k_covers_95_percent_of_1000_draws(case):
    a, b, n, k = case
    draw, each = np.random.default_rng(0), 8
    # E[1 - (1 - p)^k], p of a beta distribution
    true = 1 - np.prod([(b + i) / (a + b + i) for i in range(k)])
    values = np.array([pass_at_k(k, right, each) for right in range(each + 1)])
    covered = 0
    for _ in range(1_000):
        drawn = values[draw.binomial(each, draw.beta(a, b, size=n))]
        low, high = mean_interval(drawn.tolist(), each // k)
        covered += low <= true <= high
    assert covered / 1_000 == pytest.approx(0.95, abs=0.02)


def answers(*texts):
    """Completions of the puzzle of reaching 20 from 2, 3 and 4."""
    row = parse_row({"nums": [2, 3, 4], "target": 20})
    samples = []
    for text in texts:
        answer = "" if text is None else f"<answer>{text}</answer>"
        samples.append(Sample.of(row, Completion(f"</think>\n{answer}", 5, True)))
    return samples


@pytest.mark.parametrize(
    ("texts", "right"),
    [
        (["(2 + 3) * 4", "4 * 3 + 2", "4 * (3 + 2)"], True),
        # as many each: the first one counts
        (["4 * 3 + 2", "(2 + 3) * 4", "2 + 3 * 4", "4 * (3 + 2)"], False),
        ([None, None, "4*(2+3) = 20"], True),
        ([None, None], False),
        (["impossible", "Impossible.", "4 * (2 + 3)"], False),
    ],
)
def test_the_most_frequent_answer_wins_in_canonical_form(texts, right):
    assert vote(answers(*texts)) is right


def test_metrics_of_several_completions_include_majority_and_the_values_of_k():
    metrics = measure(graded("+---", "++++", "--++", "+---"))
    assert (metrics.majority.count, metrics.majority.share, metrics.majority.n) == (1, 0.25, 4)
    assert metrics.majority.interval == limits(1, 4)
    assert list(metrics.pass_at) == [1, 2, 4]
    assert metrics.pass_at[4] == Share(share=1.0, interval=limits(4, 4))
    assert metrics.pass_at[1].share == metrics.accuracy == 0.5


def test_token_counts_by_correctness_and_per_correct_answer():
    samples = [sample(n < 25, tokens=n) for n in (10, 20, 30, 200)]
    metrics = measure(samples)
    assert metrics.tokens == Tokens(
        median=25, p95=200, longest=200, mean_correct=15, mean_incorrect=115, per_correct_answer=130
    )
    assert metrics.intervals["format"] == limits(4, 4)
    none = measure([samples[2]]).tokens
    assert (none.mean_correct, none.per_correct_answer) == (None, None)
