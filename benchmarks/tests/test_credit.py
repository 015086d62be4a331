"""Credit by line against the exact worth of a line."""

import random

import numpy as np
import pytest

from benchmarks import credit, exact
from benchmarks.tests.test_exact import PLAN, REF, ROWS
from stages.recipes.tiny import traces


def test_the_worth_of_the_lines_of_a_search_adds_up_to_its_success():
    count_tokens = exact.token_counter(REF)
    rng, outcomes = random.Random(1), set()
    for row, puzzle in zip(ROWS, exact.searches(ROWS, PLAN, count_tokens), strict=True):
        chances = exact.uniform(len(puzzle.hits))
        text = traces.trace(row, PLAN, rng, max_lines=60).text
        added = [value for _, value in credit.worth(puzzle, chances, text)]
        first = credit.choices(text)[0][0] if added else int(np.argmax(puzzle.hits))
        solved = count_tokens([text])[0] <= exact.LIMIT
        outcomes.add(solved)
        start = credit.success(puzzle, chances)[puzzle.start, first]
        assert start + sum(added) == pytest.approx(float(solved))
    assert outcomes == {True, False}


def test_a_line_has_the_advantage_of_the_trainer():
    longer, shorter = "1. 2 + 3 = 5 no\n2. 2 * 3 = 6 no\n", "1. 2 + 3 = 5 no\n"
    np.testing.assert_allclose(
        credit.credits([longer, shorter], [True, False], 0.5), [[0.125, 0.0], [-0.125, 0.0]]
    )
    np.testing.assert_allclose(
        credit.credits([longer, shorter], [True, False], 1.0), [[0.5, 0.5], [-0.5, 0.0]]
    )


def test_choices_are_counted_after_each_way():
    found = credit.frequencies(["4. 2 + 3 = 5 no, skip two\n7. 2 * 3 = 6 no\n8. 2 - 1 = 1 yes"], 99)
    assert found[3].tolist() == [0.2, 0.2, 0.4, 0.2]
    assert found[6].tolist() == [0.4, 0.2, 0.2, 0.2]
    assert found[7].tolist() == [0.25] * 4


def test_a_correlation_is_that_of_all_pairs():
    rng = np.random.default_rng(1)
    pairs = [
        rng.normal(size=(size, 2)) @ [[1.0, 0.5], [0.0, 1.0]] for size in (3, 1, 0, *range(20, 60))
    ]
    found = credit.correlation(pairs)
    assert found["correlation"] == pytest.approx(np.corrcoef(np.vstack(pairs).T)[0, 1], abs=1e-4)
    low, high = found["interval"]
    assert low < found["correlation"] < high
