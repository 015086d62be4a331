"""Tasks: those of this package, those of others, and the prompts that exported weights are compared on."""

import pytest

from countdown_rl.core.errors import InputError
from countdown_rl.core.manifest import Manifest
from countdown_rl.tasks import probe, registry
from countdown_rl.tasks.registry import parse_row
from tests.support import letters

TASKS = [registry.task(name) for name in registry.names()]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_a_task_describes_its_rows(task):
    row = parse_row({"task": task.name, **task.example})
    assert type(row) is task.row
    assert {"id", *task.example, "style"} <= task.fields.keys()
    assert row.messages()[-1]["role"] == "assistant" or row.style.model_opens
    assert (
        row.grade(f"</{row.style.tag}>\n<answer>{row.reference}</answer>").legal
        or task.name == "countdown"
    )
    assert row.headline.count("\n") == 0
    assert {"id": row.id, **row.kept}.items() >= {key: row[key] for key in task.example}.items()


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_probe_rows_are_of_the_task_and_begin_with_the_same_ones(task):
    rows = probe.rows(task, 8)
    assert rows[:3] == probe.rows(task, 3)
    assert len({row.headline for row in rows}) == 8
    assert all(type(row) is task.row for row in rows)


def test_probe_prompts_are_of_the_task_that_a_model_was_trained_on():
    def entry(kind, inputs=None, **contents):
        options = contents.pop("options", {})
        return Manifest.of(kind, options, inputs or {}, **contents).as_input()

    def first_prompt(model):
        return probe.conversations(model, 1)[0]

    puzzle, problem = (probe.rows(task, 1)[0].messages() for task in TASKS[:2])
    data = entry("data", options={"task": "gsm8k"})
    merged = entry(
        "merged",
        {"adapter": entry("adapter", {"data": data, "model": {"digest": "hub", "kind": "hub"}})},
    )
    assert first_prompt(merged) == problem
    # Rows in a file have no recorded options; training records their task.
    assert (
        first_prompt(
            entry("adapter", {"data": {"digest": "f", "file": "f"}}, facts={"task": "gsm8k"})
        )
        == problem
    )
    assert first_prompt({"digest": "hub", "kind": "hub"}) == puzzle


def test_a_task_of_another_package_is_found_by_its_entry_point(tmp_path):
    with letters.installed(
        tmp_path, letters="tests.support.letters:TASK", countdown="nowhere:TASK"
    ):
        assert registry.names() == ["countdown", "gsm8k", "letters"]
        assert registry.task("letters").row is letters.LettersRow
        assert (
            registry.task("countdown").title == "Countdown numbers puzzle"
        )  # names of this package are its own
        with pytest.raises(
            InputError, match="no task 'chess'; use countdown or gsm8k or letters, or install"
        ):
            parse_row({"task": "chess"})
    assert registry.names() == ["countdown", "gsm8k"]


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("nowhere:TASK", "cannot be imported"),
        ("tests.support.letters:LettersRow", "is no Task"),
        ("tests.support.letters:TASK", "the name"),
    ],
)
def test_an_entry_point_that_is_no_task_is_one_sentence(tmp_path, value, complaint):
    with letters.installed(tmp_path, other=value), pytest.raises(InputError, match=complaint):
        registry.task("other")
