"""Tasks: those of this package, those of others, and the prompts that exported weights are compared on."""

from importlib.metadata import EntryPoint

import pytest

from countdown_rl.core.errors import InputError
from countdown_rl.tasks import probe, registry
from countdown_rl.tasks.registry import parse_row
from countdown_rl.tasks.task import Row, Task

TASKS = [registry.task(name) for name in registry.names()]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_a_task_describes_its_rows(task):
    row = parse_row({"task": task.name, **task.example})
    assert type(row) is task.row
    assert {"id", *task.example, "style"} <= task.fields.keys()
    assert row.messages()[-1]["role"] == "assistant" or row.style.model_opens
    assert row.grade(f"</{row.style.tag}>\n<answer>{row.reference}</answer>").legal or task.name == "countdown"
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
        return {"digest": kind, "manifest": {"kind": kind, "inputs": inputs or {}, **contents}}

    def first_prompt(model):
        return probe.conversations(model, 1)[0]

    puzzle, problem = (probe.rows(task, 1)[0].messages() for task in TASKS[:2])
    data = entry("data", options={"task": "gsm8k"})
    merged = entry("merged", {"adapter": entry("adapter", {"data": data, "model": {"digest": "hub", "kind": "hub"}})})
    assert first_prompt(merged) == problem
    # Rows in a file have no recorded options; training records their task.
    assert first_prompt(entry("adapter", {"data": {"digest": "f", "file": "f"}}, facts={"task": "gsm8k"})) == problem
    assert first_prompt({"digest": "hub", "kind": "hub"}) == puzzle


class WordRow(Row):
    task = "words"
    messages = judge = reference = headline = identity = None


class Distribution:
    """Entry points of another package."""

    def __init__(self, **values):
        self.entries = [EntryPoint(name, value, registry.GROUP) for name, value in values.items()]

    def __call__(self, group):
        assert group == registry.GROUP
        return self.entries


WORDS = Task("words", "Words", "Write a word.", WordRow, {}, {})


@pytest.fixture
def others(monkeypatch):
    """Let another package have entry points."""

    def install(**values):
        monkeypatch.setattr(registry, "entry_points", Distribution(**values))

    registry._others.cache_clear()
    registry.task.cache_clear()
    yield install
    registry._others.cache_clear()
    registry.task.cache_clear()


def test_a_task_of_another_package_is_found_by_its_entry_point(others):
    others(words=f"{__name__}:WORDS", countdown="nowhere:TASK")
    assert registry.names() == ["countdown", "gsm8k", "words"]
    assert registry.task("words").row is WordRow
    assert registry.task("countdown").title == "Countdown numbers puzzle"  # names of this package are its own


@pytest.mark.parametrize(
    ("value", "complaint"),
    [("nowhere:TASK", "cannot be imported"), (f"{__name__}:WordRow", "is no Task"), (f"{__name__}:WORDS", "the name")],
)
def test_an_entry_point_that_is_no_task_is_one_sentence(others, value, complaint):
    others(other=value)
    with pytest.raises(InputError, match=complaint):
        registry.task("other")


def test_an_unknown_task_is_refused_with_those_that_there_are(others):
    others(words=f"{__name__}:WORDS")
    with pytest.raises(InputError, match="no task 'chess'; use countdown or gsm8k or words, or install"):
        parse_row({"task": "chess"})
