"""Demonstrations in every format, and those that are left out or refused."""

import json
from dataclasses import replace

import pytest

from countdown_rl.data import jsonl
from countdown_rl.errors import InputError, UsageError
from countdown_rl.models import chat_template
from countdown_rl.sft import demonstrations
from countdown_rl.sft.config import SftOptions
from countdown_rl.sft.demonstrations import Demonstrations
from countdown_rl.tasks.registry import parse_row
from tests.support import tiny_llama

RIGHT = {"nums": [3, 7, 50], "target": 46, "completion": "\n</think>\n<answer>50 - 7 + 3</answer>"}
WRONG = RIGHT | {"completion": "\n</think>\n<answer>50 - 7</answer>"}
TURNS = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
ANSWER = {"role": "assistant", "content": "a"}


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_llama.tokenizer()


def read(tmp_path, rows, **options):
    file = tmp_path / "demos.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return demonstrations.read(SftOptions(**options), [file], None)


def text(tokenizer, ids):
    return tokenizer.decode(ids)


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [*TURNS, ANSWER]},
        {"prompt": TURNS, "completion": [ANSWER]},
        {"prompt": TURNS, "completion": "a"},
        {"prompt": "<|system|>s<|end|><|user|>u<|end|><|assistant|>", "completion": "a"},
        {"prompt": "<|system|>s<|end|><|user|>u<|end|><|assistant|>", "completion": "a<|end|>"},
    ],
)
def test_every_format_of_trl_is_the_same_example(tokenizer, fields):
    (example,) = demonstrations.tokenize(Demonstrations([demonstrations.parse(fields, "row 1")]), tokenizer, 100)
    assert text(tokenizer, example["input_ids"]) == "<|system|>s<|end|><|user|>u<|end|><|assistant|>a<|end|>"
    assert text(tokenizer, [label for label in example["labels"] if label != -100]) == "a<|end|>"


def test_of_a_row_the_task_writes_the_prompt(tokenizer):
    (example,) = demonstrations.tokenize(Demonstrations([demonstrations.parse(RIGHT, "row 1")]), tokenizer, 1_000)
    learned = [label for label in example["labels"] if label != -100]
    assert text(tokenizer, learned) == RIGHT["completion"] + "<|end|>"
    prompt = example["input_ids"][: -len(learned)]
    assert text(tokenizer, prompt) == chat_template.render(tokenizer, parse_row(RIGHT).messages())
    word_problem = {"task": "gsm8k", "question": "2 and 3?", "gold": "5", "completion": "x"}
    assert demonstrations.parse(word_problem, "row 1").row.task == "gsm8k"


def test_wrong_demonstrations_are_counted_and_left_out(tmp_path):
    result, inputs = read(tmp_path, [RIGHT, WRONG, {"prompt": "p", "completion": "c"}])
    assert result.facts() == {"read": 3, "graded": 2, "kept": 2, "wrong": 1}
    assert inputs["from"]["file"] == "demos.jsonl"
    assert read(tmp_path, [RIGHT, WRONG], keep_wrong=True)[0].facts()["kept"] == 2
    with pytest.raises(InputError, match="keep-wrong"):
        read(tmp_path, [WRONG])


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"prompt": "p"},
        {"completion": "c"},
        {"nums": [1, 2], "completion": "c"},
        {"prompt": TURNS, "completion": TURNS},
        {"messages": [{"role": "user"}]},
        {"prompt": 3, "completion": "c"},
        {"prompt": "p", "completion": ""},
    ],
)
def test_what_is_no_demonstration_is_named_by_its_place(tmp_path, fields):
    with pytest.raises(InputError, match=r"demos.jsonl, row 2"):
        read(tmp_path, [RIGHT, fields])


def test_a_demonstration_that_is_too_long_is_named(tokenizer):
    with pytest.raises(InputError, match=r"row 7: .* tokens, more than --max-length 20"):
        demonstrations.tokenize(Demonstrations([demonstrations.parse(RIGHT, "row 7")]), tokenizer, 20)


def test_one_of_a_baseline_that_is_too_long_is_left_out(tokenizer):
    short, long = (demonstrations.parse(RIGHT | {"completion": text}, "row") for text in ("a", "a" * 500))
    known = Demonstrations([short, replace(long, generated=True)])
    assert len(demonstrations.tokenize(known, tokenizer, 400)) == 1
    assert (known.kept, known.left_out["too long"]) == ([short], 1)
    with pytest.raises(InputError, match="--max-length"):
        demonstrations.tokenize(Demonstrations([replace(long, generated=True)]), tokenizer, 400)


def test_there_must_be_a_source():
    with pytest.raises(UsageError, match="--from"):
        demonstrations.read(SftOptions(), [], None)
    with pytest.raises(UsageError, match="--data"):
        demonstrations.read(SftOptions(demonstrator="solver"), [], None)


def test_a_turn_ends_as_the_chat_template_says(tokenizer):
    assert demonstrations.end_of_turn(tokenizer) == "<|end|>"
    without = tiny_llama.tokenizer("{% for message in messages %}{{ message['content'] }}{% endfor %}")
    assert demonstrations.end_of_turn(without) == without.eos_token
    other = tiny_llama.tokenizer("{% for message in messages %}{{ message['content'] }}</turn>\n{% endfor %}")
    assert demonstrations.end_of_turn(other) == "</turn>"


def test_held_out_splits_of_a_hub_data_set_are_left_out_and_counted(hub, tmp_path):
    row = {"prompt": "1 + 1?", "completion": "2"}
    for name, count in (("train", 3), ("test_hard", 2), ("validation", 1)):
        rows = [row if name == "train" else row | {"completion": ""}] * count
        jsonl.write_rows(tmp_path / f"{name}.jsonl", rows)
    listed = ", ".join(f"{{split: {name}, path: {name}.jsonl}}" for name in ("train", "test_hard", "validation"))
    (tmp_path / "README.md").write_text(f"---\nconfigs:\n- {{config_name: x, data_files: [{listed}]}}\n---\n")
    hub.add_model("me/demos", tmp_path, repo_type="dataset")
    for source in ("me/demos", "me/demos:x@main"):
        known, inputs = demonstrations.read(SftOptions(from_hub=(source,)), [], None)
        assert len(known.kept) == 3
        assert known.left_out == {"of the split test_hard": 2, "of the split validation": 1}
        assert len(inputs["from-hub"]["revision"]) == 40
