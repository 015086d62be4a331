"""Completions made elsewhere: files of other tools, read and judged."""

import json
from pathlib import Path

import pytest

from countdown_rl import compare, evaluate
from countdown_rl.core.errors import CountdownError, InputError
from countdown_rl.evaluation import evaluate as evaluation
from countdown_rl.evaluation import results
from countdown_rl.evaluation.caveats import caveats
from countdown_rl.evaluation.config import EvalOptions
from countdown_rl.tasks import jsonl
from countdown_rl.tasks.countdown.expression import GRAMMAR_VERSION
from countdown_rl.tasks.registry import parse_row
from tests.support.command import status

ROWS = [
    {"id": "a", "nums": [3, 4], "target": 7},
    {"id": "b", "nums": [2, 3, 4], "target": 14},
    {"id": "c", "nums": [5, 6, 7], "target": 18},
]
RIGHT = ["<answer>3 + 4</answer>", "<answer>2 + 3 * 4</answer>", "<answer>5 + 6 + 7</answer>"]
WRONG = "<answer>1</answer>"
#: Of the first row both are right, of the second one, of the third none.
TEXTS = [[RIGHT[0], RIGHT[0]], [RIGHT[1], WRONG], [WRONG, "no answer"]]
TINYZERO = (
    "Using the numbers {nums}, create an equation that equals {target}. You can use basic arithmetic operations "
    "(+, -, *, /) and each number can only be used once. Show your work in <think> </think> tags. And return the "
    "final answer in <answer> </answer> tags, for example <answer> (1 + 2) / 3 </answer>."
)


def prompt(row):
    return parse_row(row).to_trl()["prompt"]


def chat(text):
    return [{"role": "assistant", "content": text}]


def user(text):
    return [{"role": "user", "content": text}]


def batch(row, texts):
    choices = [
        {"index": i, "message": chat(text)[0], "finish_reason": "stop"}
        for i, text in enumerate(texts)
    ]
    choices[-1]["finish_reason"] = "length"
    response = {
        "status_code": 200,
        "request_id": "x",
        "body": {"choices": choices, "usage": {"completion_tokens": 9}},
    }
    return {"id": "y", "custom_id": row["id"], "response": response, "error": None}


#: By tool, the records of a file: lines of one completion each, or of all.
LINES = {
    "plain": lambda row, texts: [{**row, "completion": text} for text in texts],
    "lists": lambda row, texts: [{**row, "responses": texts}],
    "by-id": lambda row, texts: [{"id": row["id"], "response": text} for text in texts],
    "trl": lambda row, texts: [
        {
            "step": 1,
            "prompt": prompt(row),
            "completion": chat(text),
            "correct": 1.0,
            "advantage": 0.0,
        }
        for text in texts
    ],
    "verl": lambda row, texts: [
        {
            "input": "<|im_start|>user\n" + prompt(row)[-1]["content"] + "<|im_end|>",
            "output": text,
            "gts": json.dumps(row),
            "score": 1,
        }
        for text in texts
    ],
    "lm-eval": lambda row, texts: [
        {"doc_id": 0, "target": "x", "arguments": {"gen_args_0": {"arg_0": "u"}}, "resps": [texts]}
        | {
            "doc": {
                "row": json.dumps(row),
                "reference": "x",
                "system": "s",
                "user": "u",
                "prefill": "",
            }
        }
        | {"filtered_resps": texts[:1]}
    ],
    "openai-batch": lambda row, texts: [batch(row, texts)],
    "tinyzero": lambda row, texts: [
        {"prompt": TINYZERO.format(**row), "response": text, "scores": [1.0, 0.1]} for text in texts
    ],
}


@pytest.fixture
def rows(tmp_path):
    jsonl.write_rows(tmp_path / "rows.jsonl", ROWS)
    return tmp_path / "rows.jsonl"


def written(tmp_path, tool):
    records = [
        record for row, texts in zip(ROWS, TEXTS, strict=True) for record in LINES[tool](row, texts)
    ]
    file = tmp_path / f"{tool}.jsonl"
    jsonl.write_rows(file, records)
    return file


@pytest.mark.parametrize("tool", LINES)
@pytest.mark.parametrize("known", [True, False])
def test_files_of_other_tools_are_judged(tool, known, rows, tmp_path):
    file = written(tmp_path, tool)
    if not known and tool in ("by-id", "openai-batch"):  # an id alone does not name a puzzle
        with pytest.raises(CountdownError, match=r"--data|\bid\b|rows"):
            evaluate(completions=file)
        return
    result = evaluate(completions=file, rows=rows if known else None)
    assert [sample.grade.correct for sample in result.samples] == [
        True,
        True,
        True,
        False,
        False,
        False,
    ]
    assert (result.metrics.n, result.metrics.accuracy) == (3, 0.5)
    assert result.metrics.pass_at[2].share == pytest.approx(2 / 3, abs=1e-6)
    ends = tool == "openai-batch"
    assert result.metrics.truncated == (0.5 if ends else None)
    assert result.metrics.mean_tokens is result.metrics.tokens is None


def test_a_file_of_verifiers_is_judged():
    file = Path(__file__).with_name("data") / "verifiers-0.1.9.jsonl"  # written by verifiers
    result = evaluate(completions=file)
    expected = [
        "\\/3<" in line or "answer>1<" not in line for line in file.read_text().splitlines()
    ]
    assert len(result.samples) == len(expected) == 6
    assert result.metrics.accuracy == 1.0


def test_the_traces_of_verifiers_are_judged_as_verifiers_did(tmp_path):
    file = Path(__file__).with_name("data") / "verifiers-0.4.0.jsonl"  # written by verifiers
    result = evaluate(completions=file)
    episodes = [json.loads(line) for line in file.read_text().splitlines()]
    rewards = [episode["traces"][0]["rewards"]["correct"]["score"] for episode in episodes]
    assert [sample.grade.correct for sample in result.samples] == rewards == [1, 1, 1, 0]
    assert [sample.truncated for sample in result.samples] == [False, False, False, True]
    assert [sample.tokens for sample in result.samples] == [10, 3, 5, 9]
    jsonl.write_rows(tmp_path / "failed.jsonl", [episodes[0] | {"traces": []}])
    with pytest.raises(CountdownError, match=r"line 1.*one trace"):
        evaluate(completions=tmp_path / "failed.jsonl")


@pytest.mark.slow
@pytest.mark.parametrize("form", ["eval", "json"])
def test_a_log_of_inspect_is_judged_as_inspect_did(form, rows, tmp_path, monkeypatch, installed):
    inspect_ai = pytest.importorskip("inspect_ai")
    from inspect_ai.log import EvalError
    from inspect_ai.model import ModelOutput, _model, get_model

    from countdown_rl.integrations.inspect_tasks import exact

    monkeypatch.setattr(_model, "count_text_tokens", len)
    outputs = [
        ModelOutput.from_content("mockllm", text, stop_reason=reason)
        for texts in TEXTS
        for text, reason in zip(texts, ("stop", "max_tokens"), strict=True)
    ]
    model = get_model("mockllm/model", custom_outputs=outputs, memoize=False)
    options = {
        "log_format": form,
        "log_dir": str(tmp_path / "logs"),
        "display": "none",
        "log_realtime": False,
    }
    (log,) = inspect_ai.eval(exact(data=str(rows)), model=model, epochs=2, max_samples=1, **options)
    assert log.status == "success", log.error
    result = evaluate(completions=next((tmp_path / "logs").iterdir()))
    counted = sum(sample.scores["grade"].value == "C" for sample in log.samples)
    assert round(result.metrics.accuracy * 6) == counted
    assert result.metrics.truncated == 0.5
    assert result.metrics.mean_tokens > 0
    log.samples[1].error = EvalError(message="timeout", traceback="", traceback_ansi="")
    inspect_ai.log.write_eval_log(log, failed := str(tmp_path / f"failed.{form}"))
    result = evaluate(completions=failed)
    assert (len(result.samples), result.metrics.reasons["failed"]) == (6, 1)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([{"nums": [3, 4], "target": 7}], "line 1.*completion"),
        ([{"completion": "x"}], "line 1.*certain"),
        ([{**ROWS[0], "response": None}], "line 1.*`response` is null"),
        ([{**ROWS[0], "completion": "x"}, {**ROWS[1], "completion": 3}], "line 2"),
        ([{**ROWS[0], "id": "b", "completion": "x"}], "id is that of 2 3 4"),
        ([{**ROWS[0], "prompt": TINYZERO.format(nums=[3, 4], target=8), "completion": "x"}], "another puzzle than 3 4"),
        ([{**ROWS[0], "problem": TINYZERO.format(nums=[3, 4], target=8), "completion": "x"}], "another puzzle"),
        ([{"id": "a", "prompt": prompt({**ROWS[0], "rule": "at-most-once"}), "completion": "x"}], "by other rules"),
        ([{**ROWS[0], "prompt": prompt({**ROWS[0], "operators": "+-"}), "completion": "x"}], "not in --data"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_judged_names_the_line_and_writes_nothing(
    lines, words, rows, tmp_path
):
    jsonl.write_rows(tmp_path / "made.jsonl", lines)
    with pytest.raises(CountdownError, match=words):
        evaluate(completions=tmp_path / "made.jsonl", rows=rows, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("record", "options", "grades"),
    [
        ({"nums": [2, 3, 4], "target": 2}, {"rule": "at-most-once"}, ""),
        ({"nums": [2, 3, 4], "target": 2, "rule": "at-most-once"}, {}, ""),
        (
            {"nums": [2, 3, 4], "target": 2, "rule": "television"},
            {"rule": "at-most-once"},
            "is television.*leave one",
        ),
        ({"nums": [2, 3, 4], "target": 2}, {"rule": "once"}, "no rule 'once'; take one of"),
        ({"task": "gsm8k", "question": "?", "gold": "1"}, {"rule": "once"}, "gsm8k have no rule"),
    ],
)
def test_rule_and_operators_are_options_for_what_does_not_state_them(
    record, options, grades, tmp_path, monkeypatch
):
    jsonl.write_rows(tmp_path / "made.jsonl", [record | {"completion": "<answer>4/2</answer>"}])
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    done = status(
        monkeypatch,
        "grade",
        str(tmp_path / "made.jsonl"),
        *words,
        "--out",
        str(tmp_path / "grades.jsonl"),
    )
    if grades and " " in grades:
        assert done in (1, 2)
        with pytest.raises(CountdownError, match=grades):
            evaluate(completions=tmp_path / "made.jsonl", **options)
    else:
        result = evaluate(completions=tmp_path / "made.jsonl", **options)
        assert json.loads((tmp_path / "grades.jsonl").read_text())["reason"] == grades
        assert [sample.grade.reason for sample in result.samples] == [grades]


@pytest.mark.parametrize(
    ("style", "layout"),
    [
        ("direct", "{}"),
        ("boxed", r"Thus \boxed{{{}}}."),
        ("answer_line", "6 = 2 * 3\n**Answer: {}**"),
        ("prefilled", "</think>\n<answer>{}</answer>"),
    ],
)
def test_answers_in_another_style_are_told_with_their_option(
    tmp_path, run_command, capsys, monkeypatch, style, layout
):
    stated = {"style": "direct"} if style == "prefilled" else {}
    answers = [text[8:-9] for text in RIGHT]
    lines = [
        {**row, **stated, "response": layout.format(answer)}
        for row, answer in zip(ROWS, answers, strict=True)
    ]
    jsonl.write_rows(tmp_path / "made.jsonl", lines)
    for command in (
        ("grade", "made.jsonl"),
        ("eval", "--completions", "made.jsonl", "--out", "out"),
    ):
        monkeypatch.chdir(tmp_path)
        said = run_command(*command).err
        assert f"--style {style} finds one in {len(lines)} of {len(lines)}" in said
        assert "sft" not in said
        assert (
            status(
                monkeypatch,
                *command,
                "--style",
                style,
                "--json",
                *["--overwrite"][: len(command) - 2],
            )
            == 0
        )
        assert json.loads(capsys.readouterr().out)["correct"] == 3


def test_the_lines_of_several_filters_are_one_completion(tmp_path, run_command):
    lines = [
        line | {"filter": name}
        for row in ROWS
        for line in LINES["lm-eval"](row, TEXTS[0])
        for name in "ab"
    ]
    jsonl.write_rows(tmp_path / "made.jsonl", lines)
    assert len(evaluate(completions=tmp_path / "made.jsonl").samples) == 6
    assert json.loads(run_command("grade", str(tmp_path / "made.jsonl"), "--json").out)["n"] == 6


def test_the_denominator_is_recorded(rows, tmp_path):
    jsonl.write_rows(tmp_path / "made.jsonl", [{"id": "b", "completion": RIGHT[1]}])
    result = evaluate(completions=tmp_path / "made.jsonl", rows=rows, out=tmp_path / "out")
    assert (result.metrics.n, result.metrics.of, result.metrics.accuracy) == (1, 3, 1)
    assert json.loads((tmp_path / "out" / "metrics.json").read_text())["of"] == 3
    assert "1 of the 3 puzzles" in " ".join(caveats({"out": result}))


def test_unequal_numbers_of_completions_are_averaged_and_told(tmp_path):
    lines = [{**ROWS[0], "completion": [RIGHT[0], WRONG]}, {**ROWS[1], "completion": WRONG}]
    jsonl.write_rows(tmp_path / "made.jsonl", lines)
    result = evaluate(completions=tmp_path / "made.jsonl")
    metrics = result.metrics
    assert (metrics.accuracy, metrics.pass_at, metrics.decoding.samples) == (0.25, {}, None)
    assert "have 1 to 2 completions" in " ".join(caveats({"m": result}))


def test_a_suite_counts_missing_rows_as_wrong_and_lists_its_tiers_in_order(tmp_path):
    suite = jsonl.read_rows(jsonl.test_file(Path("suite:countdown-bench-1")))
    chosen = [row for row in suite if row["tier"] == "impossible"][:1] + suite[:1]
    lines = [{"id": row.id, "completion": "<answer>impossible</answer>"} for row in chosen]
    jsonl.write_rows(tmp_path / "made.jsonl", lines)
    metrics = evaluate(completions=tmp_path / "made.jsonl", rows="suite:countdown-bench-1").metrics
    assert (metrics.n, metrics.of, metrics.reasons["missing"], metrics.grammar) == (
        1750,
        None,
        1748,
        GRAMMAR_VERSION,
    )
    assert list(metrics.groups["tier"]) == ["3", "4", "5", "6", "needs-mul", "rare", "impossible"]


@pytest.mark.parametrize("before", [{}, {"field": ("completion=completion",)}])
def test_every_option_on_completions_decides_whether_it_is_the_same_evaluation(
    before, rows, tmp_path
):
    jsonl.write_rows(tmp_path / "made.jsonl", [{"id": "b", "completion": RIGHT[1]}])
    paths = {
        "out": tmp_path / "out",
        "completions": tmp_path / "made.jsonl",
        "data": rows,
        "overwrite": False,
    }
    made = evaluation.evaluate(EvalOptions(**before), **paths)
    assert evaluation.evaluate(EvalOptions(**before), **paths).metrics == made.metrics
    for other in ({"style": "direct"}, {"rule": "television"}):
        with pytest.raises(CountdownError, match="did not make"):
            evaluation.evaluate(EvalOptions(**other), **paths)


def test_a_record_that_cannot_be_graded_is_refused(tmp_path):
    problem = {"task": "gsm8k", "question": "?", "gold": "1", "completion": "1"}
    lines = [{"config": 1}, {**ROWS[0], "completion": RIGHT[0]}, problem]
    jsonl.write_rows(tmp_path / "made.jsonl", lines)
    with pytest.raises(CountdownError, match="line 1"):
        evaluate(completions=tmp_path / "made.jsonl")
    jsonl.write_rows(tmp_path / "made.jsonl", lines[1:])
    with pytest.raises(CountdownError, match=r"line 2.*gsm8k.*countdown"):
        evaluate(completions=tmp_path / "made.jsonl")
    with pytest.raises(CountdownError, match="does not exist"):
        evaluate(completions=tmp_path / "missing.jsonl")


def test_the_command_writes_an_evaluation_that_the_others_read(rows, here, monkeypatch, capsys):
    for tool in ("plain", "trl"):
        file = str(written(here, tool))
        words = ("--completions", file, "--data", str(rows), "--out", tool)
        assert status(monkeypatch, "eval", *words) == 0
        assert status(monkeypatch, "eval", *words) == 0
    assert "up to date" in capsys.readouterr().err
    for command in (
        "samples trl --errors",
        "samples trl",
        "compare plain trl --out c",
        "collect trl --out kept",
    ):
        assert status(monkeypatch, *command.split()) == 0, command
    assert "not stated" in Path("c/comparison.md").read_text()
    assert status(monkeypatch, "report", "--result", "trl", "--out", "page.html") == 0
    assert results.read(Path("trl")).metrics.model.kind == "completions"
    assert compare(["plain", "trl"])["results"][1]["against_first"]["difference"] == 0


def test_rows_of_two_tasks_are_no_data_set(tmp_path):
    jsonl.write_rows(
        tmp_path / "data.jsonl", [ROWS[0], {"task": "gsm8k", "question": "1 + 1?", "gold": "2"}]
    )
    with pytest.raises(
        InputError, match=r"line 2: it is of the task gsm8k, others are of countdown"
    ):
        jsonl.read_rows(tmp_path / "data.jsonl")
