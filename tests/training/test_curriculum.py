"""Curriculum: puzzles solved sometimes are drawn more, and a resumed run draws the same ones."""

import json
from collections import Counter
from itertools import islice

from countdown_rl.tasks.registry import parse_row
from countdown_rl.training.curriculum import Curriculum, in_turn, kind


def puzzle(nums, needs=None, solutions=None):
    known = {key: value for key, value in (("needs", needs), ("solutions", solutions)) if value is not None}
    return parse_row({"nums": nums, "target": 7} | known)


ROWS = [puzzle([1] * size, needs, 2) for size in (3, 4) for needs in ("add-sub", "mul-div")] * 25
KINDS = sorted({kind(row) for row in ROWS})


def made(evidence=(), size=40):
    return Curriculum(ROWS, size=size, seed=7, evidence=evidence)


def outcomes(rows, mixed):
    """Two completions of each of *rows*: one right, one wrong where the kind is among *mixed*, else both wrong."""
    return [(kind(ROWS[row]), first and kind(ROWS[row]) in mixed) for row in rows for first in (True, False)]


def test_kinds_are_the_values_of_all_groups():
    assert kind(puzzle([1, 2, 3], solutions=0)) == "numbers 3, solutions 0"
    assert kind(puzzle([1, 2, 3, 4], "mul-div", 3)) == "numbers 4, needs mul-div, solutions 2-4"
    assert kind(puzzle([1, 2])) == "numbers 2"
    assert kind(parse_row({"task": "gsm8k", "question": "?", "gold": "1"})) == ""


def test_without_evidence_kinds_are_drawn_in_proportion_to_the_data():
    assert set(made().probabilities(0).values()) == {0.25}
    drawn = made().sample(0)
    assert len(drawn) == 40
    assert len(set(drawn)) == 40


def test_rows_of_a_small_data_set_repeat():
    assert len(made(size=300).sample(0)) == 300


def test_kinds_solved_sometimes_are_drawn_more_and_others_still():
    course = made()
    for number in range(12):
        course.observe(outcomes(course.sample(number), KINDS[:1]), num_generations=2)
    chances = course.probabilities(12)
    assert chances[KINDS[0]] > 0.45
    assert all(0.125 < chances[name] < 0.2 for name in KINDS[1:])  # half of their share of the rows and more
    drawn = Counter(kind(ROWS[index]) for index in made(course.evidence, size=400).sample(12))
    assert drawn[KINDS[0]] > 180


def test_the_probability_of_an_unseen_kind_recovers():
    course = made()
    for number in range(12):
        course.observe(outcomes(course.sample(number), KINDS[:1]), num_generations=2)
    low = course.probabilities(12)[KINDS[1]]
    seen = [index for index in range(100) if kind(ROWS[index]) == KINDS[0]]
    for _ in range(100):
        course.observe(outcomes(seen[:20], KINDS[:1]), num_generations=2)
    assert course.probabilities(112)[KINDS[1]] > 1.2 * low


def test_prefetching_and_resuming_do_not_change_the_draws():
    def rounds(ahead, stop_at=None):
        course, drawn = made(), {}
        for number in range(8):
            if number == stop_at:
                course = made(json.loads(json.dumps(course.evidence)))
            for one in range(number, number + 1 + ahead):
                drawn[one] = course.sample(one)
            course.observe(outcomes(drawn[number], KINDS[number % 2 : 2]), num_generations=2)
        return [drawn[number] for number in range(8)]

    plain = rounds(0)
    assert plain == rounds(1) == rounds(0, stop_at=1) == rounds(1, stop_at=5)
    course = made()
    assert list(islice(course.indices(0), 40)) == plain[0]


def test_every_row_is_drawn_once_per_epoch():
    order = list(islice(in_turn(7, seed=3), 21))
    assert sorted(order[:7]) == sorted(order[7:14]) == list(range(7))
    assert order[:7] != order[7:14]
    assert list(islice(in_turn(7, seed=3, start=9), 12)) == order[9:]
