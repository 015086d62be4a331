"""Demonstrations in every format, and those that are left out or refused."""

import json
from dataclasses import replace

import pytest

from countdown_rl.core.errors import InputError, UsageError
from countdown_rl.data import build
from countdown_rl.data.config import DataOptions
from countdown_rl.models import chat_template
from countdown_rl.tasks import records
from countdown_rl.tasks.countdown.task import PREFILL
from countdown_rl.tasks.registry import parse_row
from countdown_rl.training.options import SftOptions
from countdown_rl.training.sft import demonstrations, tokens
from tests.support import tiny_llama
from tests.support.runs import write_data

RIGHT = {"nums": [3, 7, 50], "target": 46, "completion": "\n</think>\n<answer>50 - 7 + 3</answer>"}
WRONG = RIGHT | {"completion": "\n</think>\n<answer>50 - 7</answer>"}
TURNS = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
ANSWER = {"role": "assistant", "content": "a"}
ENDS = "{% for message in messages %}{{ message['content'] }}</turn>\n{% endfor %}"


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_llama.tokenizer()


def read(tmp_path, rows, data=None, **options):
    file = tmp_path / "demos.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return demonstrations.read(SftOptions(**options), [file], data)[0]


def tokenized(tmp_path, fields, tokenizer):
    """The text of a demonstration as a model reads it, and what it learns of that."""
    (example,) = tokens.tokenize(read(tmp_path, [fields]).filtered, tokenizer)
    learned = [label for label in example["labels"] if label != -100]
    return tokenizer.decode(example["input_ids"]), tokenizer.decode(learned)


def test_of_a_row_the_task_writes_the_prompt(tokenizer, tmp_path):
    prompt, learned = (
        chat_template.render(tokenizer, parse_row(RIGHT).messages()),
        RIGHT["completion"] + "<|end|>",
    )
    assert tokenized(tmp_path, RIGHT, tokenizer) == (prompt + learned, learned)
    word_problem = {"task": "gsm8k", "question": "2 and 3?", "gold": "5", "completion": "x"}
    [demonstration] = demonstrations.parse(records.Reader(), word_problem, "row 1")
    assert demonstration.row.task == "gsm8k"


def test_wrong_demonstrations_are_counted_and_left_out(tmp_path):
    result = read(tmp_path, [RIGHT, WRONG, {"prompt": "p", "completion": "c"}])
    assert result.facts() == {"read": 3, "graded": 2, "kept": 2, "wrong": 1}
    assert "a number not used" in result.why_wrong()
    assert read(tmp_path, [RIGHT, WRONG], keep_wrong=True).facts()["kept"] == 2
    reason = r"2 wrong .*keep-wrong.*1 a number not used.*demos.jsonl, line 1, for 3 7 50.*50 - 7</answer>"
    with pytest.raises(InputError, match=reason):
        read(tmp_path, [WRONG, RIGHT | {"completion": "50 - 7 + 3"}])


ASK = {"role": "user", "content": "u"}
GPT = {"from": "gpt", "value": "a"}
PART = {"type": "text", "text": "u"}


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [*TURNS, ANSWER]},
        {"prompt": TURNS, "completion": [ANSWER]},
        {"prompt": TURNS, "completion": "a"},
        {"prompt": "<|system|>s<|end|><|user|>u<|end|><|assistant|>", "completion": "a<|end|>"},
        {"conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": "u"}, GPT]},
        {"conversations": [{"from": "human", "value": "u"}, GPT], "system": "s"},
        {"messages": json.dumps([*TURNS, ANSWER])},
        {"messages": [*TURNS, ANSWER | {"tool_calls": None, "thinking": ""}], "prompt": "u"},
        {"messages": TURNS, "completion": "a"},
        {"instruction": "u", "input": "", "output": "a", "system": "s"},
        {"prompt": json.dumps(TURNS), "response": "a"},
        {"prompt": [TURNS[0] | {"role": "developer"}, ASK | {"content": [PART]}], "response": ["a"]},
        {"query": TURNS, "response": "a"},
    ],
)  # fmt: skip
def test_every_layout_is_the_same_example(tokenizer, tmp_path, fields):
    assert tokenized(tmp_path, fields, tokenizer) == (
        "<|system|>s<|end|><|user|>u<|end|><|assistant|>a<|end|>",
        "a<|end|>",
    )


def test_what_was_used_of_a_record_is_said(tmp_path):
    fields = {"instruction": "Add.", "input": "3 4", "output": "7"}
    [demonstration] = read(tmp_path, [fields]).filtered
    assert demonstration.prompt == [{"role": "user", "content": "Add.\n\n3 4"}]
    assert "Alpaca" in demonstration.notes[0]
    known = read(tmp_path, [RIGHT, {"messages": [ASK, ANSWER, ASK, ANSWER]}])
    assert known.notes == ["earlier turns of the assistant are read and not learned (1 of 2)"]
    assert "1 of 2 demonstrations have no known row" in known.warning


def test_each_completion_of_a_row_is_a_demonstration_and_reasoning_beside_the_content_is_learned(
    tmp_path,
):
    row = {"num": [3, 7, 50], "target": 46, "response": [RIGHT["completion"], WRONG["completion"]]}
    known = read(tmp_path, [row])
    assert [each.place.partition(" ")[2] for each in known.filtered] == ["line 1, completion 1"]
    assert known.facts()["wrong"] == 1
    reply = {
        "role": "assistant",
        "content": "<answer>50 - 7 + 3</answer>",
        "reasoning_content": "why",
    }
    known = read(tmp_path, [{"messages": [ASK, reply]}, RIGHT | {"completion": [reply]}])
    assert [each.completion for each in known.filtered] == [
        "<think>why</think>\n<answer>50 - 7 + 3</answer>"
    ] * 2


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        *(({"completion": "c"} | fields, "") for fields in ({}, {"nums": [1, 2]}, {"prompt": 3})),
        *((fields, "") for fields in ({}, {"prompt": "p"}, {"messages": [{"role": "user"}]})),
        ({"prompt": TURNS, "completion": TURNS}, ""),
        ({"prompt": "p", "completion": ""}, ""),
        ({"messages": [ASK, ANSWER | {"thinking": "t"}, ASK, ANSWER]}, "earlier turn"),
        ({"messages": [ASK, TURNS[0], ANSWER]}, "system"),
        ({"messages": [ASK]}, "no completion"),
        ({"messages": [ASK, ANSWER | {"content": None, "thinking": "t"}]}, "empty"),
        ({"messages": [TURNS[0], ANSWER]}, "no turn of the user"),
        ({"messages": [ASK, ANSWER], "completion": "b"}, "--field completion"),
        ({"prompt": "u", "completion": "a", "system": "s"}, "system"),
        ({"prompt": "u", "response": []}, "empty"),
        ({"prompt": "u", "completion": "\ud800"}, "surrogate"),
        ({"messages": [{"role": "user", "content": "\udfff"}, ANSWER]}, "surrogate"),
        (RIGHT | {"style": "direct", "completion": [ANSWER | {"thinking": "t"}]}, "direct"),
        (
            RIGHT | {"prompt": "p", "solutions": ["50 - 7 + 3"]},
            "`solutions`",
        ),  # which makes it no text
    ],
)
def test_what_is_no_demonstration_or_would_be_dropped_is_refused_by_its_place(
    tmp_path, fields, word
):
    with pytest.raises(InputError, match=rf"demos.jsonl, line 2.*{word}"):
        read(tmp_path, [RIGHT, fields])


def test_rows_of_a_published_test_split_are_left_out(tmp_path):
    known = read(tmp_path, [RIGHT | {"split": "test"}, RIGHT | {"split": "train"}])
    assert known.facts() == {"read": 1, "graded": 1, "kept": 1, "of the split test": 1}


@pytest.fixture
def data(tmp_path):
    number_sets = {"train": [5, 8, 9], "valid": [2, 4, 40], "test": [3, 7, 50]}
    splits = {split: [{"nums": nums, "target": 46}] for split, nums in number_sets.items()}
    splits["test"][0]["template"] = "Reach {{ target }} with {{ nums | join(' & ') }}"
    return write_data(tmp_path / "data", splits)


TINYZERO = (
    "Using the numbers [{}], create an equation that equals 46. You can use basic arithmetic operations (+, -, *, /) and "
    "each number can only be used once. Show your work in <think> </think> tags. And return the final answer in <answer> "
    "</answer> tags, for example <answer> (1 + 2) / 3 </answer>."
)


@pytest.mark.parametrize(
    "fields",
    [
        {"nums": [50, 7, 3], "target": 60, "completion": "a"},
        {"prompt": TINYZERO.format("3, 7, 50"), "completion": "a"},
        {"messages": [{"role": "user", "content": TINYZERO.format("50 3 7")}, ANSWER]},
        {"messages": [*parse_row(RIGHT).messages()[:2], ANSWER]},
        {"prompt": parse_row(RIGHT).messages(), "completion": "a"},
        {"prompt": "<|user|>Reach 46  with 3 & 7 & 50<|end|><|assistant|>", "completion": "a"},
        {"messages": [{"role": "user", "content": "Reach 46 with 3 & 7 & 50\n"}, ANSWER]},
    ],
)
def test_demonstrations_of_test_puzzles_are_found_by_what_they_ask(tmp_path, data, fields):
    other = {"prompt": TINYZERO.format("5, 8, 9"), "completion": "a"}
    known = read(tmp_path, [fields, other], data, keep_wrong=True)
    assert (known.left_out["of test puzzles"], len(known.filtered)) == (1, 1)


@pytest.mark.parametrize(("every", "left"), [(0, 0), (5, 2)])
def test_demonstrations_of_validation_puzzles_are_left_out_where_these_are_evaluated(
    tmp_path, data, every, left
):
    rows = [
        {"prompt": TINYZERO.format(nums), "completion": "a"}
        for nums in ("2, 4, 40", "40 4 2", "5, 8, 9")
    ]
    known = read(tmp_path, rows, data, eval_every=every, keep_wrong=True)
    assert (known.left_out["of validation puzzles"], len(known.filtered)) == (left, 3 - left)


@pytest.mark.parametrize("name", ["compact", "published"])
def test_a_search_gives_up_at_its_budget(tmp_path, tokenizer, name):
    rows = [{"nums": [number, 7, 11, 2], "target": 50} for number in range(3, 23)]
    write_data(tmp_path / "data", {"train": rows, "test": [RIGHT]})
    budget = {"compact": 150, "published": 3_000}[name]
    demonstrator = f"stages.recipes.search:{name}"
    options = SftOptions(demonstrator=demonstrator, keep_wrong=True, max_completion_length=budget)
    known, _ = demonstrations.read(options, [], tmp_path / "data", tokenizer=tokenizer)
    assert len(known.filtered) == 20
    assert all(len(tokenizer(each.completion)["input_ids"]) <= budget for each in known.filtered)
    right = [each for each in known.filtered if each.row.grade(each.completion).correct]
    assert 0 < len(right) < 20
    assert all("impossible" in each.completion for each in known.filtered if each not in right)
    known, _ = demonstrations.read(
        replace(options, keep_wrong=False), [], tmp_path / "data", tokenizer=tokenizer
    )
    assert [each.completion for each in known.filtered] == [each.completion for each in right]


def test_there_must_be_a_source_and_a_demonstrator_of_the_task(data):
    cases = [
        ("oracle", data, "random, solver, or a function"),
        (None, None, "--from"),
    ]
    for demonstrator, directory, message in [*cases, ("solver", None, "--data")]:
        with pytest.raises(UsageError, match=message):
            demonstrations.read(SftOptions(demonstrator=demonstrator), [], directory)


OPENS = tiny_llama.TEMPLATE.replace("<|assistant|>{% endif %}", "<|assistant|><think>\n{% endif %}")
END = "<|end|>"


@pytest.mark.parametrize(
    ("fields", "template", "learned"),
    [
        ({"prompt": TURNS, "completion": "<think>\na"}, OPENS, f"a{END}"),
        ({"prompt": "u<think>", "completion": "<think>a"}, OPENS, f"a{END}"),
        ({"prompt": TURNS, "completion": "<think>\na"}, tiny_llama.TEMPLATE, f"<think>\na{END}"),
        (RIGHT | {"completion": "<think>\n</think>\n<answer>50 - 7 + 3</answer>"}, tiny_llama.TEMPLATE,
         f"{RIGHT['completion']}{END}"),
        (RIGHT | {"completion": f"{PREFILL}{RIGHT['completion']}"}, OPENS, f"{RIGHT['completion']}{END}"),
        ({"prompt": TURNS, "completion": f"a{END}"}, OPENS, f"a{END}"),
        ({"prompt": TURNS, "completion": f"a{END}\n"}, OPENS, f"a{END}"),
        ({"prompt": TURNS, "completion": f"a{END} {END}\n\n"}, OPENS, f"a{END}"),
        ({"prompt": TURNS, "completion": "a\n"}, OPENS, f"a\n{END}"),
        ({"prompt": TURNS, "completion": f"a\n{END}"}, OPENS, f"a\n{END}"),
        ({"prompt": TURNS, "completion": f"a</turn>\n{END}\n"}, ENDS, f"a</turn>{END}"),
    ],
)  # fmt: skip
def test_the_opening_tag_and_the_end_are_learned_once(tmp_path, fields, template, learned):
    text, completion = tokenized(tmp_path, fields, tiny_llama.tokenizer(template))
    assert completion == learned
    assert text.count("<think>") <= 1 + ("nums" in fields)


@pytest.fixture
def own_prompt(tmp_path):
    """A data artifact with a prompt of the user's own and answers without tags."""
    options = DataOptions(n=12, size=("3",), style="direct", template="{{ nums }} -> {{ target }}")
    build.make(options, tmp_path / "data")
    return tmp_path / "data"


def test_rows_without_style_and_template_take_those_of_the_data(tmp_path, own_prompt):
    row = {"nums": [3, 7, 50], "target": 46, "completion": "50 - 7 + 3"}
    (kept,) = read(tmp_path, [row], own_prompt, eval_every=1).filtered
    assert kept.prompt == [{"role": "user", "content": "[3, 7, 50] -> 46"}]
    with pytest.raises(InputError, match="wrong"):
        read(tmp_path, [row])
    word_problem = {"task": "gsm8k", "question": "2 and 3?", "gold": "5", "completion": "x"}
    (kept,) = read(tmp_path, [word_problem], own_prompt, keep_wrong=True).filtered
    assert kept.row.style_name == "lines"


@pytest.mark.parametrize(
    "fields",
    [
        {"style": "model_opens", "completion": "<think></think><answer>50 - 7 + 3</answer>"},
        {"style": "direct", "completion": "50 - 7 + 3"},
        {"template": "{{ target }} of {{ nums }}", "style": "direct", "completion": "50 - 7 + 3"},
        {"prompt": TURNS, "completion": "50 - 7 + 3"},
    ],
)
def test_another_prompt_than_that_of_validation_is_refused(tmp_path, own_prompt, fields):
    row = {"nums": [3, 7, 50], "target": 46, **fields}
    assert len(read(tmp_path, [row], own_prompt).filtered) == 1
    with pytest.raises(InputError, match=r"demos.jsonl, line 1 .*eval-every"):
        read(tmp_path, [row], own_prompt, eval_every=1)


def test_an_end_token_that_the_tokenizer_appends_does_not_begin_a_prompt():
    from tokenizers.processors import TemplateProcessing

    tokenizer = tiny_llama.tokenizer()
    ids = [("<|system|>", 2), ("<|end|>", 1)]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        "<|system|> $A <|end|>", special_tokens=ids
    )
    assert tokens.start_of_text(tokenizer) == "<|system|>"
