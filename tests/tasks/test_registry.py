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
    assert row.grade(row.style.answer(row.right_answer)).correct
    assert row.kept.items() >= task.example.items()


def test_probe_prompts_are_of_the_task_that_a_model_was_trained_on():
    def adapter(data, **facts):
        return Manifest.of("adapter", {}, {"data": data, "model": hub}, facts=facts).as_input()

    hub = {"digest": "hub", "kind": "hub"}
    data = Manifest.of("data", {"task": "gsm8k"}, {}).as_input()
    merged = Manifest.of("merged", {}, {"adapter": adapter(data)}).as_input()
    # Rows in a file have no recorded options; training records their task.
    of_file = adapter({"digest": "f", "file": "f"}, task="gsm8k")
    puzzle, problem = (probe.rows(task, 1)[0].messages() for task in TASKS[:2])
    for model, prompt in ((merged, problem), (of_file, problem), (hub, puzzle)):
        assert probe.conversations(model, 1) == [prompt]


def test_a_task_of_another_package_is_found_by_its_entry_point(tmp_path):
    with letters.installed(
        tmp_path, letters="tests.support.letters:TASK", countdown="nowhere:TASK"
    ):
        assert registry.names() == ["countdown", "gsm8k", "letters"]
        assert registry.task("letters").row is letters.LettersRow
        # Names of this package are its own.
        assert registry.task("countdown").title == "Countdown numbers puzzle"
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
