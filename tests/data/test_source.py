"""Rows of any task: drawn from a seed, imported, split by their identity, and refused options of other tasks."""

from dataclasses import replace
from itertools import chain

import pytest

from countdown_rl.core.errors import InputError, UsageError
from countdown_rl.data import build
from countdown_rl.data.config import DataOptions
from countdown_rl.data.source import RowSource
from countdown_rl.tasks import jsonl
from countdown_rl.tasks.registry import task

#: GSM8K with a generator, for want of a task that has one and is not Countdown.
DRAWN = replace(
    task("gsm8k"), draw=lambda rng: {"question": f"What is {rng.randint(1, 400)} + 1?", "gold": "7"}
)
PROBLEM = "Ann has 3 bags, each of {} pens. How many pens has she?"


def drawn(seed=42, **sizes):
    rows = RowSource(DRAWN, DataOptions(seed=seed)).rows(sizes)
    return {split: list(rows[split]) for split in rows}


def variants(text):
    """The same problem in other white space, case and punctuation."""
    spaced = f"  {text.replace(' ', '  ')}\n"
    return [text, text.upper(), spaced, text.replace(",", " -").rstrip("?") + " ?!"]


def test_drawn_rows_depend_on_the_seed_and_the_index_alone_and_are_new_and_of_their_split():
    sizes = {"train": 60, "valid": 8, "test": 8}
    rows = drawn(**sizes)
    assert rows == drawn(**sizes)
    assert drawn(train=90)["train"][:60] == rows["train"] != drawn(1, train=60)["train"]
    for split, size in sizes.items():
        assert len(rows[split]) == size
        assert all(DRAWN.row(row).split == split for row in rows[split])
    assert len({row["id"] for row in chain(*rows.values())}) == 76
    assert {row["task"] for row in rows["test"]} == {"gsm8k"}


def test_a_generator_that_runs_out_is_one_sentence(monkeypatch):
    monkeypatch.setattr("countdown_rl.data.source.LIMIT", 200)
    with pytest.raises(InputError, match="draws gave no new one; lower --n"):
        drawn(test=100)


def test_rows_kept_out_are_not_drawn():
    source = RowSource(replace(DRAWN, import_row=None), DataOptions())
    rows = [{"question": f"what is {k}  + 1", "gold": "7"} for k in range(1, 401, 2)]
    source.exclude(("here", row) for row in rows)
    questions = [row["question"] for row in source.rows({"train": 40})["train"]]
    assert all(int(question.split()[2]) % 2 == 0 for question in questions)


def test_a_problem_of_a_published_test_split_is_in_no_other_split():
    published = [("test", variants(PROBLEM.format(k))[k % 4]) for k in range(40)]
    published += [("train", text) for k in range(60) for text in variants(PROBLEM.format(k))]
    source = RowSource(task("gsm8k"), DataOptions())
    rows = [{"split": split, "question": text, "answer": "#### 1"} for split, text in published]
    source.import_rows((("here", row) for row in rows), 10_000, {})
    assert len(source.splits["test"]) == 40
    assert len(source.splits["train"]) + len(source.splits["valid"]) == 20


def test_own_test_rows_keep_their_variants_out_of_the_other_splits(tmp_path):
    for name, numbers in (("own", range(0, 60, 3)), ("rows", range(60))):
        texts = [variants(PROBLEM.format(k))[k % 4 if name == "own" else 0] for k in numbers]
        rows = [{"question": text, "answer": "#### 1"} for text in texts]
        jsonl.write_rows(tmp_path / f"{name}.jsonl", rows)
    own, rest = (str(tmp_path / f"{name}.jsonl") for name in ("own", "rows"))
    facts = build.make(DataOptions(task="gsm8k", from_=rest, test_from=own), tmp_path / "data")
    assert facts["splits"]["test"]["rows"] == 20
    assert facts["dropped"]["excluded"] == 20


@pytest.mark.parametrize(
    "option",
    [
        {"preset": "tv"},
        {"operators": "+-"},
        {"impossible": 0.1},
        {"size": ("3",)},
        {"rule": "television"},
        {"targets": "1-9"},
        {"numbers": "1-9"},
    ],
)
def test_an_option_of_another_task_is_refused_by_name(tmp_path, option):
    options = DataOptions(task="gsm8k", from_="rows.jsonl", **option)
    with pytest.raises(UsageError, match=f"{next(iter(option))} does not apply to --task gsm8k"):
        build.make(options, tmp_path / "data")


def test_an_unknown_task_and_a_style_of_another_one_are_refused(tmp_path):
    with pytest.raises(
        UsageError, match="--task chess: there is no task 'chess'; use countdown or"
    ):
        build.make(DataOptions(task="chess"), tmp_path / "data")
    with pytest.raises(UsageError, match="style lines is not for --task countdown; take prefilled"):
        build.make(DataOptions(style="lines"), tmp_path / "data")
