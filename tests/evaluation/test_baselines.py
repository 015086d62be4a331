"""Baselines: legal under every rule, reproducible, and listed beside the models."""

import json
import random
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from countdown_rl.core.errors import InputError, ModelError
from countdown_rl.evaluation import compare, evaluate, results, tables
from countdown_rl.evaluation.config import EvalOptions
from countdown_rl.evaluation.sample import EvaluatedModel
from countdown_rl.tasks import registry
from countdown_rl.tasks.countdown import rules
from countdown_rl.tasks.registry import parse_row
from tests.support import evaluations

ROWS = [
    {"id": "a", "nums": [3, 7, 50], "target": 46, "needs": "add-sub"},
    {"id": "b", "nums": [3, 3], "target": 1, "needs": "mul-div", "style": "model_opens"},
    {"id": "c", "nums": [5, 5, 5, 1], "target": 1000, "needs": None},
    {
        "id": "d",
        "nums": [4, 6, 9],
        "target": 24,
        "needs": "mul-div",
        "rule": "television",
        "operators": "+*/",
    },
]
GREEDY = evaluations.GREEDY | {"samples": 1}

NUMBERS = {
    "nums": st.lists(st.integers(1, 30), min_size=1, max_size=6),
    "target": st.integers(1, 999),
}
CHOICES = {"rule": sorted(rules.RULES), "operators": ["+", "*", "+-", "*/", "+*", "+-*/"]}
CHOICES |= {"style": ["prefilled", "model_opens"]}


@given(
    st.fixed_dictionaries(NUMBERS | {name: st.sampled_from(CHOICES[name]) for name in CHOICES}),
    st.integers(),
)
def test_a_random_expression_obeys_every_rule(row, seed):
    puzzle = parse_row(row)
    grade = puzzle.grade(
        registry.baseline("random", [puzzle]).completion(puzzle, random.Random(str(seed)))
    )
    assert grade.strict_format
    assert grade.correct or grade.reason == "wrong-value"


def write(path: Path, puzzles=ROWS) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in puzzles))
    return path


def run(tmp_path, model, name, puzzles=ROWS, **options):
    data = write(tmp_path / "test.jsonl", puzzles)
    return evaluate.evaluate(EvalOptions(**options), model=model, data=data, out=tmp_path / name)


def test_the_solver_is_correct_on_every_puzzle_solvable_or_not(tmp_path):
    result = run(tmp_path, "solver", "out")
    assert result.metrics.correct == result.metrics.n == 4
    assert [sample.grade.answer for sample in result.samples][2] == "impossible"
    assert result.metrics.model == EvaluatedModel(source="solver", kind="ceiling")
    assert results.read(tmp_path / "out") == result


def test_a_random_expression_depends_on_seed_and_row_alone(tmp_path):
    few, all_ = run(tmp_path, "random", "few", limit=2), run(tmp_path, "random", "all")
    assert all_.samples[:2] == few.samples
    assert run(tmp_path, "random", "again").samples == all_.samples
    # The second row's own puzzle could be another one by chance; four rows hardly are.
    assert run(tmp_path, "random", "other", seed=1).samples != all_.samples


def test_other_tasks_are_refused(tmp_path):
    with pytest.raises(ModelError, match="solver is not a known model"):
        run(tmp_path, "solver", "out", [{"task": "gsm8k", "question": "2 and 3?", "gold": "5"}])
    assert not (tmp_path / "out").exists()


def scored(tmp_path, right: str, **decoding) -> results.Result:
    """A model's evaluation of the same puzzles, as *right* says."""
    floor = run(tmp_path, "random", "floor")
    rows = [sample.row for sample in floor.samples]
    samples = [
        evaluations.sample(mark == "+", row=row) for row, mark in zip(rows, right, strict=True)
    ]
    about = {"decoding": GREEDY | decoding, "data": floor.metrics.data, "precision": "fp32"}
    return results.Result(evaluations.metrics(samples, **about), samples)


def test_models_are_compared_with_models_and_not_with_baselines(tmp_path):
    floor, ceiling = run(tmp_path, "random", "floor"), run(tmp_path, "solver", "ceiling")
    one, two = scored(tmp_path, "+---"), scored(tmp_path, "+-++")
    values = compare.scores({"random": floor, "one": one, "solver": ceiling, "two": two})
    rows = {row["name"]: row for row in values["results"]}
    assert list(rows) == ["random", "one", "solver", "two"]
    assert [name for name in rows if "against_first" in rows[name]] == ["two"]
    assert rows["two"]["against_previous"] == compare.difference(one, two) | {"reference": "one"}
    assert values["decoding"] == GREEDY
    lines = tables.markdown(values).splitlines()
    assert lines[2].endswith("|  |  |  |")
    assert lines[5].count("+50.0") == 1


def test_baselines_alone_are_refused(tmp_path):
    floor = run(tmp_path, "random", "floor")
    with pytest.raises(InputError, match="give an evaluation of a model"):
        compare.scores({"random": floor, "solver": run(tmp_path, "solver", "ceiling")})


def test_a_baseline_is_evaluated_without_torch(here, run_command, monkeypatch):
    write(Path("test.jsonl"))
    monkeypatch.setitem(sys.modules, "torch", None)  # so that importing it fails
    assert "100.0%" in run_command("eval", "--model", "solver", "--data", "test.jsonl").out


def test_a_single_model_is_compared_with_its_baselines(tmp_path):
    floor, ceiling, one = (
        run(tmp_path, "random", "floor"),
        run(tmp_path, "solver", "ceiling"),
        scored(tmp_path, "+---"),
    )
    results = {"random": floor, "one": one, "solver": ceiling}
    rows = {row["name"]: row for row in compare.scores(results)["results"]}
    assert rows["one"]["against_first"] == compare.difference(floor, one) | {"reference": "random"}
    assert rows["solver"]["against_previous"] == compare.difference(one, ceiling) | {
        "reference": "one"
    }
    assert {change["to"] for change in compare.changes(results)} == {"one", "solver"}
