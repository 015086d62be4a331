"""The solver against an independent brute force."""

import random
from collections import Counter

import pytest

from countdown_rl.core.errors import InputError
from countdown_rl.tasks.countdown import kernel, kernel_numba, solver
from countdown_rl.tasks.countdown.expression import parse
from countdown_rl.tasks.countdown.rules import RULES, Puzzle
from tests.support import oracle


def _random_puzzle(rng: random.Random, sizes: list[int]) -> Puzzle:
    high = rng.choice([4, 12, 60])
    numbers = tuple(rng.randint(rng.choice([0, 1, 1]), high) for _ in range(rng.choice(sizes)))
    return Puzzle(numbers, rng.randint(1, 60), rng.choice(list(RULES.values())))


@pytest.mark.parametrize(
    ("sizes", "count"), [([1, 2, 3, 3, 4], 150), pytest.param([5], 25, marks=pytest.mark.slow)]
)
def test_counts_and_solutions_agree_with_brute_force(sizes, count):
    rng = random.Random(1)
    for _ in range(count):
        puzzle = _random_puzzle(rng, sizes)
        rule = puzzle.rule
        expected = oracle.count(puzzle.numbers, puzzle.target, every=rule.every, whole=rule.whole)
        solved = solver.solve(puzzle)
        texts = list(solver.solutions(puzzle))
        assert solved.solutions == len(texts) == expected, puzzle
        for text in texts:
            expression = parse(text)
            left = Counter(puzzle.numbers)
            left.subtract(expression.numbers)
            assert min(left.values()) >= 0
            assert not (left.total() and rule.every)
            assert expression.numerator == puzzle.target * expression.denominator
            assert expression.whole or not rule.whole
        if not texts:
            assert (solved.solution, solved.needs) == (None, None)
            continue
        plain = [text for text in texts if not {"*", "/"} & set(text)]
        assert solved.needs == ("add-sub" if plain else "mul-div")
        whole = [text for text in texts if parse(text).whole]
        assert solved.solution in (whole or texts)
        assert len(solved.solution) == min(map(len, whole or texts))


@pytest.mark.parametrize(("n", "expressions"), [(1, 1), (2, 6), (3, 68), (4, 1170), (5, 27142)])
def test_every_inequivalent_expression_is_built_exactly_once(n, expressions):
    """OEIS A140606. Of the classes that have a negative, both orientations are counted."""
    numbers = [1_009, 1_511, 2_003, 2_503, 3_001][:n]
    classes, matches = kernel.tables(lambda size: [0] * size, n + 1, 1, 0)
    # With one more number all classes of the first n are kept.
    kernel.search([*numbers, 1], kernel.Goal(1, 1, True, False, 0b11111), classes, matches)
    subset = (1 << n) - 1
    tags = classes.tags[classes.starts[subset] : classes.ends[subset]]
    assert sum(2 if tag & kernel.FLIP else 1 for tag in tags) == expressions
    assert classes.ends[subset] <= kernel.MAX_CLASSES[n + 1]


def test_the_compiled_kernel_and_the_plain_one_agree(monkeypatch):
    rng = random.Random(3)
    for _ in range(40):
        puzzle = _random_puzzle(rng, [2, 3, 4])
        fast = solver.solve(puzzle), list(solver.solutions(puzzle))
        with monkeypatch.context() as patch:
            patch.setattr(solver, "_compiled_pays", lambda n: False)
            assert fast == (solver.solve(puzzle), list(solver.solutions(puzzle)))
    assert kernel_numba.search is not kernel.search


def test_numbers_of_any_size_are_exact():
    big = 10**12
    solved = solver.solve(Puzzle((big, big + 1, 7), big * (big + 1) - 7))
    assert solved.solutions == 1
    assert solved.solution == f"{big + 1} * {big} - 7"


@pytest.mark.parametrize(
    ("numbers", "target"), [((), 5), ((1,) * 7, 5), ((-1, 3), 5), ((1, 3), 0), ((1, 3), -2)]
)
def test_puzzles_out_of_range_are_refused(numbers, target):
    with pytest.raises(InputError):
        solver.solve(Puzzle(numbers, target))
