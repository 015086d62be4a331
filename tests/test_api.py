"""The public API: what a script of somebody else's imports."""

import json
import tempfile
from itertools import islice

import numpy as np
import pytest

import countdown_rl
from countdown_rl import (
    InputError,
    ModelError,
    UsageError,
    compare,
    evaluate,
    generate,
    grade,
    read_rows,
    solve,
)
from countdown_rl.rewards import compute_score, correct, format_reward, length
from tests.support.command import python

PUZZLE = {"nums": [3, 7, 50], "target": 46}
RIGHT = " 50 first</think>\n<answer>50 - 7 + 3</answer>"
WRONG = " 50 first</think>\n<answer>50 - 7</answer>"


def test_every_public_name_can_be_imported():
    assert {type(getattr(countdown_rl, name)) for name in countdown_rl.__all__}
    assert set(countdown_rl.__all__) <= set(dir(countdown_rl))
    with pytest.raises(AttributeError, match="no_such_name"):
        countdown_rl.no_such_name  # noqa: B018


def test_judging_imports_neither_torch_nor_the_command_line():
    script = """
import sys, countdown_rl
from countdown_rl import grade, solve, Task
from countdown_rl.rewards import correct
assert grade("<answer>50 - 7 + 3</answer>", nums=[3, 7, 50], target=46).correct
assert all(solve(row["nums"], row["target"]).solutions for row in countdown_rl.generate(2))
print([name for name in ("torch", "typer", "rich", "transformers", "datasets") if name in sys.modules])
"""
    assert python(script) == "[]\n"


def test_a_completion_is_graded_by_the_fields_of_its_row():
    assert grade([{"role": "assistant", "content": RIGHT}], **PUZZLE).correct
    assert not grade(WRONG, **PUZZLE).correct
    assert grade(WRONG, **PUZZLE | {"rule": "at-most-once", "target": 43}).correct
    assert grade("<answer>18</answer>", task="gsm8k", question="6 * 3?", gold="18").correct


@pytest.mark.parametrize("operators", ["+, -", ["-", "+"], ("+", "-")])
def test_operators_are_text_or_a_sequence(operators):
    solved = solve([3, 7, 50], 46, operators=operators)
    assert solved == solve([3, 7, 50], 46, operators="+-")


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_generated_puzzles_are_of_the_split_and_sizes_that_were_asked_for(split):
    settings = {"sizes": {3: 1, 4: 3}, "targets": (20, 30), "numbers": (1, 50), "split": split}
    rows = list(generate(25, **settings))
    assert [row.split for row in rows] == [split] * 25
    assert all(len(row["nums"]) in (3, 4) and 20 <= row["target"] <= 30 for row in rows)
    assert list(islice(generate(34, **settings), 25)) == rows  # row i depends on the seed alone


def test_rewards_take_text_and_messages_and_ignore_other_columns():
    completions = [RIGHT, [{"role": "assistant", "content": WRONG}], "50 - 7 + 3"]
    puzzles = {key: [value] * 3 for key, value in PUZZLE.items()}
    columns = {**puzzles, "prompts": ["p"] * 3, "difficulty": 3, "trainer_state": None}
    assert correct(completions=completions, **columns) == [1.0, 0.0, 0.0]
    assert correct(completions, **columns, style=[None, None, "direct"]) == [1.0, 0.0, 1.0]
    assert format_reward(completions=completions, **columns) == [1.0, 1.0, 0.0]
    ids = [[1] * 9, [1] * 10, [1] * 11]
    assert length(10)(completions=completions, completion_ids=ids) == [0.0, -0.5, -0.5]
    with pytest.raises(InputError, match=r"^rule should be a list of 3"):
        correct(completions, **columns, rule=["at-most-once"])


def test_a_batch_may_mix_tasks_and_rules():
    columns = {"task": ["countdown", "gsm8k"], "nums": [[3, 7, 50], None], "target": [46, None]}
    columns |= {"question": [None, "6 * 3?"], "gold": [None, "18"]}
    assert correct(["<answer>50-7+3</answer>", "<answer>18</answer>"], **columns) == [1.0, 1.0]


@pytest.mark.parametrize(
    "truth", [json.dumps(PUZZLE), {"numbers": np.array([3, 7, 50]), "target": 46}]
)
def test_compute_score_has_the_form_of_verl(truth):
    assert compute_score("countdown", RIGHT, truth) == {"score": 1.0, "acc": 1.0, "format": 1.0}
    for text, score in ((WRONG, 0.1), ("no", 0.0)):
        graded = compute_score("countdown", text, truth, extra_info={}, format_score=0.1)
        assert graded["score"] == score


def closeness(grade, row, tokens):
    return tokens / 1000 + grade.correct


ROWS = list(generate(3))
TINY = "countdown-tiny"


@pytest.mark.parametrize(
    ("call", "options", "error", "words"),
    [
        (("merge", "adapter", "z"), {"base": "foo"}, UsageError, "base foo should be"),
        (("train", "no-such-model", ROWS, "z"), {}, ModelError, "no-such-model"),
        (("train", TINY, ROWS, "z"), {"keep": "best"}, UsageError, "eval-every"),
        (("train", TINY, [{"nums": [1]}], "z"), {}, InputError, "^data, line 1"),
        (("sft", TINY, [{"x": 1}], "z"), {}, InputError, "^demonstrations, line 1"),
        (("sft", TINY, ROWS, "z"), {"stile": "direct"}, UsageError, "no option stile"),
        (("evaluate", "random", 3), {}, InputError, "^rows should be a path or rows"),
        (("generate", 1), {"split": "dev"}, UsageError, "split 'dev' is not one of: train"),
    ],
)
def test_errors_of_the_stages_name_options_as_python_does(call, options, error, words, here):
    name, *arguments = call
    with pytest.raises(error, match=words):
        getattr(countdown_rl, name)(*arguments, **options)
    assert not [path for path in here.iterdir() if not path.name.endswith("-run")]


@pytest.mark.slow
def test_the_stages_go_from_rows_to_quantized_weights(here):
    rows = list(generate(40))
    right = [{**row, "completion": row.style.answer(row["solution"])} for row in rows]
    tuned = countdown_rl.sft("countdown-tiny", right, "start", max_steps=2, batch_size=4)
    assert tuned.facts["steps"] == 2
    steps = []
    settings = {"max_steps": 2, "prompts": 4, "num_generations": 4, "temperature": 1.5}
    settings |= {"max_completion_length": 48, "rewards": {"correct": 1.0, closeness: 0.5}}
    result = countdown_rl.train("start", iter(rows), "adapter", on_step=steps.append, **settings)
    assert [row.step for row in steps] == [1, 2]
    assert result.rows == steps
    again = countdown_rl.train("start", rows, "adapter", **settings)
    assert (again.facts, again.rows) == (result.facts, [])  # is there
    assert countdown_rl.merge("adapter", "merged").kind == "merged"
    assert countdown_rl.quantize("merged", "nf4").facts["format"] == "nf4"
    assert countdown_rl.publish("release", model="nf4").kind == "release"


def test_a_model_is_evaluated_and_compared_and_leaves_nothing_on_disk(here, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(here))
    rows = list(generate(3, split="test"))
    settings = {"samples": 2, "max_new_tokens": 8}
    result = evaluate("countdown-tiny", iter(rows), **settings)
    assert (result.metrics.decoding.temperature, set(result.metrics.pass_at)) == (1.0, {1, 2})
    graded = [sample.row["nums"] for sample in result.samples]
    assert graded == [row["nums"] for row in rows for _ in range(2)]
    other = evaluate("countdown-tiny", rows, samples=2, max_new_tokens=8, seed=1)
    compared = compare({"first": result, "second": other})
    assert [row["name"] for row in compared["results"]] == ["first", "second"]
    assert compare([result, other])["results"][1]["name"] == "countdown-tiny 2"
    assert list(here.rglob("*")) == []


def test_evaluations_are_written_where_that_is_asked_for(here):
    file, out = here / "rows.jsonl", here / "solver"
    file.write_text(json.dumps(PUZZLE) + "\n")
    assert [row["target"] for row in read_rows(str(file))] == [46]
    result = evaluate("solver", str(file), out=out)
    assert result.metrics.accuracy == 1.0
    assert json.loads((out / "details.json").read_text()) == result.metrics.to_json()
    notes = []
    assert evaluate("solver", file, out=out, on_note=notes.append).metrics == result.metrics
    assert "up to date" in notes[0]
    model = evaluate("countdown-tiny", file, max_new_tokens=4)
    assert model.metrics.decoding.greedy
    values = compare([out, model], out=here / "comparison")
    assert values == json.loads((here / "comparison" / "comparison.json").read_text())


def test_numpy_values_and_missing_cells_are_in_rows(here):
    nums = np.array(PUZZLE["nums"])
    result = evaluate("solver", [PUZZLE, {**PUZZLE, "rule": None, "nums": nums}], limit=np.int64(2))
    assert [sample.grade.correct for sample in result.samples] == [True, True]
    assert grade(RIGHT, nums=nums, target=np.int64(46)).correct
