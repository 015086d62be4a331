"""Records of an evaluation, checked against the schemas of Every Eval Ever."""

import json
import shutil
from pathlib import Path

import pytest
from jsonschema import Draft7Validator

from countdown_rl import artifacts
from countdown_rl.evaluation import every_eval_ever, results
from countdown_rl.evaluation.metrics import measure
from countdown_rl.tasks.registry import parse_row

SCHEMAS = Path(__file__).parent / "every_eval_ever"
COUNTDOWN = [
    {"id": f"p{n}", "nums": [1, 2, n], "target": 3 + n, "needs": ("add-sub", "mul-div")[n % 2]} for n in range(3, 7)
]
GSM8K = [{"task": "gsm8k", "question": "How many are 2 and 3?", "gold": "5"}]
DECODING = {"greedy": True, "temperature": 0.0, "top_p": 1.0, "samples": 1, "seed": 42, "max_new_tokens": 256}


def evaluation(path: Path, rows, completions, *, kind: str, source: str) -> Path:
    """An eval artifact with these completions of each row."""
    samples = []
    for row in rows:
        for index, text in enumerate(completions):
            turn = {"sample": index} if len(completions) > 1 else {}
            grade = parse_row(row).grade(text)
            fields = {name: getattr(grade, name) for name in grade.__slots__}
            samples.append(row | turn | {"completion": text, "tokens": 9, "truncated": False} | fields)
    metrics = measure(samples, rows) | {
        "decoding": DECODING | {"samples": len(completions)},
        "data": {"file": "test.jsonl", "digest": "d" * 64, "size": 1},
        "model": {"source": source, "kind": kind, "digest": "e" * 64},
        "engine": "transformers",
        "precision": "bf16",
    }
    with artifacts.writing(path, "eval", options={}) as draft:
        results.write(draft.path, metrics, samples)
    return path


def valid(name: str, record: dict) -> bool:
    return Draft7Validator(json.loads((SCHEMAS / f"{name}.schema.json").read_text())).is_valid(record)


@pytest.mark.parametrize(
    ("rows", "completions", "kind", "source", "folder"),
    [
        (COUNTDOWN, ["a</think><answer>1 + 2 + 4</answer>"], "adapter", "artifacts/adapter", "countdown/local/adapter"),
        (COUNTDOWN, ["no", "a</think><answer>2 + 1 + 3</answer>"], "hub", "some/Model", "countdown/some/Model"),
        (GSM8K, ["</thinking><answer>5</answer>"], "hub", "gpt2", "gsm8k/local/gpt2"),
        (GSM8K, ["5"], "endpoint", "openai/azure/gpt-4o:x", "gsm8k/openai/azure_gpt-4o_x"),
        (GSM8K, ["5"], "endpoint", "../../x", "gsm8k/local/x"),
        (GSM8K, ["5"], "directory", ".", "gsm8k/local/model"),
    ],
)
def test_the_records_are_valid_and_refer_to_each_other(tmp_path, rows, completions, kind, source, folder):
    path = evaluation(tmp_path / "eval", rows, completions, kind=kind, source=source)
    file = every_eval_ever.write(path)
    aggregate = json.loads(file.read_text())
    assert valid("eval", aggregate)
    assert file.parent == path / "every-eval-ever" / "data" / folder
    companion = path / "every-eval-ever" / aggregate["detailed_evaluation_results"]["file_path"]
    assert companion == file.with_name(f"{file.stem}_samples.jsonl")
    records = [json.loads(line) for line in companion.open()]
    assert all(valid("instance_level_eval", record) for record in records)
    assert aggregate["detailed_evaluation_results"]["total_rows"] == len(records) == len(rows) * len(completions)
    assert len({record["sample_id"] for record in records}) == len(records)
    assert {record["evaluation_id"] for record in records} == {aggregate["evaluation_id"]}
    assert {record["model_id"] for record in records} == {aggregate["model_info"]["id"]}


def test_the_scores_are_those_of_the_evaluation(tmp_path):
    path = evaluation(tmp_path / "eval", COUNTDOWN, ["a</think><answer>1 + 2 + 4</answer>"], kind="hub", source="a/b")
    file = every_eval_ever.write(path)
    everything, *groups = json.loads(file.read_text())["evaluation_results"]
    assert everything["score_details"]["score"] == 0.25
    assert everything["score_details"]["uncertainty"]["num_samples"] == 4
    names = ["countdown: 3 numbers", "countdown: + and − suffice", "countdown: × or ÷ is needed"]
    assert [group["evaluation_name"] for group in groups] == names
    records = [json.loads(line) for line in file.with_name(f"{file.stem}_samples.jsonl").open()]
    assert [record["evaluation"]["is_correct"] for record in records] == [False, True, False, False]
    assert records[1]["input"]["reference"] == ["7"]
    assert records[1]["answer_attribution"][0]["extracted_value"] == "1 + 2 + 4"


def test_the_records_do_not_change_the_evaluation_and_are_the_same_again(tmp_path):
    path = evaluation(tmp_path / "eval", COUNTDOWN, ["no"], kind="directory", source="model")
    before = artifacts.read(path, "eval")
    file = every_eval_ever.write(path)
    first = file.read_bytes()
    assert artifacts.read(path, "eval") == before
    shutil.rmtree(path / "every-eval-ever")
    assert every_eval_ever.write(path).read_bytes() == first
