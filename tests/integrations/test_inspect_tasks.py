"""Tasks for Inspect, run by Inspect itself."""

import pytest

from countdown_rl.core.errors import InputError
from countdown_rl.tasks import jsonl
from countdown_rl.tasks.registry import parse_row
from tests.support.command import python
from tests.support.graded import PROBLEM, PUZZLES, graded

ROWS = [
    {"id": "a", "nums": [3, 4], "target": 7},
    {"id": "b", "nums": [2, 3, 4], "target": 14},
    {"id": "c", "nums": [5, 6], "target": 5},
]


@pytest.fixture
def run(monkeypatch, tmp_path, installed):
    """Evaluate the task of this package on the given outputs, in the order of its rows."""
    inspect_ai = pytest.importorskip("inspect_ai")
    from inspect_ai.model import ModelOutput, _model, get_model

    monkeypatch.setattr(_model, "count_text_tokens", len)  # it downloads a tokenizer
    monkeypatch.chdir(tmp_path)

    def run(contents, **arguments):
        outputs = [ModelOutput.from_content("mockllm", content) for content in contents]
        model = get_model("mockllm/model", custom_outputs=outputs, memoize=False)
        settings = {"display": "none", "log_realtime": False}
        settings |= {"max_samples": 1}  # one at a time is in order
        (log,) = inspect_ai.eval("countdown_rl/exact", model=model, task_args=arguments, **settings)
        assert log.status == "success", log.error
        return log

    return run


@pytest.fixture
def data(tmp_path):
    jsonl.write_rows(tmp_path / "rows.jsonl", ROWS)
    return str(tmp_path / "rows.jsonl")


@pytest.mark.slow
@pytest.mark.parametrize("task", ["countdown", "gsm8k"])
def test_verdicts_of_inspect_are_those_of_the_command_grade(task, run, tmp_path):
    rows, grades, data = graded(task, tmp_path)
    log = run([row["completion"] for row in rows], data=str(data), prefill=True)
    scores = {sample.id: sample.scores["grade"] for sample in log.samples}
    assert len(scores) == len(rows) > (PUZZLES if task == "countdown" else 1)
    for row, grade in zip(rows, grades, strict=True):
        score = scores[row["id"]]
        assert {"id": row["id"], **score.metadata} == grade
        assert (score.value, score.answer) == ("C" if grade["correct"] else "I", grade["answer"])
    accuracy = log.results.scores[0].metrics["accuracy"].value
    assert accuracy == pytest.approx(sum(grade["correct"] for grade in grades) / len(grades))


@pytest.mark.slow
def test_only_the_first_rows_of_one_task_are_taken(run, data, tmp_path):
    (sample,) = run([""], data=data, n=1, prefill=True).samples
    turns = [{"role": turn.role, "content": turn.content} for turn in sample.input]
    assert turns == parse_row(ROWS[0]).messages()
    assert run([""], data=data, n=1).samples[0].input[-1].role == "user"
    jsonl.write_rows(tmp_path / "two.jsonl", [ROWS[0], PROBLEM])
    with pytest.raises(InputError, match="task"):
        run([], data=str(tmp_path / "two.jsonl"))


@pytest.mark.slow
def test_the_verdict_explains_the_score_and_reasoning_kept_apart_counts_as_thinking(run, data):
    from inspect_ai.model import ContentReasoning, ContentText

    contents = [
        [ContentReasoning(reasoning="so"), ContentText(text="<answer>3 + 4</answer>")],
        [ContentReasoning(reasoning="<answer>2 * 3 + 4</answer>"), ContentText(text="That is it.")],
        "<answer>5 + 6</answer>",
    ]
    scores = [sample.scores["grade"] for sample in run(contents, data=data).samples]
    assert [score.explanation for score in scores] == [
        "3 + 4 = 7",
        "no complete answer block after the thinking",
        "5 + 6 = 11, not 5",
    ]
    assert [score.metadata["strict_format"] for score in scores] == [True, False, False]


def test_the_grader_and_the_tasks_are_defined_without_torch(data):
    pytest.importorskip("inspect_ai")
    code = f"""
import sys
from countdown_rl.cli.grade import grade
from countdown_rl.integrations import inspect_tasks
assert len(inspect_tasks.exact(data={data!r}).dataset) == 3
print(sorted({{"torch", "transformers", "numba"}} & set(sys.modules)))
"""
    assert python(code).splitlines()[-1] == "[]"
