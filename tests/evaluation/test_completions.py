"""Completions made elsewhere: files of other tools, read and judged."""

import json
from pathlib import Path

import pytest

from countdown_rl import compare, evaluate
from countdown_rl.core.errors import CountdownError
from countdown_rl.evaluation import metrics
from countdown_rl.evaluation.caveats import caveats
from countdown_rl.tasks import jsonl
from countdown_rl.tasks.countdown import solver
from countdown_rl.tasks.countdown.expression import GRAMMAR_VERSION
from countdown_rl.tasks.registry import parse_row

pytestmark = pytest.mark.usefixtures("here")

FOLDER = Path(__file__).with_name("data")
ROWS = [
    {"id": "a", "nums": [3, 4], "target": 7},
    {"id": "b", "nums": [2, 3, 4], "target": 14},
    {"id": "c", "nums": [5, 6, 7], "target": 18},
]
RIGHT = ["<answer>3 + 4</answer>", "<answer>2 + 3 * 4</answer>", "<answer>5 + 6 + 7</answer>"]
WRONG = "<answer>1</answer>"
#: Of the first row both are right, of the second one, of the third none.
TEXTS = [[RIGHT[0], RIGHT[0]], [RIGHT[1], WRONG], [WRONG, "no answer"]]
GSM = {"task": "gsm8k", "question": "?", "gold": "1"}


def prompt(row):
    return parse_row(row).to_trl()["prompt"]


def chat(text):
    return [{"role": "assistant", "content": text}]


def batch(row, texts):
    choices = []
    for index, text in enumerate(texts):
        reason = "length" if text is texts[-1] and index else "stop"
        choices.append({"index": index, "message": chat(text)[0], "finish_reason": reason})
    body = {"choices": choices, "usage": {"completion_tokens": 9}}
    response = {"status_code": 200, "request_id": "x", "body": body}
    return {"id": "y", "custom_id": row["id"], "response": response, "error": None}


#: By form, the records of a file: lines of one completion each, or of all.
LINES = {
    "plain": lambda row, texts: [{**row, "completion": text} for text in texts],
    "lists": lambda row, texts: [{**row, "responses": texts}],
    "by-id": lambda row, texts: [{"id": row["id"], "response": text} for text in texts],
    "openai-batch": lambda row, texts: [batch(row, texts)],
}


@pytest.fixture
def rows():
    return written(ROWS, "rows.jsonl")


def written(lines, name="made.jsonl") -> str:
    jsonl.write_rows(Path(name), lines)
    return name


def of_tool(tool) -> str:
    lines = []
    for row, texts in zip(ROWS, TEXTS, strict=True):
        lines += LINES[tool](row, texts)
    return written(lines, f"{tool}.jsonl")


@pytest.mark.parametrize("tool", LINES)
@pytest.mark.parametrize("known", [True, False])
def test_files_of_other_tools_are_judged(tool, known, rows):
    file = of_tool(tool)
    if not known and tool in ("by-id", "openai-batch"):  # an id alone does not name a puzzle
        with pytest.raises(CountdownError, match=r"--data|\bid\b|rows"):
            evaluate(completions=file)
        return
    result = evaluate(completions=file, rows=rows if known else None)
    assert [sample.grade.correct for sample in result.samples] == [True] * 3 + [False] * 3
    metrics = result.metrics
    assert (metrics.n, metrics.accuracy) == (3, 0.5)
    assert metrics.pass_at[2].share == pytest.approx(2 / 3, abs=1e-6)
    assert metrics.truncated == (0.5 if tool == "openai-batch" else None)
    assert metrics.mean_tokens is metrics.tokens is None


def test_the_files_of_two_versions_of_verifiers_are_judged_as_verifiers_did():
    result = evaluate(completions=FOLDER / "verifiers-0.1.9.jsonl")  # written by verifiers
    assert (len(result.samples), result.metrics.accuracy) == (6, 1)
    file = FOLDER / "verifiers-0.4.0.jsonl"  # written by verifiers
    samples = evaluate(completions=file).samples
    episodes = [json.loads(line) for line in file.read_text().splitlines()]
    rewards = [episode["traces"][0]["rewards"]["correct"]["score"] for episode in episodes]
    assert [sample.grade.correct for sample in samples] == rewards == [1, 1, 1, 0]
    assert [sample.truncated for sample in samples] == [False, False, False, True]
    assert [sample.tokens for sample in samples] == [10, 3, 5, 9]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["eval", "json"])
def test_a_log_of_inspect_is_judged_as_inspect_did(form, rows, monkeypatch, installed):
    inspect_ai = pytest.importorskip("inspect_ai")
    from inspect_ai.log import EvalError
    from inspect_ai.model import ModelOutput, _model, get_model

    from countdown_rl.integrations.inspect_tasks import exact

    monkeypatch.setattr(_model, "count_text_tokens", len)
    outputs = []
    for right, other in TEXTS:
        outputs.append(ModelOutput.from_content("mockllm", right, stop_reason="stop"))
        outputs.append(ModelOutput.from_content("mockllm", other, stop_reason="max_tokens"))
    model = get_model("mockllm/model", custom_outputs=outputs, memoize=False)
    options = {"log_format": form, "log_dir": "logs", "display": "none", "log_realtime": False}
    (log,) = inspect_ai.eval(exact(data=rows), model=model, epochs=2, max_samples=1, **options)
    assert log.status == "success", log.error
    metrics = evaluate(completions=next(Path("logs").iterdir())).metrics
    counted = sum(sample.scores["grade"].value == "C" for sample in log.samples)
    assert round(metrics.accuracy * 6) == counted
    assert metrics.truncated == 0.5
    assert metrics.mean_tokens > 0
    log.samples[1].error = EvalError(message="timeout", traceback="", traceback_ansi="")
    inspect_ai.log.write_eval_log(log, failed := f"failed.{form}")
    result = evaluate(completions=failed)
    assert (len(result.samples), result.metrics.reasons["failed"]) == (6, 1)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([{"nums": [3, 4], "target": 7}], "line 1.*completion"),
        ([{"completion": "x"}], "line 1.*certain"),
        ([{**ROWS[0], "id": "b", "completion": "x"}], "id is that of 2 3 4"),
        ([{"id": "a", "completion": "x", "prompt": prompt({**ROWS[0], "rule": "at-most-once"})}], "by other rules"),
        ([{**ROWS[0], "prompt": prompt({**ROWS[0], "operators": "+-"}), "completion": "x"}], "not in --data"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_judged_names_the_line_and_writes_nothing(lines, words, rows):
    with pytest.raises(CountdownError, match=words):
        evaluate(completions=written(lines), rows=rows, out="out")
    assert not Path("out").exists()


def test_rows_of_two_tasks_or_of_none_are_refused_with_their_line():
    correct, problem = {**ROWS[0], "completion": RIGHT[0]}, GSM | {"completion": "1"}
    cases = (([{"config": 1}, correct], "line 1"), ([correct, problem], "line 2.*gsm8k"))
    for lines, words in cases:
        with pytest.raises(CountdownError, match=words):
            evaluate(completions=written(lines))


PUZZLE = {"nums": [2, 3, 4], "target": 2}


@pytest.mark.parametrize(
    ("record", "rule", "fault"),
    [
        (PUZZLE, "at-most-once", ""),
        (PUZZLE | {"rule": "at-most-once"}, None, ""),
        (PUZZLE | {"rule": "television"}, "at-most-once", "is television.*leave one"),
        (GSM, "once", "gsm8k have no rule"),
    ],
)
def test_the_rule_is_an_option_for_what_does_not_state_it(record, rule, fault):
    file = written([record | {"completion": "<answer>4/2</answer>"}])
    if fault:
        with pytest.raises(CountdownError, match=fault):
            evaluate(completions=file, rule=rule)
    else:
        assert evaluate(completions=file, rule=rule).metrics.accuracy == 1


@pytest.mark.parametrize(
    ("style", "layout"),
    [
        ("boxed", r"Thus \boxed{{{}}}."),
        ("answer_line", "6 = 2 * 3\n**Answer: {}**"),
        ("prefilled", "</think>\n<answer>{}</answer>"),
    ],
)
def test_answers_in_another_style_are_told_with_their_option(run_command, style, layout):
    stated = {"style": "direct"} if style == "prefilled" else {}
    lines = []
    for row, answer in zip(ROWS, RIGHT, strict=True):
        lines.append({**row, **stated, "response": layout.format(answer[8:-9])})
    words = ("grade", written(lines))
    assert f"--style {style} finds one in 3 of 3" in run_command(*words).err
    assert json.loads(run_command(*words, "--style", style, "--json").out)["correct"] == 3


def test_unequal_numbers_of_completions_are_averaged_and_told():
    lines = [{**ROWS[0], "completion": [RIGHT[0], WRONG]}, {**ROWS[1], "completion": WRONG}]
    result = evaluate(completions=written(lines))
    metrics = result.metrics
    assert (metrics.accuracy, metrics.pass_at, metrics.decoding.samples) == (0.25, {}, None)
    assert (metrics.n, metrics.correct, metrics.majority) == (2, 1, None)
    assert "have 1 to 2 completions" in " ".join(caveats({"m": result}))


def test_only_puzzles_that_no_completion_solves_are_searched_for_a_solution(monkeypatch):
    searched = []
    solve = solver.solve
    monkeypatch.setattr(solver, "solve", lambda puzzle: searched.append(puzzle) or solve(puzzle))
    monkeypatch.setattr(metrics, "SLOW", 0)
    notes = []
    solved = {"nums": [81, 82], "target": 163, "completion": "<answer>81 + 82</answer>"}
    lines = [solved, {"nums": [83, 84], "target": 1000, "completion": WRONG}]
    evaluate(completions=written(lines), on_note=notes.append)
    assert [puzzle.target for puzzle in searched] == [1000]
    assert len([note for note in notes if "Searching" in note]) == 1


def test_a_suite_counts_missing_rows_as_wrong_and_lists_its_tiers_in_order():
    name = "suite:countdown-bench-1"
    suite = jsonl.read_rows(jsonl.test_file(Path(name)))
    chosen = [row for row in suite if row["tier"] == "impossible"][:1] + suite[:1]
    lines = [{"id": row.id, "completion": "<answer>impossible</answer>"} for row in chosen]
    metrics = evaluate(completions=written(lines), rows=name).metrics
    assert (metrics.n, metrics.of, metrics.reasons["missing"]) == (1750, None, 1748)
    assert metrics.grammar == GRAMMAR_VERSION
    assert list(metrics.groups["tier"]) == ["3", "4", "5", "6", "needs-mul", "rare", "impossible"]


def test_the_command_writes_an_evaluation_that_the_others_read(rows, run_command):
    for tool in ("plain", "lists"):
        words = ("eval", "--completions", of_tool(tool), "--data", rows, "--out", tool)
        run_command(*words)
    assert "up to date" in run_command(*words).err
    for option in (("--style", "direct"), ("--rule", "television")):
        assert "did not make" in run_command(*words, *option, code=1).err
    run_command("samples", "lists", "--errors")
    run_command("collect", "lists", "--out", "kept")
    run_command("report", "--result", "lists", "--out", "page.html")
    assert compare(["plain", "lists"], out="c")["results"][1]["against"]["difference"] == 0
    assert "not stated" in Path("c/comparison.md").read_text()
