"""Rows and completions in the layouts of other projects."""

import json
from dataclasses import replace

import pyarrow
import pyarrow.parquet
import pytest

from countdown_rl.core.errors import InputError
from countdown_rl.tasks import conversations, jsonl, records, registry
from countdown_rl.tasks.response_format import STYLES

PUZZLE = {"numbers": [3, 7, 50], "target": 46}
VERL = {
    "data_source": "countdown",
    "prompt": [{"role": "user", "content": "?"}],
    "reward_model": {"style": "rule", "ground_truth": PUZZLE},
    "extra_info": {"split": "train", "index": 0},
}
GYM = {
    "question": "?",
    "answer": "50 - 7 + 3",
    "metadata": PUZZLE | {"difficulty": {"numbers": [3, 4]}},
}
PROBLEM = {"question": "What is 3 + 4?", "answer": "3 + 4 = 7\n#### 7"}


@pytest.mark.parametrize(
    ("record", "place"),
    [
        ({"nums": [3, 7, 50], "target": 46}, ""),
        ({"num": [3, 7, 50], "target": 46, "query": "?", "response": ["?"]}, ""),
        ({"nums": "[3, 7, 50]", "target": "46", "rule": "", "solutions": None}, ""),
        ({"nums": "(3.0, 7.0, 50.0)", "target": "46.0", "solutions": "2.0"}, ""),
        (VERL, "the puzzle is read from reward_model.ground_truth"),
        (
            VERL | {"reward_model": {"ground_truth": json.dumps(PUZZLE)}},
            "reward_model.ground_truth",
        ),
        (VERL | {"reward_model": str(VERL["reward_model"])}, "reward_model.ground_truth"),
        (GYM, "from metadata"),
        ({"extra_info": {"entry": GYM}}, "extra_info.entry.metadata"),
        ({"prompt": "?", "info": json.dumps(PUZZLE), "task": "default"}, "from info"),
        ({"custom_id": "3-7-50=46", "response": {}}, "from custom_id"),
        ({"row_idx": 0, "row": {"nums": [3, 7, 50], "target": 46}}, "from row"),
    ],
)
def test_the_puzzle_is_found_and_its_place_is_said(record, place):
    found = records.find_row(record)
    assert (found.row["nums"], found.row["target"]) == ([3, 7, 50], 46)
    assert place in found.note
    assert bool(place) == bool(found.note)


def test_the_fields_around_many_rows_are_looked_up_once():
    class Fields(dict):
        asked = 0

        def __contains__(self, name):
            self.asked += 1
            return super().__contains__(name)

    task = replace(registry.task("countdown"), fields=Fields(registry.task("countdown").fields))
    assert records.find_row({f"k{index}": PUZZLE for index in range(500)}, task).row["target"] == 46
    assert task.fields.asked < 5_000


def test_what_the_record_says_of_a_nested_row_is_kept():
    row = records.find_row(VERL | {"id": "a", "rule": "at-most-once", "style": "direct"}).row
    assert (row["id"], row.rule, row.style.direct) == ("a", "at-most-once", True)
    row = records.find_row({"custom_id": "3-7-50=46:television:+-"}).row
    assert (row.rule, row.puzzle.operators) == ("television", "+-")


@pytest.mark.parametrize(
    "record", [PROBLEM, {"extra_info": PROBLEM, "reward_model": {"ground_truth": "7"}}]
)
def test_word_problems_are_found_too(record):
    found = records.find_row(record)
    assert (found.row.task, found.row.reference) == ("gsm8k", "7")
    assert found.note


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"nums": [3, 7, 50], "target": 46, "metadata": PUZZLE | {"target": 47}}, "two puzzles"),
        ({"info": PUZZLE, "metadata": PUZZLE | {"target": 47}}, "two puzzles"),
        ({"nums": [3, 7, 50], "numbers": [3, 7, 51], "target": 46}, "two lists of numbers"),
        ({"info": {"numbers": [3, -7], "target": 46}}, "no `nums`"),
        ({"nums": [3, -7], "target": 4}, "`nums` should be"),
        ({"nums": [3, 7], "target": 10**30}, "`target` should be"),
        ({"info": PUZZLE, "style": "loud"}, "`style`"),
        *((record, "no `nums`") for record in ({"custom_id": "request-7"}, {"response": PUZZLE})),
        ({"completion": json.dumps(PUZZLE)}, "no `nums`"),
        # The fault is that of the task that the fields resemble.
        ({"question": "1 + 1?", "answer": "2"}, "`answer` should end with"),
        ({"question": "1 + 1?", "answer": 2}, "no text in `question` or none in `answer`"),
        ({"Nums": [3, 7, 50]}, "^there is no `nums`"),
        ({"nums": [3, 7], "target": "x"}, "^`target` should be"),
        ({"id": "3-7-50=47", **PUZZLE}, "id 3-7-50=47 is that of another puzzle"),
        ({"info": PUZZLE, "extra": {"id": "3-7-50=46:at-most-once"}}, "another puzzle"),
        ({"puzzle_id": "3-7-50=47", **PUZZLE}, "another puzzle"),
        ({**PUZZLE, "question": "1 + 1?", "gold": "2"}, "fields of a puzzle and of a problem"),
        *(
            ({"nums": nums, "target": 46}, "`nums`")
            for nums in ("1,003 7 50", "3, 7 50", "3 7 and 50", "3; 7, 50")
        ),
    ],
)
def test_what_is_no_row_or_two_is_refused(record, words):
    with pytest.raises(InputError, match=words):
        records.find_row(record)


@pytest.mark.parametrize(
    "record",
    [
        *(
            PUZZLE | {"split": "test_easy"},
            {"info": PUZZLE | {"split": "test"}},
            VERL | {"extra_info": {"split": "test"}},
        ),
        {"info": json.dumps(PUZZLE), "split": "test"},
        {"info": PUZZLE, "metadata": {"split": "test"}, "split": "all"},
    ],
)
def test_a_row_keeps_the_split_that_its_record_names(record):
    found = records.find_row(record)
    assert (found.row.split, records.split_of(record).lower()[:4]) == ("test", "test")
    assert "split" not in found.unused


def test_fields_that_are_not_used_are_said(tmp_path):
    notes = []
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([VERL, VERL]), tmp_path / "test.parquet")
    assert len(jsonl.read_rows(tmp_path / "test.parquet", notes.append)) == 2
    assert notes == [
        f"{tmp_path / 'test.parquet'}: the puzzle is read from reward_model.ground_truth.",
        f"{tmp_path / 'test.parquet'}: not used: data_source, extra_info, prompt.",
    ]
    jsonl.write_rows(
        tmp_path / "rows.jsonl", [{"nums": [3, 7, 50], "target": 46, "needs": "add-sub", "size": 3}]
    )
    assert len(jsonl.read_rows(tmp_path / "rows.jsonl", notes.append)) == 1
    assert len(notes) == 2


def completions(record):
    return [
        conversations.completion(each).text(STYLES["model_opens"])
        for each in conversations.split(record)
    ]


ANSWER = {"role": "assistant", "content": "a"}
NOT_JSON = "[{'role': 'assistant', 'content': 'a'}\n {'role': 'user', 'content': 'b'}]"


@pytest.mark.parametrize(
    "record",
    [
        *(
            {"completion": value}
            for value in ("a", {"text": "a"}, [ANSWER], ANSWER, json.dumps([ANSWER]))
        ),
        {"completion": [{"role": "model", "content": [{"type": "text", "text": "a"}]}]},
        {"completion": [ANSWER | {"tool_calls": None, "refusal": None, "annotations": []}]},
        {"messages": [{"role": "user", "content": "?"}, ANSWER]},
        {"messages": json.dumps([{"role": "user", "content": "?"}, ANSWER])},
        {"conversations": [{"from": "human", "value": "?"}, {"from": "gpt", "value": "a"}]},
        {"choices": [{"index": 0, "message": ANSWER}]},
        {"response": {"status_code": 200, "body": {"choices": [{"index": 0, "message": ANSWER}]}}},
        {"completion": {"choices": [{"text": "a"}]}},
    ],
)
def test_a_completion_is_found(record):
    assert completions(record) == ["a"]


@pytest.mark.parametrize(
    "record",
    [
        *({"response": value} for value in (["a", "b"], '["a", "b"]')),
        {"completion": [[ANSWER], [ANSWER | {"content": "b"}]]},
        {
            "response": {
                "body": {"choices": [{"message": ANSWER}, {"message": ANSWER | {"content": "b"}}]}
            }
        },
    ],
)
def test_several_completions_are_found(record):
    assert completions(record) == ["a", "b"]


@pytest.mark.parametrize("text", ["[3, 7, 50]", "{'a': 1}", '{"a": 1}', "[]", "[50] - 7"])
def test_text_in_brackets_stays_text(text):
    assert completions({"completion": text}) == [text]


def test_a_completion_may_be_empty():
    assert completions({"completion": ""}) == [""]
    assert completions({"completion": [ANSWER | {"content": None}]}) == [""]
    assert completions({"completion": [ANSWER | {"content": None, "reasoning": "b"}]}) == [
        "<think>b"
    ]


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_beside_the_content_is_joined(name):
    joined = "<think>why</think>\na"
    assert completions({"completion": [ANSWER | {name: "why"}]}) == [joined]
    assert completions({"completion": "a", name: "why"}) == [joined]
    parts = [{"type": "thinking", "thinking": "why"}, {"type": "text", "text": "a"}]
    assert completions(
        {"messages": [{"role": "user", "content": "?"}, ANSWER | {"content": parts}]}
    ) == [joined]


@pytest.mark.parametrize("value", ["on", "off", "high", True, False])
@pytest.mark.parametrize("name", ["reasoning", "thinking"])
def test_a_switch_of_reasoning_is_no_reasoning(name, value):
    assert completions({"completion": "<think>b</think>a", name: value}) == ["<think>b</think>a"]


@pytest.mark.parametrize(
    ("record", "words"),
    [
        *(
            ({"completion": text}, "write them as JSON")
            for text in (NOT_JSON, '[{"role": "assistant", "content": "a')
        ),
        ({"response": {"body": {"output": [{"type": "message"}]}}}, "chat and text completions"),
        ({"completion": [ANSWER | {"tool_calls": [{"id": 1}]}]}, "`tool_calls`"),
        ({"completion": [ANSWER | {"weight": 1}]}, "`weight`"),
        ({"completion": [{"role": "tool", "content": "a"}]}, "`role`"),
        ({"completion": [{"role": "user", "content": "a"}]}, "one turn of the assistant"),
        ({"completion": [ANSWER, ANSWER]}, "one turn of the assistant"),
        ({"completion": [ANSWER | {"content": [{"type": "image_url"}]}]}, "image_url"),
        ({"completion": [ANSWER | {"reasoning": "b", "thinking": "c"}]}, "reasoning"),
        (
            {"completion": [{"role": "assistant", "content": "b</think>a", "reasoning": "b"}]},
            "beside it",
        ),
        ({"completion": 5}, "decode token ids"),
        ({"completion": "a", "response": "b"}, "`completion` or `response`"),
        ({"response": {"status_code": 500, "body": {"error": "?"}}}, "no `choices`"),
    ],
)
def test_a_completion_with_what_is_not_used_is_refused(record, words):
    with pytest.raises(InputError, match=words):
        completions(record)
