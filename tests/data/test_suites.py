"""Benchmark suites: the released rows, and that no training split holds them."""

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import countdown_rl
from countdown_rl.cli.main import app
from countdown_rl.core import artifacts
from countdown_rl.core.errors import CountdownError, InputError, UsageError
from countdown_rl.data import build, suites
from countdown_rl.data.config import DataOptions
from countdown_rl.data.generate import PRESETS
from countdown_rl.evaluation import caveats, results
from countdown_rl.tasks import jsonl
from countdown_rl.tasks.registry import parse_row
from countdown_rl.training.grpo import run as grpo
from countdown_rl.training.options import SftOptions
from countdown_rl.training.sft import demonstrations
from tests.support.command import python

BENCH = "suite:countdown-bench-1"


@pytest.fixture(scope="module")
def rows():
    return countdown_rl.read_rows(BENCH)


def test_a_suite_has_its_tiers_and_each_puzzle_once(rows):
    tiers = {tier: [row for row in rows if row["tier"] == tier] for tier in suites._TIERS}
    assert {len(tiers[tier]) for tier in tiers} == {250}
    assert len({row.id for row in rows}) == 1_750
    for tier in ("3", "4", "5", "6", "needs-mul"):
        assert all(row["solutions"] for row in tiers[tier])
    assert sum(row["solutions"] == 0 for row in tiers["impossible"]) == 125
    assert {row["solutions"] for row in tiers["rare"]} == {1}
    assert {row["needs"] for row in tiers["needs-mul"]} == {"mul-div"}
    assert {(row.rule, len(row["nums"])) for row in tiers["6"]} == {("television", 6)}
    assert countdown_rl.read_rows(f"{BENCH}/rare") == tiers["rare"]


@pytest.mark.parametrize("preset", PRESETS)
def test_no_training_split_has_the_numbers_of_a_suite(preset, rows):
    numbers = {row.identity for row in rows}
    n = 12 if preset == "24" else 402
    options = DataOptions(n=n, valid=n // 2 - 1, test=1, preset=preset, seed=20_261_127)
    for split in ("train", "valid"):
        generated = map(parse_row, build.generate(options, split))
        assert numbers.isdisjoint(row.identity for row in generated)


@pytest.mark.parametrize("split", ["", "train"])
def test_imported_rows_of_a_suite_join_no_training_split(split, tmp_path, rows):
    published = [
        {"nums": row["nums"], "target": row["target"], "split": split} for row in rows[:300]
    ]
    jsonl.write_rows(tmp_path / "rows.jsonl", [*published, {"nums": [3, 7, 50], "target": 46}])
    made = build.make(DataOptions(n=301, from_=str(tmp_path / "rows.jsonl")), tmp_path / "data")
    assert made["splits"]["train"]["rows"] == 1


def test_no_training_run_sees_a_suite(tmp_path, rows):
    other = {"nums": [3, 7, 50], "target": 46}
    known = [{"nums": row["nums"], "target": 46} for row in rows[:9]]
    jsonl.write_rows(tmp_path / "rows.jsonl", [*known, other])
    notes = []
    arguments = SimpleNamespace(data=tmp_path / "rows.jsonl")
    read, _ = grpo._read(arguments, SimpleNamespace(note=notes.append))
    assert [row["nums"] for row in read] == [other["nums"]]
    assert "left out 9 rows" in notes[-1]
    told = [{"prompt": row.prompt().user, "completion": "a"} for row in rows[:9]]
    own = other | {"completion": "<answer>50 - 7 + 3</answer>"}
    jsonl.write_rows(tmp_path / "demos.jsonl", [*told, own])
    file = tmp_path / "demos.jsonl"
    found, _ = demonstrations.read(SftOptions(keep_wrong=True), [file], None, None)
    assert (found.left_out, len(found.filtered)) == ({"of a benchmark": 9}, 1)


@pytest.mark.parametrize(
    "words",
    [
        "train --data",
        "sft --from rows.jsonl --data",
        "sft --from",
        "gen-data --out data --from",
        "export-task --to verl --out out --data",
        "export-task --to prime-rl --out out --data",
        "export-task --to areal --out out --data",
    ],
)
def test_every_command_that_makes_training_data_refuses_a_suite(words, here):
    Path("rows.jsonl").write_text('{"nums": [3, 4], "target": 7, "completion": "3 + 4"}')
    for name, reason in ((f"{BENCH}/4", "is a benchmark"), ("suite:no", "no suite no")):
        with pytest.raises(CountdownError, match=reason):
            run(f"{words} {name}")


def run(words):
    app(words.split(), standalone_mode=False)


def test_a_suite_is_excluded_by_name_and_graded_by_its_own_rules(here):
    run(f"gen-data --n 300 --valid 0 --test 0 --exclude {BENCH} --out data")
    assert artifacts.read(Path("data"), "data").inputs["exclude"][0]["digest"]
    for command in ("grade made.jsonl", "eval --completions made.jsonl --out out"):
        with pytest.raises(UsageError, match="states its own rules"):
            run(f"{command} --data {BENCH}/4 --rule television")


def test_completions_name_a_row_of_a_suite_by_its_numbers_whatever_its_rules(rows, here):
    records = []
    for row in rows:
        completion = f"<answer>{row.right_answer or 'impossible'}</answer>"
        records.append({"nums": row["nums"], "target": row["target"], "completion": completion})
    jsonl.write_rows(Path("made.jsonl"), records)
    result = countdown_rl.evaluate(completions="made.jsonl", rows=BENCH)
    assert (result.metrics.n, result.metrics.accuracy) == (1_750, 1)
    jsonl.write_rows(Path("other.jsonl"), [records[0] | {"rule": "at-most-once"}])
    with pytest.raises(InputError, match="is not in --data"):
        countdown_rl.evaluate(completions="other.jsonl", rows=BENCH)


def test_a_part_of_a_suite_says_so(here):
    run(f"eval --model solver --data {BENCH}/6 --limit 7 --out part")
    result = results.read(Path("part"))
    assert (result.metrics.n, result.metrics.of) == (7, 250)
    model = replace(result.metrics.model, kind="directory")
    named = replace(result, metrics=replace(result.metrics, model=model))
    sentences = " ".join(caveats.caveats({"": named}))
    assert "only the first 7 of the 250 puzzles" in sentences
    assert "countdown-bench-1/6" in sentences


@pytest.mark.parametrize(
    "option", ["--limit 1", "--samples 2", "--temperature 0.5", "--max-new-tokens 9", "--seed 7"]
)
def test_an_option_of_models_is_refused_with_completions(option, here):
    Path("made.jsonl").write_text('{"nums": [3, 7, 50], "target": 46, "completion": "a"}')
    with pytest.raises(UsageError, match="is for a model"):
        run(f"eval --completions made.jsonl --out out {option}")


@pytest.mark.parametrize(
    ("name", "words"),
    [("no", "no suite no; take countdown-bench-1"), ("countdown-bench-1/7", "no tier 7; take one")],
)
def test_an_unknown_suite_names_the_known_ones(name, words):
    with pytest.raises(InputError, match=words):
        countdown_rl.read_rows(f"suite:{name}")


def test_rows_other_than_the_released_ones_are_an_error(monkeypatch):
    monkeypatch.setattr(suites, "_SHA256", {"another": ""})
    with pytest.raises(CountdownError, match="not the released ones"):
        suites.file("another", "")


@pytest.mark.slow
def test_the_rows_are_the_same_without_the_instructions_of_this_processor(tmp_path):
    generic = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    environment = os.environ | generic | {"NUMBA_CACHE_DIR": str(tmp_path)}
    code = "import countdown_rl; print(len(countdown_rl.read_rows('suite:countdown-bench-1')))"
    assert python(code, environment) == "1750\n"
