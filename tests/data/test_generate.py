"""Generated puzzles: exact sizes and facts, no leaks between splits, the same rows for any number of workers."""

import hashlib
import itertools
import json
import re
import threading
from collections import Counter
from dataclasses import replace
from itertools import combinations, combinations_with_replacement

import pytest
from hypothesis import given
from hypothesis import strategies as st

from countdown_rl.core.errors import InputError, UsageError
from countdown_rl.data import build, generate
from countdown_rl.data.config import DataOptions
from countdown_rl.data.generate import PRESETS, Distribution, is_excluded
from countdown_rl.tasks.countdown import rules, solver
from countdown_rl.tasks.countdown.rules import RULES, Puzzle
from countdown_rl.tasks.countdown.task import CountdownRow

SMALL = Distribution({2: 1, 3: 2}, tuple(range(1, 13)), 5, 30)
WEIGHTED = {"seed": 7, "impossible": 0.3, "numbers": "1-24", "targets": "10-25"}
WEIGHTED |= {"size": ("2=0.1", "3=0.4", "4=0.5")}
SUMS = {"rule": "at-most-once", "size": ("3=2", "5"), "operators": "+-"}
NARROW = {"operators": "+*", "size": ("2", "3"), "numbers": "1-20", "targets": "5-60"}
TILES = {"rule": "television", "numbers": "25,50,1-10x2", "targets": "101-999", "size": ("4",)}


def make(wanted, split="train", n=200, *, seed=1, exclude=None, workers=1):
    plan = generate.SplitPlan(wanted, exclude or set(), split, n, seed=seed)
    generate.check_sizes([plan])
    return list(generate.rows(plan, workers=workers))


@pytest.mark.parametrize(
    "wanted",
    [
        pytest.param(PRESETS["tv"], marks=pytest.mark.slow),
        *(PRESETS["3to4"], PRESETS["24"]),
        replace(SMALL, rule=RULES["at-most-once"]),
        replace(SMALL, rule=RULES["television"], impossible=0.25),
        replace(SMALL, operators="+-*", impossible=0.5),
        replace(PRESETS["3to4"], sizes={1: 1, 5: 1}),
    ],
)
def test_rows_have_exact_facts(wanted):
    n = 20 if wanted == PRESETS["tv"] else 60
    rows = make(wanted, n=n)
    assert len(rows) == n
    for row in rows:
        puzzle = CountdownRow(row).puzzle
        solved = solver.solve(puzzle)
        assert (row["solutions"], row["needs"]) == (solved.solutions, solved.needs)
        assert row["id"] == puzzle.id
        assert row["size"] == len(row["nums"]) in wanted.sizes
        assert wanted.low <= row["target"] <= wanted.high
        assert (row["solution"] is None) == (solved.solutions == 0)
        if row["solution"]:
            assert CountdownRow(row).judge(row["solution"]) == (str(row["target"]), "")
        assert set(row["nums"]) <= set(wanted.values)
        assert not (wanted.tiles and Counter(row["nums"]) - Counter(wanted.values))


@pytest.mark.parametrize(
    ("options", "split", "digest"),
    [
        ({}, "train", "a47db1074e91a2c4"),
        (WEIGHTED, "valid", "9620ca83cf884780"),
        (SUMS, "test", "8cff4d170838f24b"),
        (TILES, "train", "9b6a5107fc6d60a2"),
        (NARROW, "train", "0a1c5e3c77f58bcc"),
        ({"preset": "tv", "n": 5, "valid": 1, "test": 1}, "train", "f54d089fccf29b6a"),
    ],
)
def test_rows_keep_their_bytes(options, split, digest):
    rows = build.generate(DataOptions(**{"n": 240, "valid": 60, "test": 60} | options), split)
    assert hashlib.sha256("".join(map(json.dumps, rows)).encode()).hexdigest()[:16] == digest


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=6), st.randoms())
def test_the_split_does_not_depend_on_the_order(numbers, rng):
    shuffled = rng.sample(numbers, len(numbers))
    assert rules.split_of(numbers) == rules.split_of(shuffled)


def test_the_split_of_a_puzzle_never_changes():
    splits = [rules.split_of(nums) for nums in ([3, 7, 50], [14, 1, 2], [1, 4, 18])]
    assert splits == ["train", "test", "valid"]
    counts = Counter(map(rules.split_of, itertools.combinations(range(1, 41), 3)))
    assert counts["test"] / counts.total() == pytest.approx(0.05, abs=0.01)


def test_rows_do_not_depend_on_workers_and_a_longer_file_begins_with_the_shorter_one(monkeypatch):
    assert make(PRESETS["3to4"], n=100) == make(PRESETS["3to4"], n=300)[:100]
    monkeypatch.setattr(generate, "CHUNK", {3: 16})
    wanted = replace(SMALL, values=tuple(range(1, 25)))
    assert make(wanted, n=150, workers=1) == make(wanted, n=150, workers=3)
    assert make(SMALL, n=150) == make(SMALL, n=300)[:150]


def test_sizes_follow_their_weights_and_impossible_rows_have_their_exact_share():
    rows = make(replace(PRESETS["3to4"], sizes={3: 1, 4: 3}, impossible=0.3), n=1_000)
    assert sum(row["size"] == 4 for row in rows) == pytest.approx(750, abs=50)
    assert sum(row["solutions"] == 0 for row in rows) == 300


def _brute_puzzles(wanted, split):
    """The numbers and the target of each solvable puzzle in *split*."""
    choose = combinations if wanted.tiles else combinations_with_replacement
    puzzles = set()
    for size in wanted.sizes:
        numbers = set(choose(sorted(wanted.values), size))
        targets = range(wanted.low, wanted.high + 1)
        for nums, target in itertools.product(numbers, targets):
            puzzle = Puzzle(nums, target, wanted.rule, wanted.operators)
            if rules.split_of(nums) == split and solver.solve(puzzle).solutions:
                puzzles.add((nums, target))
    return puzzles


TINY = Distribution({2: 1, 3: 1}, tuple(range(1, 6)), 4, 9)


@pytest.mark.parametrize("wanted", [TINY, replace(TINY, values=(1, 1, 2, 3, 5, 9), tiles=True)])
def test_all_puzzles_can_be_generated_and_no_more(wanted):
    puzzles = _brute_puzzles(wanted, "train")
    rows = make(wanted, n=len(puzzles))
    assert {(tuple(sorted(row["nums"])), row["target"]) for row in rows} == puzzles
    with pytest.raises(UsageError, match=f"{len(puzzles):,} for train"):
        make(wanted, n=len(puzzles) + 1)


def test_the_preset_24_is_the_game_of_24_and_says_at_once_how_many_puzzles_it_has(tmp_path):
    with pytest.raises(UsageError, match=r"1362 --valid \d+ --test \d+ is the most") as error:
        build.make(DataOptions(preset="24"), tmp_path / "data")
    n, valid, test = map(int, re.findall(r"\d+", str(error.value))[:3])
    options = DataOptions(preset="24", n=n, valid=valid, test=test)
    facts = build.make(options, tmp_path / "data")
    assert sum(split["rows"] for split in facts["splits"].values()) == 1_362


def test_excluded_puzzles_are_not_generated():
    puzzles = sorted(_brute_puzzles(TINY, "train"))
    exclude = {f"{' '.join(map(str, nums))}={target}" for nums, target in puzzles[::3]}
    exclude.add(" ".join(map(str, puzzles[1][0])))
    left = [puzzle for puzzle in puzzles if not is_excluded(exclude, *puzzle)]
    rows = make(TINY, n=len(left), exclude=exclude)
    assert sorted((tuple(sorted(row["nums"])), row["target"]) for row in rows) == left
    with pytest.raises(UsageError, match=f"{len(left):,} for train"):
        make(TINY, n=len(puzzles), exclude=exclude)


@pytest.mark.parametrize("operators", ["*", "*/"])
def test_targets_are_those_that_products_reach(operators):
    wanted = DataOptions(n=60, operators=operators, size=("5",))
    rows = list(build.generate(wanted, "train"))
    assert len(rows) == 48
    assert all(CountdownRow(row).judge(row["solution"])[1] == "" for row in rows)


@pytest.mark.parametrize("sizes", [{6: 1}, {1: 1, 6: 1}])
def test_puzzles_that_do_not_exist_are_reported(monkeypatch, sizes):
    monkeypatch.setattr(generate, "LIMITS", generate.LIMITS // 10)
    wanted = Distribution(sizes, tuple(range(10, 31)), 1, 20, operators="+")
    with pytest.raises(InputError, match=r"no new solvable puzzle of [16] numbers"):
        make(wanted, n=20_000)


def test_the_threads_of_a_generator_end_with_it():
    plan = generate.SplitPlan(PRESETS["tv"], set(), "train", 50_000, seed=1)
    rows = generate.rows(plan, workers=2)
    before = threading.active_count()
    next(rows)
    assert threading.active_count() > before
    rows.close()
    assert threading.active_count() == before


@pytest.mark.parametrize("largest", [12, 24])
def test_other_sizes_make_up_for_one_that_runs_out(largest):
    wanted = replace(SMALL, sizes={2: 10, 3: 1}, values=tuple(range(1, largest + 1)))
    assert wanted.is_narrow == (largest == 12)
    rows = make(wanted, n=900)
    pairs = _brute_puzzles(replace(wanted, sizes={2: 1}), "train")
    assert sum(row["size"] == 2 for row in rows) == len(pairs)
    assert len({row["id"] for row in rows}) == 900
