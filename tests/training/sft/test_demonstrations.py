"""Demonstrations in every format, and those that are left out or refused."""

import pytest

from countdown_rl.core.errors import InputError, UsageError
from countdown_rl.data import build
from countdown_rl.data.config import DataOptions
from countdown_rl.models import chat_template
from countdown_rl.tasks import jsonl
from countdown_rl.tasks.countdown.task import PREFILL
from countdown_rl.tasks.registry import parse_row
from countdown_rl.training.options import SftOptions
from countdown_rl.training.sft import demonstrations, tokens
from tests.support import tiny_llama
from tests.support.runs import write_data

SOLVED = "\n</think>\n<answer>50 - 7 + 3</answer>"
RIGHT = {"nums": [3, 7, 50], "target": 46, "completion": SOLVED}
WRONG = RIGHT | {"completion": "\n</think>\n<answer>50 - 7</answer>"}
TURNS = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
ANSWER = {"role": "assistant", "content": "a"}
END = "<|end|>"
ENDS = "{% for message in messages %}{{ message['content'] }}</turn>\n{% endfor %}"


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_llama.tokenizer()


def read(tmp_path, rows, data=None, **options):
    file = tmp_path / "demos.jsonl"
    jsonl.write_rows(file, rows)
    return demonstrations.read(SftOptions(**options), [file], data, None)[0]


def tokenized(tmp_path, fields, tokenizer):
    """The text of a demonstration as a model reads it, and what it learns of that."""
    (example,) = tokens.tokenize(read(tmp_path, [fields]).filtered, tokenizer)
    learned = [label for label in example["labels"] if label != -100]
    return tokenizer.decode(example["input_ids"]), tokenizer.decode(learned)


def test_of_a_row_the_task_writes_the_prompt(tokenizer, tmp_path):
    prompt = chat_template.render(tokenizer, parse_row(RIGHT).messages())
    learned = RIGHT["completion"] + END
    assert tokenized(tmp_path, RIGHT, tokenizer) == (prompt + learned, learned)


def test_wrong_demonstrations_are_counted_and_left_out(tmp_path):
    result = read(tmp_path, [RIGHT, WRONG, {"prompt": "p", "completion": "c"}])
    assert result.facts() == {"read": 3, "graded": 2, "kept": 2, "wrong": 1}
    assert "a number not used" in result.why_wrong()
    assert read(tmp_path, [RIGHT, WRONG], keep_wrong=True).facts()["kept"] == 2
    with pytest.raises(InputError, match=r"2 wrong .*keep-wrong.*demos.jsonl, line 1"):
        read(tmp_path, [WRONG, RIGHT | {"completion": "50 - 7 + 3"}])


ASK = {"role": "user", "content": "u"}


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [*TURNS, ANSWER]},
        {"prompt": TURNS, "completion": [ANSWER]},
        {"prompt": "<|system|>s<|end|><|user|>u<|end|><|assistant|>", "completion": "a<|end|>"},
        {"instruction": "u", "input": "", "output": "a", "system": "s"},
    ],
)
def test_every_layout_is_the_same_example(tokenizer, tmp_path, fields):
    text = f"<|system|>s{END}<|user|>u{END}<|assistant|>a{END}"
    assert tokenized(tmp_path, fields, tokenizer) == (text, f"a{END}")


def test_demonstrations_without_a_known_row_are_counted(tmp_path):
    known = read(tmp_path, [RIGHT, {"messages": [ASK, ANSWER, ASK, ANSWER]}])
    assert "1 of 2" in known.warning


def test_each_completion_is_a_demonstration_and_reasoning_beside_it_is_learned(tmp_path):
    row = {"num": [3, 7, 50], "target": 46, "response": [RIGHT["completion"], WRONG["completion"]]}
    assert read(tmp_path, [row]).facts() == {"read": 2, "graded": 2, "kept": 1, "wrong": 1}
    reply = ANSWER | {"reasoning_content": "why"}
    known = read(tmp_path, [{"messages": [ASK, reply]}])
    assert [each.completion for each in known.filtered] == ["<think>why</think>\na"]


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"prompt": "p", "completion": ""}, "empty"),
        ({"messages": [ASK, ANSWER | {"thinking": "t"}, ASK, ANSWER]}, "earlier turn"),
        ({"messages": [ASK, TURNS[0], ANSWER]}, "system"),
        ({"messages": [TURNS[0], ANSWER]}, "no turn of the user"),
        ({"prompt": "u", "completion": "a", "system": "s"}, "system"),
        (RIGHT | {"style": "direct", "completion": [ANSWER | {"thinking": "t"}]}, "direct"),
    ],
)
def test_what_is_no_demonstration_is_refused_by_its_place(tmp_path, fields, word):
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
        {"messages": [{"role": "user", "content": TINYZERO.format("50 3 7")}, ANSWER]},
        {"prompt": parse_row(RIGHT).messages(), "completion": "a"},
        {"prompt": "<|user|>Reach 46  with 3 & 7 & 50<|end|><|assistant|>", "completion": "a"},
    ],
)
def test_demonstrations_of_test_puzzles_are_found_by_what_they_ask(tmp_path, data, fields):
    other = {"prompt": TINYZERO.format("5, 8, 9"), "completion": "a"}
    known = read(tmp_path, [fields, other], data, keep_wrong=True)
    assert (known.left_out["of test puzzles"], len(known.filtered)) == (1, 1)


def test_demonstrations_of_validation_puzzles_are_left_out_where_these_are_evaluated(
    tmp_path, data
):
    sets = [2, 4, 40], [40, 4, 2], [5, 8, 9]
    rows = [{"nums": nums, "target": 46, "completion": "a"} for nums in sets]
    for every, left in ((0, 0), (5, 2)):
        known = read(tmp_path, rows, data, eval_every=every, keep_wrong=True)
        assert (known.left_out["of validation puzzles"], len(known.filtered)) == (left, 3 - left)


@pytest.mark.parametrize(("name", "budget"), [("compact", 150), ("published", 3_000)])
def test_a_search_gives_up_at_its_budget(tmp_path, tokenizer, name, budget):
    rows = [{"nums": [number, 7, 11, 2], "target": 50} for number in range(3, 23)]
    write_data(tmp_path / "data", {"train": rows, "test": [RIGHT]})
    demonstrator = f"stages.recipes.search:{name}"
    options = SftOptions(demonstrator=demonstrator, keep_wrong=True, max_completion_length=budget)
    known, _ = demonstrations.read(options, [], tmp_path / "data", tokenizer)
    assert len(known.filtered) == 20
    assert all(len(tokenizer(each.completion)["input_ids"]) <= budget for each in known.filtered)
    wrong = [each for each in known.filtered if not each.row.grade(each.completion).correct]
    assert 0 < len(wrong) < 20
    assert all("impossible" in each.completion for each in wrong)


@pytest.mark.parametrize(
    ("demonstrator", "has_data", "word"),
    [("oracle", True, "solver"), (None, False, "--from"), ("solver", False, "--data")],
)
def test_there_must_be_a_source_and_a_demonstrator_of_the_task(data, demonstrator, has_data, word):
    options = SftOptions(demonstrator=demonstrator)
    with pytest.raises(UsageError, match=word):
        demonstrations.read(options, [], data if has_data else None, None)


OPENS = tiny_llama.TEMPLATE.replace("<|assistant|>{% endif %}", "<|assistant|><think>\n{% endif %}")


@pytest.mark.parametrize(
    ("fields", "template", "learned"),
    [
        ({"prompt": TURNS, "completion": "<think>\na"}, OPENS, f"a{END}"),
        ({"prompt": "u<think>", "completion": "<think>a"}, OPENS, f"a{END}"),
        ({"prompt": TURNS, "completion": "<think>\na"}, tiny_llama.TEMPLATE, f"<think>\na{END}"),
        (RIGHT | {"completion": f"{PREFILL}{SOLVED}"}, tiny_llama.TEMPLATE, f"{SOLVED}{END}"),
        (RIGHT | {"completion": f"{PREFILL}{SOLVED}"}, OPENS, f"{SOLVED}{END}"),
        ({"prompt": TURNS, "completion": f"a{END} {END}\n\n"}, OPENS, f"a{END}"),
        ({"prompt": TURNS, "completion": f"a\n{END}"}, OPENS, f"a\n{END}"),
        ({"prompt": TURNS, "completion": f"a</turn>\n{END}\n"}, ENDS, f"a</turn>{END}"),
    ],
)
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
    row = RIGHT | {"completion": "50 - 7 + 3"}
    (kept,) = read(tmp_path, [row], own_prompt, eval_every=1).filtered
    assert kept.prompt == [{"role": "user", "content": "[3, 7, 50] -> 46"}]
    word_problem = {"task": "gsm8k", "question": "2 and 3?", "gold": "5", "completion": "x"}
    (kept,) = read(tmp_path, [word_problem], own_prompt, keep_wrong=True).filtered
    assert kept.row.style_name == "lines"


def test_an_end_token_that_the_tokenizer_appends_does_not_begin_a_prompt():
    from tokenizers.processors import TemplateProcessing

    tokenizer = tiny_llama.tokenizer()
    ids = [("<|system|>", 2), ("<|end|>", 1)]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        "<|system|> $A <|end|>", special_tokens=ids
    )
    assert tokens.start_of_text(tokenizer) == "<|system|>"
