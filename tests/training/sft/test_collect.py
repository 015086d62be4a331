"""Demonstrations: which completions are taken, and that they are the tokens that were sampled."""

from pathlib import Path

import pytest

from countdown_rl.core import artifacts
from countdown_rl.core.errors import InputError
from countdown_rl.data import build
from countdown_rl.data.config import DataOptions
from countdown_rl.evaluation import evaluate
from countdown_rl.evaluation.config import EvalOptions
from countdown_rl.evaluation.sample import Sample
from countdown_rl.inference import generate
from countdown_rl.inference.engine import Completion
from countdown_rl.models import load, reference
from countdown_rl.tasks import jsonl
from countdown_rl.tasks.registry import parse_row
from countdown_rl.training.options import CollectOptions, SftOptions
from countdown_rl.training.sft import collect as selection
from countdown_rl.training.sft import demonstrations, tokens
from tests.support import evaluations

PUZZLE = {"nums": [3, 7, 50], "target": 46}
RIGHT = ["(50 - 7) + 3", "50 - 7 + 3", "50-7+3"]
WRONG = "50 - 7"


def say(answer: str) -> str:
    return f" hm\n</think>\n<answer>{answer}</answer>"


def evaluation(path, answers, puzzles=(PUZZLE,), file="train.jsonl", digest="0", inputs=None):
    """An evaluation in which each of *puzzles* gets the same *answers*; an answer has as many tokens as characters."""
    samples = []
    for puzzle in puzzles:
        for turn, answer in enumerate(answers):
            completion = Completion(say(answer), len(answer), True)
            repetition = turn if len(answers) > 1 else None
            samples.append(Sample.of(parse_row(puzzle), completion, repetition))
    of = {"model": {"source": "none", "kind": "directory", "digest": "0"}}
    of["data"] = {"file": file, "digest": digest}
    return evaluations.write(path, evaluations.metrics(samples, **of), samples, **inputs or of)


def collect(out: Path, *evaluations: Path, **options) -> list[dict]:
    selection.collect(evaluations, CollectOptions(**options), out)
    return [*jsonl.read_objects(out / selection.FILE)]


def test_correct_completions_are_kept_once(tmp_path):
    first = evaluation(tmp_path / "first", [WRONG, RIGHT[0], RIGHT[0]])
    second = evaluation(tmp_path / "second", RIGHT)
    rows = collect(tmp_path / "out", first, second)
    assert rows == [PUZZLE | {"completion": say(answer)} for answer in RIGHT]
    manifest = artifacts.read(tmp_path / "out", "demonstrations")
    facts = {"read": 6, "correct": 5, "kept": 3, "puzzles": 1, "test_puzzles": 0}
    assert manifest.facts == facts | {"mean_tokens": sum(map(len, RIGHT)) / 3}
    assert manifest.inputs["eval-1"]["digest"] == artifacts.read(second, "eval").digest


def test_a_puzzle_of_another_style_is_another_prompt(tmp_path):
    source = evaluation(tmp_path / "eval", RIGHT, [PUZZLE, PUZZLE | {"style": "model_opens"}])
    rows = collect(tmp_path / "out", source, per_puzzle=1)
    assert [row.get("style") for row in rows] == [None, "model_opens"]


def test_puzzles_of_a_test_split_are_left_out(tmp_path, run_command):
    sums = ({"nums": [1, 2, n], "target": n + 3} for n in range(3, 99))
    of_test = next(row for row in sums if parse_row(row).split == "test")
    answers = [f"1 + 2 + {of_test['nums'][2]}", RIGHT[0], WRONG]
    mixed = evaluation(tmp_path / "a", answers, [PUZZLE, of_test])
    printed = run_command("collect", mixed, "--out", tmp_path / "out")
    assert "1 row of a test split" in printed.err
    assert "6 completions read, 2 correct; 1 demonstration " in printed.out
    (row,) = jsonl.read_objects(tmp_path / "out" / selection.FILE)
    assert row["nums"] == PUZZLE["nums"]


@pytest.mark.parametrize("file", ["heldout.csv", "gsm8k_test.jsonl", "eval.json"])
def test_a_file_may_have_any_name_of_a_test_split(tmp_path, file):
    with pytest.raises(InputError, match=r"3 of 3 completions .* 1 row of a test split"):
        collect(tmp_path / "out", evaluation(tmp_path / "a", RIGHT, file=file))
    assert not (tmp_path / "out").exists()
    assert collect(tmp_path / "out", evaluation(tmp_path / "b", RIGHT, file="latest.jsonl"))


def test_sft_learns_the_tokens_that_were_sampled(tmp_path, monkeypatch):
    puzzles = [{"nums": [a, b, 9, 7], "target": a + b + 2} for a in (2, 3, 4, 5) for b in (11, 25)]
    jsonl.write_rows(tmp_path / "train.jsonl", puzzles)
    by_text, written = {}, []
    complete, to_completion = generate.Generator.complete, generate.to_completion

    def noting_ids(stop, ids, **settings):
        written.append(ids)
        return to_completion(stop, ids, **settings)

    def noting_prompts(self, prompts, number=0):
        written.clear()
        completions = complete(self, prompts, number)
        for completion, prompt, ids in zip(completions, prompts, written, strict=True):
            by_text[completion.text] = prompt, ids
        return completions

    monkeypatch.setattr(generate, "to_completion", noting_ids)
    monkeypatch.setattr(generate.Generator, "complete", noting_prompts)
    options = EvalOptions(temperature=1, samples=3, max_new_tokens=64)
    places = {"data": tmp_path / "train.jsonl", "out": tmp_path / "eval"}
    evaluate.evaluate(options, model="countdown-tiny", **places)
    rows = collect(tmp_path / "out", tmp_path / "eval")
    known, _ = demonstrations.read(SftOptions(), [tmp_path / "out" / selection.FILE], None, None)
    tokenizer = load.load_tokenizer(reference.find_model("countdown-tiny"))
    examples = tokens.tokenize(known.filtered, tokenizer)
    assert len(examples) > 4
    for row, example in zip(rows, examples, strict=True):
        prompt, completion = by_text[row["completion"]]
        learned = [*completion, tokenizer.eos_token_id]
        assert example == {"input_ids": prompt + learned, "labels": [-100] * len(prompt) + learned}


@pytest.mark.parametrize("imported", [True, False])
def test_the_test_split_of_data_is_known_whatever_its_file_is_called(tmp_path, imported):
    jsonl.write_rows(tmp_path / "mine.jsonl", [PUZZLE])
    assert parse_row(PUZZLE).split == "train"  # by its numbers
    build.make(DataOptions(n=20, test_from=str(tmp_path / "mine.jsonl")), tmp_path / "data")
    data = artifacts.read(tmp_path / "data", "data")
    rows = jsonl.read_rows(tmp_path / "data" / "test.jsonl") if imported else [parse_row(PUZZLE)]
    digest = "0" if imported else data.files["test.jsonl"]["sha256"]  # of the data in the chain
    inputs = {} if imported else {"model": data.as_input()}
    of = {"file": "renamed.jsonl", "digest": digest, "inputs": inputs}
    source = evaluation(tmp_path / "eval", RIGHT, rows, **of)
    with pytest.raises(InputError, match="1 row of a test split"):
        collect(tmp_path / "out", source)
