"""Records of other tools: the puzzle, the completion and the prompt, or a refusal with the option to give."""

import json
import re

import pytest

from countdown_rl.core.errors import CountdownError, UsageError
from countdown_rl.evaluation.completions import Reader
from countdown_rl.tasks import jsonl, records
from countdown_rl.tasks.registry import parse_row

RIGHT, WRONG = "<think>\n50 - 7</think>\n<answer>50 - 7 + 3</answer>", "<answer>1</answer>"
PUZZLE = {"nums": [3, 7, 50], "target": 46}
NUMBERS = {"numbers": [3, 7, 50], "target": 46}
ROW = parse_row(PUZZLE)
TINYZERO = (
    "Using the numbers [3, 7, 50], create an equation that equals 46. You can use basic arithmetic operations "
    "(+, -, *, /) and each number can only be used once. Show your work in <think> </think> tags. And return the "
    "final answer in <answer> </answer> tags, for example <answer> (1 + 2) / 3 </answer>."
)
BASE = (
    "A conversation between User and Assistant. The user asks a question, and the Assistant solves it. The assistant "
    f"first thinks.\nUser: {TINYZERO}\nAssistant: Let me solve this step by step.\n<think>"
)
GYM = "Find a way to make 46 using some or all of these numbers: 3, 7, 50.\nEach number can only be used once."


def turn(role, text):
    return {"role": role, "content": text}


def user(text):
    return [turn("user", text)]


def chat(text):
    return [turn("assistant", text)]


def rendered(system, text):
    return f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


TRACE = {"nodes": [{"message": turn("user", "?")}, {"message": chat(RIGHT)[0], "sampled": True}]}
PART = {"type": "output_text", "text": RIGHT}
RESPONSE = {"choices": [{"message": chat(RIGHT)[0], "finish_reason": "length"}]}
MESSAGE = {"type": "message", "role": "assistant", "content": [PART]}
OUTPUT = {"output": [{"type": "reasoning"}, MESSAGE]}

#: A record or more, the fields that the user states, and the completions that are correct.
READ = [
    ({"nums": "(3.0, 7.0, 50.0)", "target": "46.0", "rule": "", "response": RIGHT}, (), [True]),
    ({**PUZZLE, "completion": json.dumps([RIGHT, WRONG])}, (), [True, False]),
    ({**PUZZLE, "completions": [chat(RIGHT), chat(WRONG)]}, (), [True, False]),
    ({**PUZZLE, "messages": user("?") + chat(RIGHT)}, (), [True]),
    (
        {
            **PUZZLE,
            "conversations": [{"from": "human", "value": "?"}, {"from": "gpt", "value": RIGHT}],
        },
        (),
        [True],
    ),
    (
        {**PUZZLE, "completion": RIGHT, "generated_text": WRONG},
        ["completion=generated_text"],
        [False],
    ),
    (
        {**PUZZLE, "allowed_ops": ["*", "/"], "completion": RIGHT},
        ["operators=allowed_ops"],
        [False],
    ),
    ({"prompt": TINYZERO, "completion": RIGHT}, (), [True]),
    (
        {"prompt": rendered("You are a helpful assistant.", f" {TINYZERO}"), "response": RIGHT},
        (),
        [True],
    ),
    (
        {
            "data_source": "x",
            "prompt": user("?"),
            "reward_model": {"ground_truth": NUMBERS},
            "responses": [RIGHT],
        },
        (),
        [True],
    ),
    ({"input": "?", "output": RIGHT, "gts": json.dumps(PUZZLE), "score": 1}, (), [True]),
    (
        {
            "input": BASE,
            "output": RIGHT,
            "gts": "{'target': 46, 'numbers': array([3])}",
            "score": 1,
        },
        (),
        [True],
    ),
    (
        [
            {"doc": {"row": json.dumps(PUZZLE)}, "resps": [[RIGHT, WRONG]], "filter": f}
            for f in "ab"
        ],
        (),
        [True, False],
    ),
    ({"doc": {"query": TINYZERO}, "resps": [[RIGHT], [WRONG]]}, (), [True, False]),
    (
        {"env": {}, "task": {"data": {"row": PUZZLE}}, "traces": [TRACE]},
        ["nums=task.data.row.nums"],
        [True],
    ),
    ({**PUZZLE, **RESPONSE}, (), [True]),
    ({**PUZZLE, "choices": [{"text": RIGHT}, {"text": WRONG}]}, (), [True, False]),
    (
        {"custom_id": "a", "response": {"body": OUTPUT}},
        ["nums=`[3, 7, 50]`", "target=`46`"],
        [True],
    ),
    (
        {
            "question": GYM,
            "answer": "x",
            "metadata": NUMBERS,
            "response": "<think></think><answer>46</answer>",
        },
        (),
        [False],
    ),
    (
        {"question": "?", "metadata": NUMBERS, "completions": [{"full_model_response": RIGHT}]},
        (),
        [True],
    ),
    (
        {"x": "3 7 36", "ys": [RIGHT, "<answer>3 * 7 + 36</answer>"]},
        ["nums=x", "target=`57`", "completion=ys"],
        [False, True],
    ),
    (
        {"input": "3,7,50,46", "completion": RIGHT},
        ["nums=numbers(input)[:-1]", "target=numbers(input)[-1]"],
        [True],
    ),
]

#: Records that are refused, and a word of the reason.
REFUSED = [
    (
        [{"prompt": TINYZERO, "completion": RIGHT, "generated_text": WRONG}],
        (),
        "completion or generated_text",
    ),
    ([{**PUZZLE, "messages": user("?") + chat(RIGHT), "response": WRONG}], (), "last turn"),
    ([{**PUZZLE, "allowed_ops": "+-*", "completion": RIGHT}], (), "--field operators=allowed_ops"),
    (
        [{**PUZZLE, "meta": {"allowed_ops": "+-*"}, "completion": RIGHT}],
        (),
        "operators=meta.allowed_ops",
    ),
    ([{"in": {"details": [PUZZLE]}, "out": {}}], (), "--records EXPR"),
    ([{"puzzle": "3 7 50", "goal": 46, "text": None}], (), "nums=EXPR and target=EXPR"),
    ([{**PUZZLE, "completion": None}], (), "null"),
    ([{**PUZZLE, "mine": RIGHT}], (), "its fields are nums, target, mine"),
    ([{**PUZZLE, "completion": [1, 2]}], (), "decode token ids"),
    ([{**PUZZLE, "completion": []}], (), "empty list"),
    (
        [{**PUZZLE, "prompt": TINYZERO.replace("46", "57"), "completion": RIGHT}] * 2,
        (),
        "line 2.*another puzzle",
    ),
    ([{"prompt": ROW.prompt().user + " Use only +.", "completion": RIGHT}], (), "--field nums"),
    (
        [{"prompt": rendered("Each number at most once.", TINYZERO), "completion": RIGHT}],
        (),
        "--field nums",
    ),
    ([{"prompt": "Make 46 from 3, 7 and 50.", "completion": RIGHT}], (), "--field nums"),
    ([{"custom_id": "a", "response": {"body": RESPONSE}}], (), "one row of --data"),
    ([{"custom_id": "a", "response": None, "error": {"message": "rate limit"}}], (), "rate limit"),
    ([{"env": 1, "task": {}, "traces": [TRACE, TRACE]}], (), "one trace"),
    (
        [{"env": 1, "task": {}, "traces": [TRACE], "choices": [1]}],
        (),
        "verifiers traces and of OpenAI",
    ),
    (
        [{**PUZZLE, "question": "?", "metadata": {"nums": [1, 2], "target": 3}, "response": RIGHT}],
        (),
        "two puzzles",
    ),
    (
        [
            {**PUZZLE, "completion": RIGHT},
            {"input": "?", "output": RIGHT, "gts": NUMBERS, "score": 1},
        ],
        (),
        "line 2.*others of",
    ),
    ([{**PUZZLE, "completion": RIGHT}], ["target=nums.x[0] | sort(@)"], "sort"),
]


def answered(tmp_path, content, fields=(), expression="", rows=()):
    file = tmp_path / "made.jsonl"
    if isinstance(content, list):
        jsonl.write_rows(file, content)
    else:
        file.write_text(json.dumps(content))
    faults = []
    read = Reader([*map(parse_row, rows)], fields, expression).read(str(file), faults.append)
    found = []
    for row, completions, _ in read:
        found += [(row, completion) for completion in completions]
    return found, " ".join(map(str, faults))


@pytest.mark.parametrize(("record", "fields", "grades"), READ)
def test_the_layouts_of_other_tools_are_read(record, fields, grades, tmp_path):
    found, faults = answered(tmp_path, record if isinstance(record, list) else [record], fields)
    assert faults == ""
    assert [row.grade(completion.text).correct for row, completion in found] == grades


@pytest.mark.parametrize(("content", "fields", "words"), REFUSED)
def test_what_may_be_two_things_is_refused_with_a_remedy(content, fields, words, tmp_path):
    _, faults = answered(tmp_path, content, fields)
    assert re.search(words, faults), faults


@pytest.mark.parametrize("stated", ["nums", "nums[=x", "completion=a[", "nonsense=x"])
def test_a_wrong_field_is_wrong_usage(stated):
    with pytest.raises(UsageError, match="field"):
        records.Reader([stated])


def test_records_are_where_the_expression_says(tmp_path):
    document = {"of": {"model": [{**PUZZLE, "completion": RIGHT}]}, "sample_details": []}
    assert len(answered(tmp_path, document, expression="of.model")[0]) == 1
    with pytest.raises(UsageError, match="records"):
        answered(tmp_path, document, expression="of.nothing")
    assert "no completion" in answered(tmp_path, document)[1]


OTHER = {"id": "b", "nums": [9, 9, 2], "target": 20}


@pytest.mark.parametrize(
    ("rows", "record", "outcome"),
    [
        ([{"id": "a", **PUZZLE}, OTHER], {"id": "a"}, "3-7-50=46"),
        ([{"id": "a", **PUZZLE}, OTHER | {"id": "a"}], {"id": "a"}, "no row for certain"),
        ([{"id": "a", **PUZZLE}, OTHER], {"id": "b", **PUZZLE}, "its id is that of"),
        ([{"id": "a", **PUZZLE}, OTHER], {"id": "b", "prompt": TINYZERO}, "another puzzle"),
        (
            [{"id": "a", **PUZZLE}, OTHER],
            {"id": "b", "prompt": ROW.prompt().user},
            "another puzzle",
        ),
        (
            [{"id": "a", **PUZZLE, "rule": "at-most-once"}],
            {"id": "x", **PUZZLE},
            "3-7-50=46:at-most-once",
        ),
        ([OTHER], PUZZLE, "not in --data"),
        ([{"id": "a", **PUZZLE}], {"prompt": ROW.prompt().user}, "3-7-50=46"),
    ],
)
def test_an_id_names_a_row_only_if_nothing_speaks_against_it(rows, record, outcome, tmp_path):
    found, faults = answered(tmp_path, [record | {"completion": RIGHT}], rows=rows)
    assert outcome in (faults or found[0][0].id)


def test_lengths_and_ends_are_read(tmp_path):
    response = {"body": RESPONSE | {"usage": {"completion_tokens": 9}}}
    record = {"custom_id": "a", "response": response}
    [(_, completion)], _ = answered(tmp_path, [record], rows=[{"id": "a", **PUZZLE}])
    assert (completion.tokens, completion.ended) == (9, False)
    response["body"]["usage"]["completion_tokens"] = "9"
    _, faults = answered(tmp_path, [record], rows=[{"id": "a", **PUZZLE}])
    assert "a whole number from 0" in faults


def test_reasoning_beside_the_content_is_the_thinking(tmp_path):
    message = turn("assistant", "<answer>50 - 7 + 3</answer>") | {"reasoning": "50 - 7 is 43"}
    [(row, completion)], _ = answered(tmp_path, [{**PUZZLE, "completion": [message]}])
    assert row.grade(completion.text).format
    with pytest.raises(CountdownError, match="beside it"):
        records.Turn("assistant", "x</think>", "y").text(ROW.style)


def test_word_problems_are_read():
    problem = {"question": "What is 3 + 4?", "answer": "3 + 4 = 7\n#### 7"}
    row = records.Reader().row(problem)
    assert (row["task"], row.reference) == ("gsm8k", "7")
    with pytest.raises(records.NoRowError):
        records.Reader().row({"question": "What is 3 + 4?"})
